"""`check`: is the server well? For monitors and scripts; needs no token, only the admin address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import click

from tools.logtool.cli import Command, Settings
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.errors import Failure, Finding
from tools.logtool.lib.output import Column, behind_text, count_text

COLUMNS = (Column("check"), Column("ok", show=lambda ok: "ok" if ok else "FAILED"), Column("message"))
NAGIOS_OK, NAGIOS_CRITICAL = 0, 2
_EXPIRY = re.compile(r'quintlog_certificate_expires_in_seconds\{listener="(\w+)"\} (\S+)')
DAY_S = 86_400
YEAR_DAYS = 365.25
FAR_DAYS = 10_000
"""Above this nobody counts days: there are certificates until the year 9999."""
REMOTE_STALLED_S = 300.0
"""How long object storage may take nothing while something waits."""
_SAMPLE = re.compile(r"quintlog_(\w+)(?:\{[^}]*\})? (\S+)")


@dataclass(frozen=True, slots=True)
class Limits:
    """What is still well."""

    disk_free_percent: float
    sync_age_s: float
    lag_records: int | None
    certificate_days: float
    lag_s: float | None = None


def figures(text: str) -> dict[str, float]:
    """The samples of a metrics page by name, without the prefix; of several the largest."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is not None:
            found[match[1]] = max(found.get(match[1], float("-inf")), float(match[2]))
    return found


def expiry(text: str) -> tuple[str, float] | None:
    """The listener of a metrics page whose certificate expires first, and in how many days; None: none has one."""
    found = [(match[1], float(match[2]) / DAY_S) for match in map(_EXPIRY.fullmatch, text.splitlines()) if match]
    return min(found, key=lambda one: one[1], default=None)


def _certificate(first: tuple[str, float], least_days: float) -> dict[str, Any]:
    listener, days = first
    when = f"expires in {_span(days)}" if days > 0 else f"expired {_span(-days)} ago"
    hint = "" if days >= least_days else "; renew it (`logtool certificates make`), then SIGHUP"
    message = f"{listener}'s certificate {when} (least: {least_days:g}){hint}"
    return {"check": "certificates", "ok": days >= least_days, "message": message}


def _looked_at(unopened: int) -> dict[str, Any]:
    """What the figures that follow do not know of; a server opens a partition when somebody uses it."""
    message = "all partitions with records"
    if unopened:
        message = (
            f"all but {count_text(unopened, 'partition')} that nobody used since the start; `logtool verify` reads all"
        )
    return {"check": "looked at", "ok": True, "message": message}


def _remote(values: dict[str, float]) -> dict[str, Any]:
    """Object storage: a store that is away for a moment is no finding."""
    stalled_s = values.get("remote_stalled_seconds", 0.0)
    hint = "; `logtool status` says why"
    if values.get("remote_stopped"):
        return {"check": "remote", "ok": False, "message": f"nothing more is stored in object storage{hint}"}
    ok = stalled_s <= REMOTE_STALLED_S
    behind = behind_text(values.get("remote_lag_seconds", 0.0))
    stalled = f"object storage is {behind} behind, and nothing was stored for {behind_text(stalled_s)}{hint}"
    return {"check": "remote", "ok": ok, "message": f"object storage is {behind} behind" if ok else stalled}


def _span(days: float) -> str:
    return f"{days:.0f} days" if days < FAR_DAYS else f"{days / YEAR_DAYS:.0f} years"


