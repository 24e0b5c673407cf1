"""Load client of the Kafka protocol: librdkafka with its own settings, in a loop that does nothing else.

python load_kafka.py produce|consume PORT TOPIC PARTITIONS MESSAGES
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SIZE = 100
AT_ONCE = 10_000
WAIT_S = 60.0


def produce(server: str, topic: str, messages: int) -> None:
    """Publish to all partitions; ends when everything is acknowledged."""
    producer = Producer({"bootstrap.servers": server, "acks": "all", "queue.buffering.max.messages": 1_000_000})
    value = bytes(SIZE)
    for _ in range(messages):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    if left := producer.flush(WAIT_S):
        raise TimeoutError(f"{left} messages were not acknowledged")


def consume(server: str, topic: str, partitions: int, messages: int) -> None:
    """Read from the beginning."""
    settings = {"bootstrap.servers": server, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    deadline = time.monotonic() + WAIT_S
    while messages > 0:
        found = consumer.consume(AT_ONCE, 1.0)
        messages -= sum(message.error() is None for message in found)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{messages} messages did not come")
    consumer.close()


def main() -> None:
    """Prints how long it took."""
    what, server, topic = sys.argv[1], f"127.0.0.1:{sys.argv[2]}", sys.argv[3]
    partitions, messages = int(sys.argv[4]), int(sys.argv[5])
    if what == "produce":
        admin = AdminClient({"bootstrap.servers": server})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(WAIT_S)
    start = time.perf_counter()
    if what == "produce":
        produce(server, topic, messages)
    else:
        consume(server, topic, partitions, messages)
    seconds = time.perf_counter() - start
    print(json.dumps({"messages": messages, "seconds": seconds, "p50_us": 0.0, "p99_us": 0.0}))


if __name__ == "__main__":
    main()
