"""Load client of the JSON streaming protocol: many streams of numbers in one process, checked, counted, timed.

    python bench/load_json.py PORT CONNECTIONS COUNT [ACK_EVERY]

Prints one JSON object: messages, seconds, first_ms (median and largest time to the first message), bad (streams whose
checksum was wrong or whose ids had a gap).
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import statistics
import sys
import time
import zlib

LINE = re.compile(rb'\{"id":(\d+),"data":\{"value":(\d+)(?:,"crc":(\d+))?\}\}\n')
READ_BYTES = 256 * 1024


class Stream:
    """One connection and what it has received."""

    def __init__(self, port: int, uuid: str, count: int, ack_every: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.uuid = uuid
        self.count = count
        self.ack_every = ack_every
        self.acked = 0
        self.parts: list[bytes] = []
        self.tail = b""
        self.first_s = 0.0
        self.started = time.perf_counter()
        self.socket.sendall(b'{"uuid":"%s","params":{"count":%d}}\n' % (uuid.encode(), count))

    def receive(self) -> bool:
        """Take what is there; True when the last message has come."""
        data = self.socket.recv(READ_BYTES)
        if not self.first_s:
            self.first_s = time.perf_counter() - self.started
        self.parts.append(data)
        self.tail = (self.tail + data)[-100:]
        if not data or b'"crc"' in self.tail:
            return True
        if self.ack_every:
            self.acknowledge()
        return False

    def acknowledge(self) -> None:
        """One acknowledgement for what has come, if it is time."""
        end = self.tail.rfind(b"}}\n")
        start = self.tail.rfind(b'{"id":', 0, max(end, 0))
        if start >= 0:
            last = int(self.tail[start + 6 : self.tail.index(b",", start)])
            if last - self.acked >= self.ack_every:
                self.acked = last
                self.socket.sendall(b'{"uuid":"%s","ack":%d}\n' % (self.uuid.encode(), last))

    def is_right(self) -> bool:
        """All ids, and the checksum."""
        rows = LINE.findall(b"".join(self.parts))
        values = b"".join(int(value).to_bytes(4, "big") for _, value, _ in rows)
        ids = [int(number) for number, _, _ in rows]
        return ids == list(range(1, self.count + 1)) and bool(rows[-1][2]) and int(rows[-1][2]) == zlib.crc32(values)


def main() -> None:
    """See the module."""
    port, connections, count = (int(word) for word in sys.argv[1:4])
    ack_every = int(sys.argv[4]) if len(sys.argv) > 4 else 16
    start = time.perf_counter()
    selector = selectors.DefaultSelector()
    streams = [Stream(port, f"load-{start}-{n}", count, ack_every) for n in range(connections)]
    for stream in streams:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
    left = len(streams)
    while left:
        for key, _ in selector.select():
            if key.data.receive():
                selector.unregister(key.data.socket)
                left -= 1
    seconds = time.perf_counter() - start
    for stream in streams:
        stream.socket.close()
    firsts = [stream.first_s * 1e3 for stream in streams]
    result = {
        "messages": connections * count,
        "seconds": seconds,
        "first_ms": [statistics.median(firsts), max(firsts)],
        "bad": sum(not stream.is_right() for stream in streams),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
