"""Units for systemd: the service, which is kept from all that it does not need, and the sockets that outlive it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from netserver.config.sections import PROTOCOL_SECTIONS, ServerConfig
from tools.logtool.lib.limits import SYSTEMCTL_S

HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))
TMPS: Final = (Path("/tmp"), Path("/var/tmp"))
"""What a unit hides from its program, unless something of the unit lies there."""
NOTIFY_RELOAD_SINCE: Final = 253
SERVICE: Final = """[Unit]
Description=Quintlog log server
After=network-online.target
Wants=network-online.target

[Service]
{kind}
User={user}
ExecStart={program} --data-dir {data_dir}{config}
WatchdogSec=30
Restart=on-failure
RestartForceExitStatus=SIGHUP
RestartPreventExitStatus=2
TimeoutStartSec=15min
TimeoutStopSec=45
LimitNOFILE=65536
UMask=0027
ReadWritePaths={data_dir}
ProtectSystem=strict
ProtectHome={home}
PrivateTmp={tmp}
PrivateDevices=yes
DevicePolicy=closed
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
LockPersonality=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
SOCKETS: Final = """[Unit]
Description=Sockets of the Quintlog log server

[Socket]
{streams}
Backlog=1024
NoDelay=yes
BindIPv6Only=ipv6-only

[Install]
WantedBy=sockets.target
"""


def service_unit(program: Path, data_dir: Path, user: str, config_file: Path | None) -> tuple[str, list[str]]:
    """The service, and what there is to say about its paths."""
    paths = [program, data_dir, *([config_file.absolute()] if config_file is not None else [])]
    at_home, in_tmp = ([path for path in paths if _is_below(path, roots)] for roots in (HOMES, TMPS))
    notes = []
    if at_home:
        told = ", ".join(map(str, at_home))
        notes.append(
            f"{told}: homes are hidden from services, so this unit opens them (ProtectHome=read-only), and {user} has "
            "to be able to read there; a place outside of homes, such as /opt and /var/lib, is better"
        )
    if in_tmp:
        told = ", ".join(map(str, in_tmp))
        notes.append(
            f"{told}: this unit gets no /tmp of its own (PrivateTmp=no), and what is in /tmp may be cleaned up"
        )
    text = SERVICE.format(
        kind="Type=notify-reload" if _has_notify_reload() else "Type=notify\nExecReload=/bin/kill -HUP $MAINPID",
        user=user,
        program=program,
        data_dir=data_dir,
        home="read-only" if at_home else "yes",
        tmp="no" if in_tmp else "yes",
        config=f" --config {config_file.absolute()}" if config_file is not None else "",
    )
    return text, notes


def socket_unit(config: ServerConfig) -> str:
    """The sockets of all listeners, at the addresses of the configuration; a port 0 is the server's own affair."""
    streams = []
    for name in (*PROTOCOL_SECTIONS, "admin"):
        address = getattr(config, name).listen
        if address is not None and address.port:
            host = "127.0.0.1" if address.host == "localhost" else address.host
            where = f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
            streams.append(f"{'ListenDatagram' if name == 'fujin' else 'ListenStream'}={where}")
    return SOCKETS.format(streams="\n".join(streams))


def _is_below(path: Path, roots: tuple[Path, ...]) -> bool:
    return any(path.resolve().is_relative_to(root) or path.is_relative_to(root) for root in roots)


def _has_notify_reload() -> bool:
    """Whether the systemd of this machine reloads by SIGHUP itself, and waits for the outcome."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return False
    try:
        command = [systemctl, "--version"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=SYSTEMCTL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.match(r"systemd (\d+)", said.stdout)
    return version is not None and int(version[1]) >= NOTIFY_RELOAD_SINCE