def findings(values: dict[str, float], ready: str, limits: Limits) -> list[dict[str, Any]]:
    """Every check with its outcome.

    Args:
        values: see `figures`.
        ready: why the server is not ready; empty: it is.
    """

    def none(check: str, name: str, what: str) -> dict[str, Any]:
        count = int(values.get(name, 0))
        text, _, hint = what.partition("; ")
        return {"check": check, "ok": not count, "message": f"{count} {text}{f'; {hint}' if count and hint else ''}"}

    free = 100 * values.get("disk_free_bytes", 0) / max(values.get("disk_size_bytes", 0), 1)
    age_s = values.get("unsynced_age_seconds", 0.0)
    lag = int(values.get("subscription_lag_records_max", 0))
    items = [
        {"check": "ready", "ok": not ready, "message": ready or "ready"},
        {
            "check": "disk",
            "ok": free >= limits.disk_free_percent,
            "message": f"{free:.1f} % free (least: {limits.disk_free_percent:g} %)",
        },
        none("partitions", "partitions_read_only", "partitions take no records; `logtool topics show` says why"),
        _looked_at(int(values.get("partitions_unopened", 0))),
        none("damage", "damaged_batches_total", "damaged batches since the start; `logtool verify` names them"),
        none("lost", "lost_records_total", "committed records found missing; `logtool repair` shows them"),
        none("sync", "sync_failures_total", "failed syncs since the start; the log names the files"),
        none("housekeeping", "housekeeping_failing_topics", "partitions whose old segments cannot be removed"),
        {
            "check": "sync age",
            "ok": age_s <= limits.sync_age_s,
            "message": f"{age_s:.1f} s unsynced (most: {limits.sync_age_s:g} s)",
        },
        {
            "check": "reload",
            "ok": values.get("config_reload_success", 1) > 0,
            "message": "the last reload of the configuration "
            + ("was taken over" if values.get("config_reload_success", 1) > 0 else "failed; the log says why"),
        },
    ]
    if values.get("remote"):
        items.append(_remote(values))
    if limits.lag_records is not None:
        items.append(
            {
                "check": "lag",
                "ok": lag <= limits.lag_records,
                "message": f"{count_text(lag, 'record')} behind, the furthest (most: {limits.lag_records})",
            }
        )
    if limits.lag_s is not None:
        lag_s = values.get("subscription_lag_seconds_max", 0.0)
        items.append(
            {
                "check": "lag seconds",
                "ok": lag_s <= limits.lag_s,
                "message": f"{behind_text(lag_s)} behind, the furthest (most: {behind_text(limits.lag_s)})",
            }
        )
    return items


def _inspected(settings: Settings, limits: Limits) -> list[dict[str, Any]]:
    admin = need_admin(settings, "`logtool verify` checks the files without one")
    page = admin.text("/metrics")
    items, first = findings(figures(page), admin.not_ready_reason(), limits), expiry(page)
    return [*items, _certificate(first, limits.certificate_days)] if first is not None else items


@click.command(cls=Command)
@click.option("--disk-free", type=click.FloatRange(0, 100), default=5.0, metavar="PCT", help="Least free room; 5.")
@click.option("--sync-age", type=click.FloatRange(0), default=60.0, metavar="S", help="Oldest unsynced record; 60.")
@click.option("--lag", type=click.IntRange(0), metavar="N", help="Most records that a subscription may be behind.")
@click.option(
    "--lag-seconds",
    type=click.FloatRange(0),
    metavar="S",
    help="Most seconds that the oldest record may wait for a subscription.",
)
@click.option(
    "--certificate-days", type=click.FloatRange(0), default=14.0, metavar="N", help="Least days that all are valid; 14."
)
@click.option("--format", "template", type=click.Choice(["text", "nagios"]), default="text", help="nagios: its codes.")
@click.pass_obj
def check(
    settings: Settings,
    disk_free: float,
    sync_age: float,
    lag: int | None,
    lag_seconds: float | None,
    certificate_days: float,
    template: str,
) -> None:
    """Check that the server is well: exit code 0 when all is, 1 when something is not, 3 when nobody answers.

    Needs no token. With --format nagios it is one line, and the exit code 0 or 2 as monitors want it.
    """
    limits = Limits(disk_free, sync_age, lag, certificate_days, lag_seconds)
    if template == "nagios":
        try:
            items = _inspected(settings, limits)
        except Failure as failure:
            items = [{"check": "server", "ok": False, "message": str(failure)}]
        failed = [item["message"] for item in items if not item["ok"]]
        word = "CRITICAL" if failed else "OK"
        settings.output.write(f"QUINTLOG {word} - {'; '.join(failed) or f'{len(items)} checks'}\n".encode())
        settings.output.flush()
        raise click.exceptions.Exit(NAGIOS_CRITICAL if failed else NAGIOS_OK)
    items = _inspected(settings, limits)
    settings.output.items(COLUMNS, items)
    if not all(item["ok"] for item in items):
        raise Finding
