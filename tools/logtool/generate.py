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
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.monitoring import LAG_RECORDS, alerts_text, dashboard, scrape_text

HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
TMPS = (Path("/tmp"), Path("/var/tmp"))
"""What a unit hides from its program, unless something of the unit lies there."""
UNIT = """[Unit]
Description=Quintlog log server
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
User={user}
ExecStart={program} --data-dir {data_dir}{config}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartForceExitStatus=SIGHUP
RestartPreventExitStatus=2
TimeoutStopSec=30
LimitNOFILE=65536
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome={home}
PrivateTmp={tmp}
ReadWritePaths={data_dir}

[Install]
WantedBy=multi-user.target
"""


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
    beside = Path(sys.argv[0]).absolute().parent / "engine-server"
    program = beside if beside.exists() else shutil.which("engine-server") or "/usr/local/bin/engine-server"
    data_dir = settings.data_dir.absolute() if settings.data_dir is not None else Path("/var/lib/quintlog")
    paths = [path.resolve() for path in (Path(program), data_dir, *([Path(config_file)] if config_file else []))]
    at_home, in_tmp = (any(path.is_relative_to(root) for path in paths for root in roots) for roots in (HOMES, TMPS))
    if at_home:
        settings.output.note(f"logtool: {user} has to be able to read {program}; a place outside of homes is better")
    text = UNIT.format(
        user=user,
        program=program,
        data_dir=data_dir,
        home="read-only" if at_home else "yes",
        tmp="no" if in_tmp else "yes",
        config=f" --config {Path(config_file).absolute()}" if config_file else "",
    )
    settings.output.write(text.encode())


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
