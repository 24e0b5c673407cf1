"""Configuration for Prometheus and Grafana: a scrape job, alerts and one dashboard, made from the tables below.

The metrics themselves are those of `netserver.admin.metrics`; a test runs every expression here against a real scrape.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

JOB: Final = "quintlog"
"""The name of the scrape, which the alerts about the process itself look for."""
TOPICS_JOB: Final = "quintlog-topics"
"""That of what has topics and groups in its labels."""
OF_TOPICS: Final = ("quintlog_group_", "quintlog_topic_")
GROUPS_SHOWN: Final = 20
LAG_RECORDS: Final = 100_000
DASHBOARD_UID: Final = "quintlog"
GRID_COLUMNS: Final = 24
"""Grafana's width of a row."""
PANEL_HEIGHT: Final = 8
STAT_HEIGHT: Final = 4

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule: when it fires, and what whoever is woken by it does.

    Attributes:
        lasting: for how long the expression has to hold, in Prometheus' form.
        action: the first thing to do; a command where there is one.
    """

    name: str
    expression: str
    lasting: str
    severity: Severity
    summary: str
    action: str


REMOTE_LAGS: Final = Alert(
    "QuintlogRemoteLags", "quintlog_remote_lag_seconds > 60 or quintlog_remote_failing == 1", "5m", "critical",
    "object storage does not have what this server has", "`logtool status` says why: credentials, the network",
)  # fmt: skip
CERTIFICATE_EXPIRES: Final = Alert(
    "QuintlogCertificateExpires",
    "quintlog_certificate_expires_in_seconds < 1209600",
    "1h",
    "warning",
    "a listener's certificate expires within 14 days",
    "`logtool check` names it; renew it (`logtool certificates make`) and send SIGHUP",
)


def alerts(lag_records: int = LAG_RECORDS) -> tuple[Alert, ...]:
    """All rules; a subscription may be `lag_records` behind."""
    return (
        Alert(
            "QuintlogDown", f'up{{job="{JOB}"}} == 0', "2m", "critical", "the server does not answer",
            "look at its log (journalctl -u quintlog); `logtool status` on its directory says how it ended",
        ),
        Alert(
            "QuintlogNotReady", "quintlog_ready == 0", "2m", "critical", "the server runs but does not serve",
            "it is starting or stopping: its log says what it waits for",
        ),
        Alert(
            "QuintlogPartitionsReadOnly", "quintlog_partitions_read_only > 0", "1m", "critical",
            "partitions take no records", "`logtool topics show TOPIC` says why",
        ),
        Alert(
            "QuintlogDamage", "quintlog_damaged_batches_total + quintlog_lost_records_total > 0", "0m", "critical",
            "stored records are damaged or missing", "`logtool verify` names them; it fires until the next start",
        ),
        Alert(
            "QuintlogSyncFailed", "increase(quintlog_sync_failures_total[1h]) > 0", "0m", "critical",
            "the disk refused a sync", "the server's log names the file; look at the disk (dmesg, smartctl)",
        ),
        Alert(
            "QuintlogDiskFull", "quintlog_disk_free_bytes / quintlog_disk_size_bytes < 0.05", "5m", "critical",
            "less than 5 % of the disk are free", "lower retention_bytes or trim a topic: docs/operating.md",
        ),
        Alert(
            "QuintlogDiskFillsUp",
            "predict_linear(quintlog_disk_free_bytes[6h], 86400) < 0 and "
            "quintlog_disk_free_bytes / quintlog_disk_size_bytes < 0.4",
            "30m", "warning", "at the rate of the last 6 hours the disk is full within a day",
            "`logtool top` shows the topics that grow",
        ),
        Alert(
            "QuintlogUnsynced", "quintlog_unsynced_age_seconds > 60", "1m", "critical",
            "records of a topic with durability interval are not synced in time", "look at the disk and the log",
        ),
        Alert(
            "QuintlogSlowSyncs",
            "histogram_quantile(0.99, rate(quintlog_sync_seconds_bucket[5m])) > 0.25", "10m", "warning",
            "one sync in a hundred takes more than 0.25 s", "something else writes to this disk, or it is failing",
        ),
        Alert(
            "QuintlogPublishersHeldBack", "quintlog_pending_bytes > 0.9 * quintlog_pending_limit_bytes", "5m",
            "warning", "publishers are faster than the disk and wait", "`logtool top` shows who publishes",
        ),
        Alert(
            "QuintlogRetentionStuck", "quintlog_housekeeping_failing_topics > 0", "15m", "warning",
            "old segments cannot be removed", "the server's log names the topics and why",
        ),
        Alert(
            "QuintlogReloadFailed", "quintlog_config_reload_success == 0", "1m", "warning",
            "a changed configuration was not taken over", "`logtool config check --config FILE` says what is wrong",
        ),
        REMOTE_LAGS,
        CERTIFICATE_EXPIRES,
        Alert(
            "QuintlogSubscriptionBehind", f"quintlog_subscription_lag_records_max > {lag_records}", "15m", "warning",
            "a subscription or group is far behind", "`logtool groups list` shows which",
        ),
        Alert(
            "QuintlogSubscriptionOvertaken", "increase(quintlog_subscription_records_lost_total[15m]) > 0", "0m",
            "critical", "records were removed before their subscriber had them",
            "lengthen retention, or let the subscriber catch up: `logtool subscriptions list`",
        ),
        Alert(
            "QuintlogFewDescriptors", f'process_open_fds{{job="{JOB}"}} / process_max_fds{{job="{JOB}"}} > 0.9',
            "5m", "warning", "the server is about to run out of file descriptors", "raise LimitNOFILE of its unit",
        ),
    )  # fmt: skip


def alerts_text(lag_records: int = LAG_RECORDS) -> str:
    """A file of rules for Prometheus. Texts are JSON strings, which YAML takes as they are."""
    lines = ["groups:", "  - name: quintlog", "    rules:"]
    for alert in alerts(lag_records):
        summary = f"{{{{ $labels.instance }}}}: {alert.summary}"
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.lasting}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(summary)}",
            f"          description: {json.dumps(alert.action)}",
        ]
    return "\n".join(lines) + "\n"


def scrape_text(target: str) -> str:
    """A configuration for Prometheus that scrapes `target` (HOST:PORT of the admin listener) and reads the alerts."""
    return f"""scrape_configs:
  - job_name: {JOB}
    static_configs:
      - targets: [{json.dumps(target)}]
  - job_name: {TOPICS_JOB}
    metrics_path: /metrics/topics
    scrape_interval: 1m
    static_configs:
      - targets: [{json.dumps(target)}]
