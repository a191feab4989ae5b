"""What a test broker holds, is given and is made to forget."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from barnabas import __version__
from barnabas.testing.contents import ClientMetric
from barnabas.testing.control import messages as m
from barnabas.testing.control.table import route

SNAPSHOTS_MAX: Final = 100

if TYPE_CHECKING:
    from barnabas.testing.contents import StoredRecord
    from barnabas.testing.control.control import Control
    from barnabas.testing.steering.transactions import TransactionInfo


@route("GET", "/openapi.json", "This description.", answer=dict[str, Any])
def describe(control: Control) -> dict[str, Any]:
    from barnabas.testing.control.openapi import description

    return description(control.url)


@route("GET", "/status", "Where the broker is, and how its nodes are.", answer=m.Status)
def status(control: Control) -> m.Status:
    broker = control.broker
    return m.Status(
        version=__version__,
        as_version=broker.as_version,
        bootstrap_servers=broker.bootstrap_servers,
        schema_registry_url=control.schema_registry_url,
        nodes=[
            m.NodeStatus(node.node_id, node.port, node.is_running, node.runtime.is_paused)
            for node in broker.nodes
        ],
        time_ms=broker.clock.time_ms(),
    )


@route("POST", "/reset", "No topics, groups, schemas, rules, latency or recorded requests any more.")
def reset(control: Control) -> None:
    control.broker.faults.reset()
    control.links.clear()
    control.broker.reset()


@route("POST", "/snapshots", "Keep all that the broker holds now.", answer=m.Snapshot)
def take_snapshot(control: Control) -> m.Snapshot:
    if len(control.snapshots) >= SNAPSHOTS_MAX:
        raise ValueError(f"{SNAPSHOTS_MAX} snapshots are kept already: DELETE /snapshots/{{id}} forgets one")
    number = control.number()
    control.snapshots[number] = control.broker.snapshot()
    return m.Snapshot(number)


@route("POST", "/snapshots/{snapshot}/restore", "Hold what was held then.")
def restore_snapshot(control: Control, snapshot: str) -> None:
    """Clients are disconnected."""
    control.broker.restore(_snapshot(control, snapshot))


@route("DELETE", "/snapshots/{snapshot}", "Forget it.")
def drop_snapshot(control: Control, snapshot: str) -> None:
    _snapshot(control, snapshot)
    del control.snapshots[int(snapshot)]


def _snapshot(control: Control, snapshot: str) -> Any:
    found = control.snapshots.get(int(snapshot))
    if found is None:
        raise LookupError(f"there is no snapshot {snapshot}")
    return found


@route("GET", "/topics", "Topics, with the number of their partitions.", answer=dict[str, int])
def topics(control: Control) -> dict[str, int]:
    return control.broker.topics()


@route("POST", "/topics", "Make a topic, ready to be written to.", body=m.NewTopic)
def create_topic(control: Control, body: m.NewTopic) -> None:
    control.broker.create_topic(
        body.name, body.partitions, replication_factor=body.replication_factor, configs=body.configs
    )


@route("DELETE", "/topics/{topic}", "Delete a topic, if there is one.")
def delete_topic(control: Control, topic: str) -> None:
    control.broker.delete_topics(topic)


@route(
    "GET",
    "/topics/{topic}/config",
    "Every config of a topic with the value that counts.",
    answer=dict[str, str],
)
def topic_config(control: Control, topic: str) -> dict[str, str]:
    return control.broker.effective_config(topic)


@route(
    "GET",
    "/topics/{topic}/records",
    "What consumers may read.",
    query=m.RecordsQuery,
    answer=list[m.JsonRecord],
)
def records(control: Control, topic: str, query: m.RecordsQuery) -> list[m.JsonRecord]:
    return [
        _json_record(each)
        for each in control.broker.records(topic, query.partition, isolation_level=query.isolation_level)
    ]


@route(
    "POST",
    "/topics/{topic}/records",
    "Append records; a topic that does not exist is made.",
    body=list[m.NewRecord],
)
def seed(control: Control, topic: str, body: list[m.NewRecord]) -> None:
    control.broker.seed(topic, [each.seed() for each in body])


def _json_record(record: StoredRecord) -> m.JsonRecord:
    value, value_base64 = _text(record.value)
    key, key_base64 = _text(record.key)
    return m.JsonRecord(
        value=value,
        value_base64=value_base64,
        key=key,
        key_base64=key_base64,
        headers=[
            (name, None if each is None else each.decode(errors="replace")) for name, each in record.headers
        ],
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
    )


def _text(data: bytes | None) -> tuple[str | None, str | None]:
    """(text, None), or (None, base64) of what is no text."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


@route("GET", "/groups", "The groups.", answer=list[str])
def groups(control: Control) -> list[str]:
    return control.broker.groups()


@route("GET", "/client-metrics", "What clients have pushed of their own metrics.", answer=list[ClientMetric])
def client_metrics(control: Control) -> list[ClientMetric]:
    return control.broker.client_metrics()


@route("GET", "/groups/{group}", "A group's state, members and committed offsets.", answer=m.GroupStatus)
def group(control: Control, group: str) -> m.GroupStatus:
    found = control.broker.group(group)
    if found is None:
        raise LookupError(f"there is no group {group!r}")
    return m.GroupStatus(
        id=found.name,
        state=found.state,
        members=[each.member_id for each in found.members],
        offsets=[(topic, partition, offset) for (topic, partition), offset in sorted(found.offsets.items())],
        type=found.group_type,
        epoch=found.generation_id,
        assigned=[
            (member.member_id, topic, partition)
            for member in found.members
            for topic, partition in sorted(member.partitions)
        ],
        share_partitions=[
            m.SharePartitionStatus(
                topic,
                partition,
                each.start_offset,
                [
                    (run.first, run.last, run.state, run.delivery_count, run.member_id)
                    for run in each.in_flight
                ],
            )
            for (topic, partition), each in found.share_partitions.items()
        ],
    )


@route("GET", "/transactions", "The transactional ids.", answer=list[m.TransactionStatus])
def transactions(control: Control) -> list[m.TransactionStatus]:
    return [_transaction_status(each) for each in control.broker.transactions]


@route("GET", "/transactions/{transactional_id}", "What a transactional id does.", answer=m.TransactionStatus)
def transaction(control: Control, transactional_id: str) -> m.TransactionStatus:
    found = control.broker.transactions.get(transactional_id)
    if found is None:
        raise LookupError(f"there is no transactional id {transactional_id!r}")
    return _transaction_status(found)


def _transaction_status(found: TransactionInfo) -> m.TransactionStatus:
    return m.TransactionStatus(
        transactional_id=found.transactional_id,
        state=found.state,
        is_open=found.is_open,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.timeout_ms,
        partitions=list(found.partitions),
        start_ms=found.start_ms,
        coordinator=found.coordinator,
    )
