"""`generate`: completion of shells, a unit for systemd, manual pages, files for Prometheus and Grafana."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click
from click.shell_completion import get_completion_class

from tools.logtool.cli import COMPLETION_VARIABLE, Group, Settings, root
from tools.logtool.config import loaded
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.monitoring import LAG_RECORDS, alerts_text, dashboard, scrape_text
from tools.logtool.lib.units import service_unit, socket_unit


@click.group(cls=Group)
def generate() -> None:
    """Print files for other programs: shells, systemd, man, Prometheus, Grafana."""


@generate.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(settings: Settings, shell: str) -> None:
    """Print the script that lets a shell complete commands and options."""
    kind = get_completion_class(shell)
    assert kind is not None
    settings.output.write(kind(root, {}, "logtool", COMPLETION_VARIABLE).source().encode() + b"\n")


@generate.command()
@click.option("--user", default="quintlog", metavar="NAME", help="The service's account; quintlog.")
@click.option("--config", "config_file", metavar="FILE", help="The server's configuration file.")
@click.pass_obj
def systemd(settings: Settings, user: str, config_file: str | None) -> None:
    """Print a unit for systemd that runs the server on --data-dir (else /var/lib/quintlog).

    \b
    sudo useradd --system quintlog && sudo install -d -o quintlog /var/lib/quintlog
    logtool generate systemd | sudo tee /etc/systemd/system/quintlog.service
    sudo systemctl enable --now quintlog
    """
    text, notes = service_unit(_program(), _data_dir(settings), user, Path(config_file) if config_file else None)
    for note in notes:
        settings.output.note(f"logtool: {note}")
    settings.output.write(text.encode())


@generate.command("systemd-socket")
@click.option("--config", "config_file", metavar="FILE", help="The server's configuration file.")
@click.pass_obj
def systemd_socket(settings: Settings, config_file: str | None) -> None:
    """Print a unit for systemd that holds the listening sockets of the service, so that a restart refuses nobody.

    Who connects while the server restarts waits in the sockets. They are at the addresses of the configuration.

    \b
    logtool generate systemd-socket | sudo tee /etc/systemd/system/quintlog.socket
    sudo systemctl enable --now quintlog.socket
    """
    found = loaded(settings, Path(config_file) if config_file else None)
    settings.output.write(socket_unit(found).encode())


def _program() -> Path:
    beside = Path(sys.argv[0]).absolute().parent / "engine-server"
    return beside if beside.exists() else Path(shutil.which("engine-server") or "/usr/local/bin/engine-server")


def _data_dir(settings: Settings) -> Path:
    return settings.data_dir.absolute() if settings.data_dir is not None else Path("/var/lib/quintlog")


@generate.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.pass_obj
def man(settings: Settings, directory: Path) -> None:
    """Write manual pages of every command, of the server and of its settings below DIR, as man looks for them.

    \b
    logtool generate man ~/.local/share/man && man logtool-cat
    """
    from tools.logtool.lib.manpages import write

    if str(directory) == "-":
        raise click.UsageError("this makes several files: name a directory for them")
    settings.output.note(f"{len(write(directory))} pages")


@generate.command()
@click.pass_obj
def prometheus(settings: Settings) -> None:
    """Print a configuration for Prometheus that scrapes the server: that of --server, or of --data-dir while it runs.

    \b
    logtool generate prometheus >prometheus.yml
    logtool generate alerts >quintlog-alerts.yml
    """
    settings.find_address()
    settings.output.write(scrape_text(urlsplit(need_admin(settings).url).netloc).encode())


@generate.command()
@click.option(
    "--lag",
    type=click.IntRange(0),
    default=LAG_RECORDS,
    metavar="N",
    help=f"Most records that a subscription may be behind; {LAG_RECORDS}.",
)
@click.pass_obj
def alerts(settings: Settings, lag: int) -> None:
    """Print rules for Prometheus: what to be woken by, and what to do then."""
    settings.output.write(alerts_text(lag).encode())


@generate.command()
@click.pass_obj
def grafana(settings: Settings) -> None:
    """Print a dashboard to import into Grafana; the data source and the servers are chosen in it."""
    settings.output.write(json.dumps(dashboard(), indent=1).encode() + b"\n")
