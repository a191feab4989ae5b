"""Requests that several families of cases use."""

from __future__ import annotations

from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from compat_tests.conform.apis import APIS
from compat_tests.conform.session import Session, Topic


def fetch_request(
    topic: Topic,
    offset: int = 0,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
) -> FetchRequest:
    """A fetch of one partition, with the topic's name and id; each version encodes one of them."""
    wanted = FetchPartition(
        partition=partition,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_fetched_epoch,
        partition_max_bytes=partition_max_bytes,
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=topic.name, topic_id=topic.id, partitions=[wanted])],
    )


def fetch_all(session: Session, topic: Topic) -> None:
    """Record what the partition now holds."""
    session.ask(fetch_request(topic), version=APIS["Fetch"].last, note="what the log holds")
