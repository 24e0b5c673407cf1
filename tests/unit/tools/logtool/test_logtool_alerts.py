"""Each alert fires on what it is for, and not below that: Prometheus' own tool tries the rules on made-up series.

Needs `promtool` (Debian: prometheus).
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.logtool.lib.monitoring import LAG_RECORDS, alerts, alerts_text

PROMTOOL = shutil.which("promtool")
pytestmark = [pytest.mark.whole, pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")]
LABELS = {"job": "quintlog", "instance": "log:9180"}


@dataclass(frozen=True)
class Trial:
    """Series, a value a minute: with the first form the alert fires at the end, with the second it does not.

    Attributes:
        series: metric with further labels -> the two forms, in promtool's notation.
        at: when it is looked, after the time for which it has to last.
    """

    series: dict[str, tuple[str, str]]
    at: str


TRIALS = {
    "QuintlogDown": Trial({"up": ("0x5", "1x5")}, "3m"),
    "QuintlogNotReady": Trial({"quintlog_ready": ("0x5", "1x5")}, "3m"),
    "QuintlogPartitionsReadOnly": Trial({"quintlog_partitions_read_only": ("1x5", "0x5")}, "2m"),
    "QuintlogDamage": Trial(
        {"quintlog_damaged_batches_total": ("0x5", "0x5"), "quintlog_lost_records_total": ("7x5", "0x5")}, "1m"
    ),
    "QuintlogSyncFailed": Trial({"quintlog_sync_failures_total": ("0 0 1 1 1", "3 3 3 3 3")}, "4m"),
    "QuintlogDiskFull": Trial(
        {"quintlog_disk_free_bytes": ("4x9", "6x9"), "quintlog_disk_size_bytes": ("100x9", "100x9")}, "6m"
    ),
    "QuintlogDiskFillsUp": Trial(
        {
            "quintlog_disk_free_bytes": ("40-0.05x420", "40-0.01x420"),
            "quintlog_disk_size_bytes": ("100x420", "100x420"),
        },
        "7h",
    ),
    "QuintlogUnsynced": Trial({"quintlog_unsynced_age_seconds": ("61x5", "59x5")}, "2m"),
    "QuintlogSlowSyncs": Trial(
        {
            'quintlog_sync_seconds_bucket{le="0.25"}': ("0+9x20", "0+10x20"),
            'quintlog_sync_seconds_bucket{le="1"}': ("0+10x20", "0+10x20"),
            'quintlog_sync_seconds_bucket{le="+Inf"}': ("0+10x20", "0+10x20"),
        },
        "17m",
    ),
    "QuintlogPublishersHeldBack": Trial(
        {"quintlog_pending_bytes": ("91x9", "90x9"), "quintlog_pending_limit_bytes": ("100x9", "100x9")}, "6m"
    ),
    "QuintlogRetentionStuck": Trial({"quintlog_housekeeping_failing_topics": ("1x20", "0x20")}, "16m"),
    "QuintlogReloadFailed": Trial({"quintlog_config_reload_success": ("0x5", "1x5")}, "2m"),
    "QuintlogCertificateExpires": Trial(
        {"quintlog_certificate_expires_in_seconds": ("1209599x70", "1209601x70")}, "62m"
    ),
    "QuintlogSubscriptionBehind": Trial(
        {"quintlog_subscription_lag_records_max": (f"{LAG_RECORDS + 1}x20", f"{LAG_RECORDS}x20")}, "16m"
    ),
    "QuintlogSubscriptionOvertaken": Trial({"quintlog_subscription_records_lost_total": ("0 5 5 5", "5 5 5 5")}, "3m"),
    "QuintlogFewDescriptors": Trial(
        {"process_open_fds": ("91x9", "90x9"), "process_max_fds": ("100x9", "100x9")}, "6m"
    ),
}


def labelled(metric: str) -> str:
    name, _, more = metric.partition("{")
    own = ",".join(f'{label}="{value}"' for label, value in LABELS.items())
    return f"{name}{{{own}{',' + more if more else '}'}"


def trial_of(name: str, at: int) -> dict[str, Any]:
    """One test of promtool; ``at``: 0 what fires, 1 what does not."""
    trial = TRIALS[name]
    (alert,) = [one for one in alerts() if one.name == name]
    fires = {
        "exp_labels": {**LABELS, "severity": alert.severity},
        "exp_annotations": {"summary": f"log:9180: {alert.summary}", "description": alert.action},
    }
    return {
        "interval": "1m",
        "name": f"{name} {('fires', 'does not fire')[at]}",
        "input_series": [{"series": labelled(key), "values": values[at]} for key, values in trial.series.items()],
        "alert_rule_test": [{"eval_time": trial.at, "alertname": name, "exp_alerts": [] if at else [fires]}],
    }


def test_each_alert_fires_on_what_it_is_for_and_not_below(tmp_path: Path) -> None:
    assert set(TRIALS) == {alert.name for alert in alerts()}
    (tmp_path / "alerts.yml").write_text(alerts_text())
    tests = [trial_of(name, at) for name in TRIALS for at in (0, 1)]
    (tmp_path / "trials.yml").write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests}))
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "trials.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
