"""The verification of partitions with their transaction coordinator, with brokers that answer what the test says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from barnabas.broker.cluster.peer_client import SMALL_ANSWER_BYTES
from barnabas.broker.requests.large_requests import BODY_BYTES_MAX
from barnabas.broker.transactions.tests.scripted_brokers import Asked, ScriptedBrokers
from barnabas.broker.transactions.verification import (
    REQUEST_PARTITIONS_MAX,
    TIMES_REMEMBERED,
    AddPartitionsToTxnManager,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from barnabas.wire.registry import request_type, response_type
from compat_tests.virtual.runtime import VirtualRuntime

if TYPE_CHECKING:
    import msgspec

    from barnabas.broker.cluster.peer_client import Answered
    from barnabas.wire.message_type import MessageType

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


class World:
    """A manager, and scripted brokers."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.brokers = ScriptedBrokers()
        self.coordinators = {"x": 1, "y": 1, "z": 2}
        self.manager = AddPartitionsToTxnManager(
            self.runtime, self.brokers.ask, lambda name: self.coordinators.get(name, -1)
        )

    def verify(
        self, name: str, *partitions: tuple[str, int], epoch: int = 5, add: bool = False
    ) -> list[dict[tuple[str, int], ErrorCode]]:
        """Ask; the answer stands in the list once there is one."""
        answers: list[dict[tuple[str, int], ErrorCode]] = []
        self.manager.verify(name, 40, epoch, partitions, add=add, done=answers.append)
        return answers

    def requests(self) -> list[Asked]:
        self.runtime.run_until_idle()
        return self.brokers.take()


def answer(asked: Asked, **errors: ErrorCode) -> None:
    """Answer with NONE, or with the error of a partition: `a_0=error`."""
    asked.answer(
        AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transaction.transactional_id,
                    [
                        AddPartitionsToTxnTopicResult(
                            topic.name,
                            [
                                AddPartitionsToTxnPartitionResult(
                                    index, errors.get(f"{topic.name}_{index}", ErrorCode.NONE)
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in transaction.topics
                    ],
                )
                for transaction in asked.request.transactions
            ]
        )
    )


def encoded_bytes(kind: MessageType[Any], message: msgspec.Struct) -> int:
    return sum(map(len, kind.encode(5, message)))


def ids(asked: Asked) -> list[str]:
    return [transaction.transactional_id for transaction in asked.request.transactions]


def test_a_request_of_several_transactions() -> None:
    world = World()
    x, y, z = world.verify("x", B0, A1, A0), world.verify("y", A0, add=True), world.verify("z", A0)
    first, second = world.requests()
    assert (first.node_id, first.api_key, first.version, ids(first)) == (1, 24, 5, ["x", "y"])
    of_x, of_y = first.request.transactions
    assert (of_x.producer_id, of_x.producer_epoch, of_x.verify_only) == (40, 5, True)
    assert [(topic.name, topic.partitions) for topic in of_x.topics] == [("a", [0, 1]), ("b", [0])]
    assert of_y.verify_only is False
    assert (second.node_id, ids(second)) == (2, ["z"])
    answer(first, a_1=ErrorCode.TRANSACTION_ABORTABLE)
    answer(second)
    assert x == [{A0: ErrorCode.NONE, A1: ErrorCode.TRANSACTION_ABORTABLE, B0: ErrorCode.NONE}]
    assert y == z == [{A0: ErrorCode.NONE}]


