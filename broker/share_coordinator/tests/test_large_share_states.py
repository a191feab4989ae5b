"""WriteShareGroupState with very many state batches, as no leader sends it."""

from __future__ import annotations

from pathlib import Path

from barnabas.broker.share_coordinator.state import KEPT_MAX, WRITTEN_MAX
from barnabas.broker.tests.one_node import OneNode
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import initialize_share_group_state as initializing
from barnabas.wire.messages import read_share_group_state as reading
from barnabas.wire.messages import write_share_group_state as writing
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest


def isolated(first: int, count: int) -> list[writing.StateBatch]:
    return [writing.StateBatch(first + 2 * number, first + 2 * number, 2, 1) for number in range(count)]


def test_a_write_and_a_state_have_a_bounded_number_of_batches(tmp_path: Path) -> None:
    node = OneNode(f"log.dirs={tmp_path}", "share.coordinator.state.topic.num.partitions=1")
    topic_id = node.create("t")
    node.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=[f"g:{'A' * 22}:0"]))
    wanted = initializing.InitializeStateData(topic_id, [initializing.PartitionData(0, 0, 0)])
    node.ask(initializing.InitializeShareGroupStateRequest("g", [wanted]))

    def write(first: int, count: int) -> int:
        return send(isolated(first, count))

    def send(batches: list[writing.StateBatch]) -> int:
        data = writing.PartitionData(0, 0, 0, 0, 0, batches)
        request = writing.WriteShareGroupStateRequest("g", [writing.WriteStateData(topic_id, [data])])
        (result,) = node.ask(request).results[0].partitions
        return int(result.error_code)

    assert send([writing.StateBatch(0, (1 << 63) - 1, 2, 1)]) == E.INVALID_REQUEST, "nothing lies behind it"
    assert write(0, WRITTEN_MAX + 1) == E.UNKNOWN_SERVER_ERROR
    for first in range(0, KEPT_MAX, 4_000):
        assert write(2 * first, 4_000) == E.NONE
    assert write(2 * KEPT_MAX, 1) == E.UNKNOWN_SERVER_ERROR
    request = reading.ReadShareGroupStateRequest(
        "g", [reading.ReadStateData(topic_id, [reading.PartitionData(0, -1)])]
    )
    assert len(node.ask(request).results[0].partitions[0].state_batches) == KEPT_MAX
    node.node.stop()
