"""What operators are given: files for Prometheus and Grafana, and the page on operating, tried on a real server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from netserver.client import blocking
from netserver.testing import ServerProcess, server
from tests.unit.conftest import Logtool
from tools.logtool.lib.monitoring import alerts, dashboard

pytestmark = pytest.mark.whole

PROMTOOL = shutil.which("promtool")
WORD = re.compile(r"\b(?:quintlog|process)_\w+")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("monitored") / "data") as running:
        for protocol in ("figg", "blipmq"):
            with blocking.connect(protocol, "{}:{}".format(*running.address(protocol))) as client:
                client.publish("orders", b"one")
        yield running


def expressions() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    return [alert.expression for alert in alerts()] + panels


def test_every_metric_that_is_asked_for_is_scraped(process: ServerProcess) -> None:
    text = ""
    for path in ("/metrics", "/metrics/topics"):
        with urllib.request.urlopen(process.admin_url + path, timeout=30) as answer:
            text += answer.read().decode()
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    known = {name for name, kind in families.items() if kind != "histogram"}
    known |= {f"{name}_{end}" for name, kind in families.items() if kind == "histogram" for end in ("bucket", "count")}
    labels = {name: set(re.findall(r'(\w+)="', found)) for name, found in re.findall(r"^(\w+)\{(.*)\} ", text, re.M)}
    asked = {name for expression in expressions() for name in WORD.findall(expression)}
    assert len(asked) > 30
    assert asked - known == set()
    for expression in expressions():
        for by in re.findall(r"sum by \(([^)]*)\)", expression):
            (name,) = WORD.findall(expression)
            if families.get(name.removesuffix("_bucket")) == "histogram" and name not in labels:
                continue  # nothing was observed yet
            assert set(by.split(", ")) <= labels[name], expression


def test_the_dashboard_has_no_overlaps_and_distinct_numbers() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
    for panel in panels:
        for target in panel.get("targets", []):
            chosen = re.findall(r'\{job="quintlog(?:-topics)?",instance=~"\$instance"\}', target["expr"])
            assert len(chosen) == len(WORD.findall(target["expr"]))


def test_what_is_printed(process: ServerProcess, logtool: Logtool) -> None:
    code, out, err = logtool("--data-dir", str(process.data_dir), "generate", "prometheus")
    assert (code, err) == (0, "")
    target = urllib.parse.urlsplit(process.admin_url).netloc
    assert [job["static_configs"][0]["targets"] for job in yaml.safe_load(out)["scrape_configs"]] == [[target]] * 2
    code, out, _ = logtool("--server", "http://[::1]:9180", "generate", "prometheus")
    assert yaml.safe_load(out)["scrape_configs"][0]["static_configs"][0]["targets"] == ["[::1]:9180"]
    code, out, _ = logtool("generate", "alerts", "--lag", "17")
    (group,) = yaml.safe_load(out)["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in alerts()]
    assert "quintlog_subscription_lag_records_max > 17" in {rule["expr"] for rule in group["rules"]}
    assert all(rule["annotations"]["description"] for rule in group["rules"])
    code, out, _ = logtool("generate", "grafana")
    assert (code, json.loads(out)) == (0, dashboard())


def test_the_commands_of_the_page_on_operating(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[4] / "docs" / "operating.md"
    commands = re.findall(r"^\$ logtool (.*)$", page.read_text(), re.MULTILINE)
    assert len(commands) == 5
    with server(tmp_path / "data") as one:
        one.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "one"}] * 3})
        for command in commands:
            words = [sys.executable, "-m", "tools.logtool", *command.split()]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
            done = subprocess.run(
                words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert (done.returncode, "Traceback" in done.stderr) == (0, False), (command, done.stderr)
    with server(tmp_path / "restored") as again:
        (detail,) = again.admin("GET", "/v1/topics")["items"][0]["partition_details"]
        assert detail["next_offset"] == 4


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_takes_the_files(process: ServerProcess, logtool: Logtool, tmp_path: Path) -> None:
    (tmp_path / "quintlog-alerts.yml").write_text(logtool("generate", "alerts")[1])
    (tmp_path / "prometheus.yml").write_text(logtool("generate", "prometheus")[1])
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(alerts())} rules found" in done.stdout + done.stderr