def test_one_request_at_a_time_to_a_coordinator() -> None:
    world = World()
    world.verify("x", A0)
    [first] = world.requests()
    later = world.verify("x", A1), world.verify("y", A0)
    assert not world.requests()
    answer(first)
    [second] = world.requests()
    assert ids(second) == ["x", "y"]
    answer(second)
    assert later == ([{A1: ErrorCode.NONE}], [{A0: ErrorCode.NONE}])
    assert not world.requests()
    world.verify("y", A0)
    assert len(world.requests()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("id_bytes", [100, 32_767])
def test_a_request_and_its_answer_are_of_limited_size(id_bytes: int) -> None:
    world = World()
    names = [f"é{number:0>{id_bytes - 2}}" for number in range(4000)]
    world.coordinators = dict.fromkeys(names, 1)
    answers = [world.verify(name, (f"{name[-4:]:0>249}", 2**31 - 1)) for name in names]
    asked_ids: list[str] = []
    while requests := world.requests():
        [asked] = requests
        asked_ids += ids(asked)
        assert encoded_bytes(request_type(24), asked.request) < SMALL_ANSWER_BYTES < BODY_BYTES_MAX
        answered = asked.answered

        def received(response: Any, error: ErrorCode, answered: Answered = answered) -> None:
            assert encoded_bytes(response_type(24), response) < SMALL_ANSWER_BYTES
            answered(response, error)

        asked.answered = received
        answer(asked)
    assert asked_ids == names, "the oldest first"
    assert all(len(each) == 1 and set(each[0].values()) == {ErrorCode.NONE} for each in answers)


def test_a_large_question_has_a_request_of_its_own() -> None:
    world = World()
    large = [("a", index) for index in range(REQUEST_PARTITIONS_MAX + 1)]
    answers = world.verify("x", *large), world.verify("y", A0)
    for expected in (["x"], ["y"]):
        [asked] = world.requests()
        assert ids(asked) == expected
        answer(asked)
    assert [len(each[0]) for each in answers] == [len(large), 1]


def test_one_question_about_an_id_waits() -> None:
    world = World()
    replaced = world.verify("x", A0)
    same = world.verify("x", A1)
    assert replaced == [{A0: ErrorCode.NETWORK_EXCEPTION}]
    newer = world.verify("x", A0, epoch=6)
    assert same == [{A1: ErrorCode.INVALID_PRODUCER_EPOCH}]
    assert world.verify("x", A0, epoch=5) == [{A0: ErrorCode.INVALID_PRODUCER_EPOCH}]
    [asked] = world.requests()
    assert [each.producer_epoch for each in asked.request.transactions] == [6]
    answer(asked)
    assert newer == [{A0: ErrorCode.NONE}]


def test_errors_of_partitions() -> None:
    for error in (
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ):
        world = World()
        asked = world.verify("x", A0)
        answer(world.requests()[0], a_0=error)
        assert asked == [{A0: error}]
    world = World()
    asked = world.verify("x", A0)
    answer(world.requests()[0], a_0=ErrorCode.PRODUCER_FENCED)
    assert asked == [{A0: ErrorCode.INVALID_PRODUCER_EPOCH}]


def test_errors_of_requests() -> None:
    for error, expected in {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNSUPPORTED_VERSION: ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
    }.items():
        world = World()
        asked = world.verify("x", A0), world.verify("y", A1)
        world.requests()[0].answer(AddPartitionsToTxnResponse(error_code=error))
        assert asked == ([{A0: expected}], [{A1: expected}])


def test_a_request_without_an_answer() -> None:
    world = World()
    asked = world.verify("x", A0)
    world.requests()[0].fail(ErrorCode.NETWORK_EXCEPTION)
    assert asked == [{A0: ErrorCode.NETWORK_EXCEPTION}]
    world.verify("x", A0)
    assert len(world.requests()) == 1


def test_a_partition_that_is_missing_from_the_answer() -> None:
    world = World()
    asked = world.verify("x", A0)
    world.requests()[0].answer(AddPartitionsToTxnResponse())
    assert asked == [{A0: ErrorCode.NETWORK_EXCEPTION}]


def test_no_coordinator() -> None:
    world = World()
    assert world.verify("unknown", A0) == [{A0: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert not world.requests()


def test_a_coordinator_that_answers_at_once() -> None:
    """As this broker itself does: a question that follows each answer is asked in a later turn."""
    world = World()
    world.brokers.script = answer
    answers = []

    def next_one(answered: object) -> None:
        answers.append(answered)
        if len(answers) < 3000:
            world.manager.verify("x", 40, 5, [A0], add=True, done=next_one)

    next_one(None)
    world.runtime.run_until_idle()
    assert answers[1:] == [{A0: ErrorCode.NONE}] * 2999


def test_what_metrics_show() -> None:
    world = World()
    world.verify("x", A0, A1, B0)
    world.verify("y", A0)
    [asked] = world.requests()
    world.runtime.advance(0.25)
    answer(asked, a_1=ErrorCode.TRANSACTION_ABORTABLE)
    assert (world.manager.failures, list(world.manager.times_s)) == (1, [0.25, 0.25])
    world.verify("x", A0, A1)
    [asked] = world.requests()
    asked.fail(ErrorCode.NETWORK_EXCEPTION)
    assert (world.manager.failures, list(world.manager.times_s)) == (2, [0.25, 0.25, 0])
    for _ in range(TIMES_REMEMBERED):
        world.verify("x", A0)
        [asked] = world.requests()
        answer(asked)
    assert set(world.manager.times_s) == {0}