rule_files:
  - quintlog-alerts.yml
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart, or with `is_stat` a single figure. `queries`: legend -> expression, `$instance` and the rate's
    interval put in by `_bound`."""

    title: str
    unit: str
    queries: dict[str, str]
    is_stat: bool = False


def _quantiles(metric: str, by: str = "") -> dict[str, str]:
    more = f", {by}" if by else ""
    legend = f"{{{{{by}}}}} " if by else ""
    return {
        f"{legend}p{percent}": f"histogram_quantile({percent / 100:g}, sum by (le{more}) (rate({metric}_bucket[RATE])))"
        for percent in (50, 99)
    }


def _rates(metric: str, by: str) -> dict[str, str]:
    return {f"{{{{{by}}}}}": f"sum by ({by}) (rate({metric}[RATE]))"}


def _of_groups(metric: str) -> dict[str, str]:
    return {"{{group}} {{topic}}": f"topk({GROUPS_SHOWN}, max by (protocol, group, topic) ({metric}))"}


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "At a glance",
        (
            Panel("Ready", "bool", {"": "min(quintlog_ready)"}, True),
            Panel("Published", "cps", {"": "sum(rate(quintlog_records_published_total[RATE]))"}, True),
            Panel("Delivered", "cps", {"": "sum(rate(quintlog_records_delivered_total[RATE]))"}, True),
            Panel("Disk free", "percentunit", {"": "min(quintlog_disk_free_bytes / quintlog_disk_size_bytes)"}, True),
            Panel("Partitions read-only", "short", {"": "sum(quintlog_partitions_read_only)"}, True),
            Panel(
                "Damaged or lost", "short",
                {"": "sum(quintlog_damaged_batches_total) + sum(quintlog_lost_records_total)"}, True,
            ),
        ),
    ),
    (
        "Publishing and reading",
        (
            Panel("Records published", "cps", _rates("quintlog_records_published_total", "protocol")),
            Panel("Until acknowledged", "s", _quantiles("quintlog_publish_ack_seconds", "protocol")),
            Panel("Bytes published", "Bps", _rates("quintlog_published_bytes_total", "protocol")),
            Panel("Records delivered", "cps", _rates("quintlog_records_delivered_total", "protocol")),
            Panel("From commit to the socket", "s", _quantiles("quintlog_delivery_delay_seconds", "protocol")),
            Panel("Reads by where they were answered", "ops", _rates("quintlog_read_seconds_count", "source")),
        ),
    ),
    (
        "Disk",
        (
            Panel("Syncs", "s", _quantiles("quintlog_sync_seconds")),
            Panel("Commit rounds", "ops", _rates("quintlog_commit_rounds_total", "result")),
            Panel("Records of a round", "short", _quantiles("quintlog_round_records")),
            Panel(
                "Not yet on disk", "bytes",
                {"pending": "quintlog_pending_bytes", "bound": "quintlog_pending_limit_bytes"},
            ),
            Panel("Stored", "bytes", {"stored": "quintlog_stored_bytes", "free": "quintlog_disk_free_bytes"}),
            Panel("Removed by retention", "Bps", {"removed": "rate(quintlog_retention_deleted_bytes_total[RATE])"}),
        ),
    ),
    (
        "Consumers",
        (
            Panel("Lag of groups, in records", "short", _of_groups("quintlog_group_lag_records")),
            Panel("Lag of groups, in time", "s", _of_groups("quintlog_group_lag_seconds")),
            Panel("Furthest behind, in time", "s", {"{{protocol}}": "quintlog_subscription_lag_seconds_max"}),
            Panel("Furthest behind, in records", "short", {"{{protocol}}": "quintlog_subscription_lag_records_max"}),
            Panel("Delivered, not acknowledged", "short", {"{{protocol}}": "quintlog_unacked_records"}),
            Panel(
                "Delivered again, given up", "cps",
                {
                    "{{protocol}} again": "rate(quintlog_redeliveries_total[RATE])",
                    "{{protocol}} dead letters": "rate(quintlog_dead_letters_total[RATE])",
                },
            ),
        ),
    ),
    (
        "Connections and process",
        (
            Panel("Open connections", "short", {"{{protocol}}": "quintlog_connections"}),
            Panel("Connections ended", "cps", _rates("quintlog_connections_closed_total", "reason")),
            Panel("Not read: output or disk behind", "s", _rates("quintlog_backpressure_seconds_total", "protocol")),
            Panel("Event loop late", "s", _quantiles("quintlog_loop_lag_seconds")),
            Panel("CPU", "percentunit", {"cores": "rate(process_cpu_seconds_total[RATE])"}),
            Panel("Memory", "bytes", {"resident": "process_resident_memory_bytes"}),
        ),
    ),
)  # fmt: skip


def _bound(expression: str, metrics: tuple[str, ...] = ("quintlog_", "process_")) -> str:
    """The expression for the instance that the dashboard shows: every metric's name gets the selector after it."""
    found, word = [], ""
    for char in expression + " ":
        if char.isalnum() or char == "_":
            word += char
            continue
        job = TOPICS_JOB if word.startswith(OF_TOPICS) else JOB
        found.append(f'{word}{{job="{job}",instance=~"$instance"}}' if word.startswith(metrics) else word)
        word = ""
        found.append(char)
    return "".join(found)[:-1].replace("RATE", "$__rate_interval")


def _panel(panel: Panel, number: int, x: int, y: int, width: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": x, "y": y, "w": width, "h": STAT_HEIGHT if panel.is_stat else PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": source, "expr": _bound(query), "legendFormat": legend or "now"}
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it; data source and instance are chosen in it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        place = {"x": 0, "y": y, "w": GRID_COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "panels": []})
        y += 1
        across = 6 if row[0].is_stat else 3
        width, height = GRID_COLUMNS // across, STAT_HEIGHT if row[0].is_stat else PANEL_HEIGHT
        for at, panel in enumerate(row):
            top = y + at // across * height
            panels.append(_panel(panel, len(panels) + 1, at % across * width, top, width))
        y += -(-len(row) // across) * height
    instances = f'label_values(quintlog_ready{{job="{JOB}"}}, instance)'
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "instance", "type": "query", "query": instances, "refresh": 2, "multi": True, "includeAll": True,
            "datasource": {"type": "prometheus", "uid": "${datasource}"}, "label": "Server",
        },
    ]  # fmt: skip
    return {
        "uid": DASHBOARD_UID,
        "title": "Quintlog",
        "tags": ["quintlog"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
