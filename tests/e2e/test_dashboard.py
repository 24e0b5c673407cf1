"""Every query of the dashboard, by a real Prometheus that scrapes a real server under load of all protocols.

Needs `prometheus` (Debian: prometheus). QUINTLOG_PICTURES=1 draws docs/lag.svg anew, from the queries of the panels.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver import blipmq, errors, figg, fujin, reliably, tank
from netserver.testing import ServerProcess, server
from tools.logtool.lib.monitoring import JOB, alerts, alerts_text, dashboard, scrape_text

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(not os.environ.get("QUINTLOG_NIGHTLY"), reason="QUINTLOG_NIGHTLY=1: a minute of load"),
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed"),
]
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120
PICTURE_S = 30
"""Of load, for the picture."""


class Prometheus:
    """One that scrapes a server every second."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, expression: str, **range_: float) -> list[Any]:
        """What an expression yields now, or over a range of times."""
        asked = expression.replace("$instance", ".*").replace("$__rate_interval", "10s")
        path = "query_range" if range_ else "query"
        query = urllib.parse.urlencode({"query": asked, **range_})
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        assert isinstance(found, list)
        return found

    def has(self, expression: str) -> bool:
        """Whether it yields a number."""
        return any(not math.isnan(float(series["value"][1])) for series in self.ask(expression))


@contextlib.contextmanager
def scraping(process: ServerProcess, folder: Path) -> Iterator[Prometheus]:
    """Prometheus, as the files that `logtool generate` prints tell it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    (folder / "quintlog-alerts.yml").write_text(alerts_text())
    text = scrape_text(urllib.parse.urlsplit(process.admin_url).netloc).replace("scrape_interval: 1m", "")
    (folder / "prometheus.yml").write_text(f"global: {{scrape_interval: 1s}}\n{text}")
    assert PROMETHEUS is not None
    command = [PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    with subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL) as prometheus:
        try:
            yield Prometheus(address)
        finally:
            prometheus.terminate()


async def until(is_true: Callable[[], bool], tasks: list[asyncio.Task[None]]) -> None:
    """Until it is, or a task has failed."""
    deadline = time.monotonic() + WAIT_S
    while True:
        for task in tasks:
            if task.done():
                task.result()
        with contextlib.suppress(OSError):
            if await asyncio.to_thread(is_true):
                return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.5)


class Load:
    """Publishers and readers of all protocols, until they are cancelled; two of the readers are slow."""

    def __init__(self, process: ServerProcess) -> None:
        self.at = {name: f"{host}:{port}" for name, (host, port) in process.addresses.items()}
        self.ca = process.data_dir / "fujin-certificate.pem"

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [self.figg(), self.tank(), self.blipmq(), self.letters(), self.fujin(), self.group(), self.stream()]

    async def figg(self) -> None:
        async with figg.connect(self.at["figg"]) as client, client.subscribe("orders") as records:
            while True:
                await client.publish("orders", b"x" * 100)
                await records.next()
                with contextlib.suppress(ConnectionError):  # one that ends
                    await asyncio.to_thread(socket.create_connection(self._pair("figg")).close)

    def _pair(self, name: str) -> tuple[str, int]:
        host, _, port = self.at[name].rpartition(":")
        return host, int(port)

    async def tank(self) -> None:
        async with tank.connect(self.at["tank"]) as client, client.subscribe("orders") as records:
            while True:
                await client.publish("orders", b"y" * 100)
                await records.next()

    async def blipmq(self) -> None:
        async with blipmq.connect(self.at["blipmq"], version=2) as client:
            while True:
                await client.publish("letters", b"z" * 100)

    async def letters(self) -> None:
        async with (
            blipmq.connect(self.at["blipmq"], version=2) as client,
            client.subscribe("letters", group="printers") as messages,
        ):
            while True:
                message = await messages.next()
                await asyncio.sleep(0.02)  # slow on purpose
                await message.ack()

    async def fujin(self) -> None:
        async with fujin.connect(self.at["fujin"], ca=self.ca) as client:
            while True:
                await client.publish("parcels", b"w" * 100)

    async def group(self) -> None:
        async with fujin.connect(self.at["fujin"], ca=self.ca) as client:
            async for message in client.subscribe("parcels"):
                await asyncio.sleep(0.05)  # slower still
                with contextlib.suppress(errors.QuintlogError):
                    await message.ack()

    async def stream(self) -> None:
        parameters = {"topic": "orders", "offset": "latest"}
        async with reliably.connect(self.at["reliably"], params=parameters) as session:
            async for _ in session:
                pass


def queries() -> dict[str, str]:
    """Panel and legend -> expression."""
    return {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    }


def draw(prometheus: Prometheus) -> None:
    """The panels of lag, over the last seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    now = time.time()
    for axes, what in zip(figure.subplots(1, 2), ("records", "time"), strict=True):
        (title,) = [name for name in queries() if name.startswith(f"Lag of groups, in {what}")]
        for series in prometheus.ask(queries()[title], start=now - PICTURE_S, end=now, step=1):
            name = "{group} {topic} ({protocol})".format(**series["metric"])
            values = [(float(at) - now, float(value)) for at, value in series["values"]]
            axes.plot(*zip(*values, strict=True), label=name)
        axes.set_title(title.partition(":")[0])
        axes.set_xlabel("seconds from now")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", fontsize="small")
    figure.savefig(ROOT / "docs" / "lag.svg", metadata={"Date": None})


def test_every_panel_shows_something_and_every_alert_is_looked_at(tmp_path: Path) -> None:
    with server() as process, scraping(process, tmp_path) as prometheus:
        process.admin("POST", "/v1/topics", {"name": "orders"})
        empty = dict(queries())

        def all_have() -> bool:
            for name, expression in list(empty.items()):
                if prometheus.has(expression):
                    del empty[name]
            return not empty

        async def main() -> None:
            tasks = [asyncio.create_task(part) for part in Load(process).parts()]
            try:
                await until(all_have, tasks)
                if os.environ.get("QUINTLOG_PICTURES"):
                    await asyncio.sleep(PICTURE_S)
                    draw(prometheus)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        try:
            asyncio.run(main())
        except AssertionError:
            pytest.fail(f"these queries have no series: {empty}")
        assert prometheus.has(f'up{{job="{JOB}"}} == 1')
        for alert in alerts():
            prometheus.ask(alert.expression)  # raises where it is no expression
