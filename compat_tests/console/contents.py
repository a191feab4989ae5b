"""What the console has to show in tests and pictures: records of several kinds, groups, and what would run if it were not text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from compat_tests.harness.eventually import eventually

if TYPE_CHECKING:
    from barnabas.testing import Broker

OFFSET_COMMIT, FIND_COORDINATOR, CONSUMER_GROUP_HEARTBEAT = 8, 10, 68
HOSTILE: Final = (
    b"<img src=x onerror=hit()>",
    b"<script>hit()</script>",
    b"\"'><svg onload=hit()>",
    b"javascript:hit()",
    "left\u202eright\u0000end".encode(),
    b"\xff\xfe\x00\x80 not UTF-8 <img src=x onerror=hit()>",
    b'{"n": 12345678901234567890}',
    b'{"__proto__": {"x": 1}, "html": "<img src=x onerror=hit()>"}',
    b"[" * 5000,
    b"",
)
LARGE: Final = b"<b>" + b"x" * 999_997


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    """Commits an offset of partition 0 as a program without membership does."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    )

    def is_committed() -> bool:
        answer = coordinator(broker, group).ask(OFFSET_COMMIT, 8, request)
        return not answer.topics[0].partitions[0].error_code

    eventually(is_committed)


def coordinator(broker: Broker, group: str) -> RawClient:
    """A connection to the group's coordinator, or to any node while there is none."""
    any_node = RawClient(broker.nodes[0].port)
    found = any_node.ask(FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[group])).coordinators[
        0
    ]
    return any_node if found.error_code else RawClient(found.port)


def lively(broker: Broker) -> None:
    """A topic `orders` with 60 records, and groups that read it; `billing` has a member and lags by 10."""
    broker.create_topic("orders", partitions=1, configs={"retention.ms": "604800000"})
    broker.create_topic("payments", partitions=6)
    orders = [
        {
            "key": f"c-{number % 7}",
            "value": json.dumps(
                {"order": 1000 + number, "customer": f"c-{number % 7}", "total": number * 7.5}
            ),
            "headers": [("trace", b"\x00\xc3\x28%d" % number), ("type", b"order")],
        }
        for number in range(60)
    ]
    broker.seed("orders", orders)
    broker.seed("payments", [b"%d" % number for number in range(40)])
    commit(broker, "billing", "orders", 50)
    commit(broker, "reports", "orders", 12)
    coordinator(broker, "billing").ask(
        CONSUMER_GROUP_HEARTBEAT,
        1,
        ConsumerGroupHeartbeatRequest(
            group_id="billing",
            member_id="Ds9iS0hJT5eVd0Zb1qkxIg",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["orders"],
            topic_partitions=[],
        ),
    )
