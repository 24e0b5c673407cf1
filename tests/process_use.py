"""What a server's process has used, as the system counts it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from netserver.testing import ServerProcess


def rss_bytes(process: ServerProcess) -> int:
    """Resident memory of the server."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def cpu_seconds(process: ServerProcess) -> float:
    """Processor time that the server has used: what it has to do, however busy the machine is."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
