"""`certificates`: a private authority, certificates of it for servers and clients, and what is in such files."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import click

from tools.logtool.check import FAR_DAYS
from tools.logtool.cli import Group, Settings
from tools.logtool.lib.errors import Finding
from tools.logtool.lib.output import Column

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
EXPIRES_SOON_DAYS = 30
COLUMNS = (
    Column("file"),
    Column("subject"),
    Column("issuer"),
    Column("names", show=lambda names: " ".join(names) or "-"),
    Column("valid_until", "VALID UNTIL"),
    Column("days", show=lambda days: str(days) if days < FAR_DAYS else f"> {FAR_DAYS}"),
    Column("fingerprint"),
)


@click.group(cls=Group)
def certificates() -> None:
    """A private authority: make certificates for servers and clients, and show what is in such files.

    \b
    logtool certificates make server --host logs.example.com
    logtool certificates make client billing
    """


@certificates.command()
@click.argument("kind", type=click.Choice(["server", "client"]))
@click.argument("name", required=False)
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Name or address in it; may be repeated.")
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False), default=Path("certificates"),
              metavar="DIR", help="Where the authority is, or will be; certificates.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3650), default=397, metavar="N", help="How long it is valid; 397.")
@click.pass_obj
def make(settings: Settings, kind: Any, name: str | None, hosts: tuple[str, ...], directory: Path, days: int) -> None:
    """Make a certificate and its key, NAME.pem and NAME.key; the authority, ca.pem and ca.key, is made when missing.

    A certificate of the same name is replaced: that renews it, with the same names where no --host is given, and a
    server takes the new one at the next SIGHUP. A new server's has this machine's name, localhost, 127.0.0.1 and ::1 in
    it beside each --host. The authority is valid for
    10 years; its key is what has to be kept: whoever has it can be anybody.
    """
    from tools.logtool.lib.authority import issue, make_authority, names_of, read_certificate

    name = name or kind
    if not NAME.fullmatch(name) or name == "ca":
        raise click.UsageError("NAME is a letter or digit, then up to 63 of A-Z a-z 0-9 . _ -, and not ca")
    old = directory / f"{name}.pem"
    if not hosts and old.exists():
        hosts = tuple(names_of(read_certificate(old)))
    elif kind == "server":
        hosts = tuple(dict.fromkeys((*hosts, *filter(str.isascii, [socket.gethostname()]), *LOCAL_HOSTS)))
    if make_authority(directory):
        settings.output.note(
            f"made an authority in {directory}; keep {directory / 'ca.key'} where nobody else reads it"
        )
    made = issue(directory, kind, name, hosts, days)
    item = {"certificate": str(made.certificate), "key": str(made.key), "ca": str(directory / "ca.pem"),
            "names": " ".join(made.names) or name, "valid_until": f"{made.not_after:%Y-%m-%d}"}  # fmt: skip
    settings.output.fields(item)
    if kind == "server":
        settings.output.note("in a listener's section: tls_certificate and tls_key; with tls_client_ca = ca.pem, too")
    else:
        settings.output.note("clients: ca=, cert= and key=; logtool: --ca, --cert and --key, or QUINTLOG_CA and so on")


@certificates.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_obj
def show(settings: Settings, files: tuple[Path, ...]) -> None:
    """Show whose certificates they are, of whom, for which hosts, until when; exit code 1 when one is not valid now."""
    from cryptography.hazmat.primitives import hashes

    from tools.logtool.lib.authority import names_of, now, read_certificate

    items, present = [], now()
    for path in files:
        found = read_certificate(path)
        items.append(
            {
                "file": str(path),
                "subject": found.subject.rfc4514_string(),
                "issuer": found.issuer.rfc4514_string(),
                "names": names_of(found),
                "valid_from": f"{found.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}",
                "valid_until": f"{found.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
                "days": (found.not_valid_after_utc - present).days,
                "fingerprint": found.fingerprint(hashes.SHA256()).hex(":").upper(),
                "valid": found.not_valid_before_utc <= present <= found.not_valid_after_utc,
            }
        )
    settings.output.items(COLUMNS, items)
    for item in items:
        if item["valid"] and int(str(item["days"])) < EXPIRES_SOON_DAYS:
            settings.output.note(f"{item['file']} expires in {item['days']} days: `certificates make` renews it")
    if not all(item["valid"] for item in items):
        raise Finding
