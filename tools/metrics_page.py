"""Makes ``docs/metrics.md`` from what a server is scraped for: ``python -m tools.metrics_page >docs/metrics.md``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence

from prometheus_client import Metric

from netserver.admin.metrics import ServerCollector, TopicCollector
from netserver.testing import running

INTRODUCTION = """# Metrics

What `/metrics` of the admin listener says, made from the server itself (`make docs`). Counters begin at 0 with each
start. A histogram `x` is scraped as `x_bucket` (cumulative, by `le`), `x_sum` and `x_count`. Besides these there are
`process_...` of the Prometheus client. No name has a label with a topic: there may be 100,000. `generate alerts`
and `generate grafana` of logtool know which ones matter; [operating.md](operating.md#watch-it) says how to use them.
"""
TOPICS = """
## /metrics/topics

Of the partitions in use of at most 1,000 topics; `?topic=GLOB` chooses some, `?family=NAME` some of the families. What
goes beyond is summed as `topic="_other"`. Lag is that of the 1,000 oldest groups (durable positions of BlipMQ, Fujin,
HTTP and Kafka by name); what waits for others is summed as `group="_other"`.

"""
HEADING = "| name | kind | labels | |\n|---|---|---|---|\n"


def rows(families: Iterable[Metric]) -> str:
    """A line of the table for each family."""
    lines = []
    for family in families:
        labels: Sequence[str] = vars(family).get("_labelnames", ())
        name = family.name + ("_total" if family.type == "counter" else "")
        named = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {family.type} | {named} | {family.documentation} |\n")
    return "".join(lines)


async def page() -> str:
    """The whole page. Starts a server on a temporary directory and free ports."""
    async with running() as server:
        own = rows(ServerCollector(server).collect())
    return f"{INTRODUCTION}\n{HEADING}{own}{TOPICS}{HEADING}{rows(TopicCollector([], 0, ()).collect())}"


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(page()))
