"""Records on their way into a log, each exactly once: what the jobs that write share.

They write through the sink (docs/spark-sink.md) in batches that bear the job's name and a number: a batch that the
server has already is not appended again. So a job that was killed is run again: its `Progress` says what it was doing,
the server's ledger says how far it came.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from engine.errors import EngineError
from engine.files.system import SystemFiles, write_new_file
from netserver.client.tls import TlsFiles
from tools.logtool.lib.errors import CONFLICT, NOT_FOUND, REFUSED, UNREACHABLE, USAGE, Failure
from tools.serving import http_connection, read_token
from tools.spark.jobs.common import Extent
from tools.spark.sink.options import Place

COLUMNS = ("topic", "partition", "key", "value", "headers", "timestamp")
BATCH_RECORDS = 1_000_000
"""Numbers of each partition that become one batch: what a killed job repeats reading."""
RETRY_S = 60.0
"""How long a server may be away, as for a restart."""
REQUEST_S = 30.0
PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Server:
    """The admin API of the server that the records go to."""

    url: str
    token: str

    @classmethod
    def of(cls, args: Namespace) -> Server:
        """What ``--server`` names, else the server of ``--data-dir``. Raises Failure."""
        place = Place(args.server, None, args.data_dir, RETRY_S)
        try:
            url, token, _ = place.address()
            return cls(url, read_token(Path(args.token_file)) if args.token_file else token)
        except (OSError, EngineError) as error:
            text = f"no server to write to: {error}"
            raise Failure(UNREACHABLE, "no_server", text, "start it, or name one with --server") from None

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request; a server that is away is waited for: what the jobs ask for may be asked for twice.

        Raises:
            Failure: it stays away, or it refuses.
        """
        deadline = time.monotonic() + RETRY_S
        content = json.dumps(body).encode() if body is not None else None
        while True:
            try:
                status, answer = self._request(method, path, content)
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() >= deadline:
                    raise Failure(UNREACHABLE, "unreachable", f"{self.url}: {error}") from error
                time.sleep(PAUSE_S)
                continue
            if status < 300:
                return answer
            message = str(answer.get("error", {}).get("message", f"HTTP status {status}"))
            raise Failure({401: REFUSED, 404: NOT_FOUND, 409: CONFLICT}.get(status, UNREACHABLE), "server", message)

    def _request(self, method: str, path: str, content: bytes | None) -> tuple[int, dict[str, Any]]:
        url = self.url if "//" in self.url else f"http://{self.url}"
        connection = http_connection(url, REQUEST_S, TlsFiles.found())
        try:
            connection.request(method, path, content, {"Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def last_batch(self, writer: str) -> dict[str, Any] | None:
        """What the server's ledger has of a writer; None: nothing."""
        try:
            return self.call("GET", f"/v1/commits/{quote(writer, safe='')}")
        except Failure as failure:
            if failure.exit_code != NOT_FOUND:
                raise
            return None

    def done(self, writer: str) -> int:
        """The last batch of a writer that is in the log as a whole; -1: none."""
        found = self.last_batch(writer)
        return -1 if found is None else int(found["batch"]) - (not found["complete"])

    def need_topic(self, topic: str, partitions: int) -> None:
        """Makes the topic if it is not there. Raises Failure when it is there with fewer partitions."""
        try:
            found = self.call("GET", f"/v1/topics/{quote(topic, safe='')}")
        except Failure as failure:
            if failure.exit_code != NOT_FOUND:
                raise
            found = self.call("POST", "/v1/topics", {"name": topic, "partitions": partitions})
        if found["partitions"] < partitions:
            text = f"topic {topic} has {found['partitions']} partitions; {partitions} are needed"
            raise Failure(CONFLICT, "partitions", text)


def send(frame: DataFrame, server: Server, writer: str, number: int) -> int:
    """Appends the rows of a DataFrame with the source's columns as one batch, in its order; how many it has.

    A null partition lets the server choose, by the key's hash.
    """
    batch: dict[str, Any] = {"server": server.url, "token": server.token, "queryId": writer, "batchId": number}
    frame.select(*COLUMNS).write.format("quintlog").mode("append").options(**batch).save()
    found = server.last_batch(writer)
    return int(found["records"]) if found is not None and found["batch"] == number else 0


def add_options(parser: ArgumentParser) -> None:
    """The options of jobs that write."""
    server, token = os.environ.get("QUINTLOG_SERVER"), os.environ.get("QUINTLOG_TOKEN_FILE")
    parser.add_argument("--server", metavar="URL", default=server, help="where to; the server of --data-dir by default")
    parser.add_argument("--token-file", metavar="FILE", default=token, help="its admin.token, for --server")
    parser.add_argument(
        "--progress", metavar="FILE", help="what the job does, for running it again: needed to write; made if missing"
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """What a job that writes was asked for when it ran first: a file, so that it does the same when it is run again."""

    writer: str
    extent: Extent

    @classmethod
    def of(cls, args: Namespace, job: str, *named: str) -> Progress:
        """Of the file ``--progress``, which is made when it is not there.

        Args:
            named: options that have to be the same whenever the job is run with this file.

        Raises:
            Failure: there is no ``--progress``, or its file belongs to a job that was asked for something else.
        """
        if args.progress is None:
            raise Failure(USAGE, "usage", "--progress FILE is missing: without it a repeated run would write twice")
        path = Path(args.progress)
        asked = {"job": job, "data_dir": os.path.abspath(args.data_dir)} | {name: getattr(args, name) for name in named}
        if not path.exists():
            progress = cls(f"{job} {uuid.uuid4()}", Extent.of(args))
            listed = [[*key, *span] for key, span in progress.extent.spans.items()]
            document = {"asked": asked, "writer": progress.writer, "spans": listed}
            write_new_file(SystemFiles(), path, json.dumps(document, indent=2).encode())
            return progress
        found = json.loads(path.read_text())
        if found["asked"] != asked:
            text = f"{path} belongs to another command: {found['asked']}"
            raise Failure(CONFLICT, "progress", text, "name another file for a new job")
        spans = {(topic, index): (first, end) for topic, index, first, end in found["spans"]}
        return cls(found["writer"], Extent(args.data_dir, spans))

    def send_steps(
        self, spark: SparkSession, server: Server, records: int, change: Callable[[DataFrame], DataFrame], rate: int = 0
    ) -> int:
        """Sends the extent step by step, from the first step on that is not in the log; how many records were sent.

        Args:
            records: numbers of each partition for a step.
            change: makes the rows to be sent of those that were read.
            rate: records a second at most; 0: as fast as it goes.
        """
        sent = 0
        first = server.done(self.writer) + 1
        for number, step in self.extent.steps(records):
            if number < first:
                continue
            began_s = time.monotonic()
            count = send(change(step.frame(spark, includeHeaders="true")), server, self.writer, number)
            sent += count
            if rate:
                time.sleep(max(0.0, began_s + count / rate - time.monotonic()))
        return sent
