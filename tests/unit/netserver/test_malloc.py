"""Freed buffers are used again: by the number of page faults, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from netserver.malloc import keep_freed_buffers
assert keep_freed_buffers()
def churn(rounds):
    for _ in range(rounds):
        first, second = bytearray(256 << 10), bytearray(256 << 10)
        del first, second
churn(10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn(1000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_buffers_cost_no_page_faults() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1000, "of 128,000 if each buffer were fresh memory"
