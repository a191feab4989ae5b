"""Generates the tables of docs/metrics.md: every metric that a node with everything on has, our alerts, public dashboards.

`python -m compat_tests.monitoring.metrics_doc` writes them into docs/metrics.md of the working directory; tests compare them.
"""

from __future__ import annotations

import re
from pathlib import Path

from barnabas.broker.metrics.controller import balancer_metrics
from barnabas.broker.metrics.families import Family
from barnabas.broker.metrics.process import EventLoopLag
from barnabas.broker.metrics.requests import RequestWindow
from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.virtual_client import Client
from barnabas.controller.balancer.balancer import Balancer
from barnabas.controller.balancer.load_reports import LoadReport
from barnabas.controller.metadata.image import quota_record
from barnabas.nats.metrics import nats_metrics
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.metadata_records import ConfigRecord
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from compat_tests.monitoring.dashboards import load
from compat_tests.monitoring.rules import ALERTS, rules_of

PAGE = Path("docs/metrics.md")
OFFSET_COMMIT, INIT_PRODUCER_ID = 8, 22
SETTINGS = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
    "barnabas_metrics_listener": "127.0.0.1:0",
    "transaction_state_log_num_partitions": "1",
    "remote_log_storage_system_enable": "true",
    "rsm_config_url": "memory://metrics",
}


def families() -> list[Family]:
    """All of a node that uses everything, with samples where it needs no NATS, in the order of the page."""
    leader = Leader("/d", MemoryDisk(), **SETTINGS)
    leader.create(replicas=[1])
    for name in ("__consumer_offsets", "__transaction_state"):
        leader.create(replicas=[1], name=name, topic_id=name.encode()[:16], partitions=1)
    leader.commit(
        quota_record((("user", "ANONYMOUS"),), "producer_byte_rate", 1e9),
        quota_record((("ip", None),), "connection_creation_rate", 1e3),
    )
    client = Client(leader)
    client.send(client.produce("a", acks=1))
    client.send(client.fetch(offset=99))
    position = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = OffsetCommitRequestTopic("t", partitions=[position])
    leader.ask(OFFSET_COMMIT, 8, OffsetCommitRequest(group_id="g", topics=[topic]))
    leader.ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest("t", 1000))
    leader.runtime.advance(1)
    leader.node.services.add_partitions_to_txn.times_s.append(0.001)
    leader.node.services.partitions.rules.hedge.hedges[2] += 1
    window = RequestWindow(leader.runtime, leader.node._dispatcher.metrics)
    sources = leader.node._metric_sources(EventLoopLag(leader.runtime), window)
    assert sources is not None
    found = [family for source in sources for family in source() if family is not None]
    return [*found, *balancer_metrics(_planning(leader)), *nats_metrics([], [], 0)]


def _planning(leader: Leader) -> Balancer:
    """The balancer of an active controller that has a load report."""
    leader.commit(ConfigRecord(4, "", "barnabas.balancer", "plan"))
    balancer = Balancer(leader.node.services.controller, leader.node.services.config, leader.runtime)
    balancer.start()
    balancer.receive(1, LoadReport([], 0, 0, 0, 0, 0))
    return balancer


def metrics_table() -> str:
    """Markdown, a row for each metric."""
    rows = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    for family in families():
        labels = {name: None for written, _ in family.samples for name in re.findall(r'(\w+)="', written)}
        rows.append(f"| `{family.name}` | {family.kind} | {', '.join(labels)} | {family.help} |")
    return "\n".join(rows)


def alerts_table() -> str:
    """Markdown, a row for each alert."""
    rows = ["| alert | when | for |", "|---|---|---|"]
    for rule in rules_of(ALERTS):
        if rule.kind == "alert":
            rows.append(f"| {rule.name} | `{rule.expression}` | {rule.lasts} |")
    return "\n".join(rows)


def dashboards_table() -> str:
    """Markdown, a row for each public dashboard, and the sums."""
    rows = ["| dashboard | queries | find their metrics | with other-names.yml |", "|---|---|---|---|"]
    found = [
        (
            f"[{each.name}](https://github.com/{each.repository}/blob/{each.commit}/{each.path})",
            len(each.queries),
            *each.answered,
        )
        for each in load().all
    ]
    sums = [sum(column) for column in zip(*(row[1:] for row in found), strict=True)]
    for row in (*found, ("all", *sums)):
        rows.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(rows)


TABLES = {"metrics": metrics_table, "alerts": alerts_table, "dashboards": dashboards_table}


def with_tables(text: str) -> str:
    """`text` of docs/metrics.md with what stands between the markers replaced."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table()}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
