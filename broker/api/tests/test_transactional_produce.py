"""Transactional batches: what the transaction coordinator is asked before they are appended, and what its answers come to.

The coordinator is scripted. Expected errors and texts are Apache Kafka 4.3.1's answers to the same requests.
"""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.api import produce as produce_api
from barnabas.broker.requests.context import CLOSE_CONNECTION, NO_RESPONSE, RawResponse
from barnabas.broker.tests.leader import TIME, TOPIC_ID, Leader
from barnabas.broker.tests.reply import Reply
from barnabas.broker.tests.virtual_client import Client
from barnabas.broker.transactions.tests.scripted_brokers import Asked, ScriptedBrokers
from barnabas.broker.transactions.verification import AddPartitionsToTxnManager
from barnabas.storage.log import verification
from barnabas.storage.log.log_config import LogConfig
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from barnabas.wire.messages.produce import (
    PRODUCE_RESPONSE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.wire.records import Record, build_batch

PRODUCER, EPOCH = 40, 5
VERIFIED, ADDS = 11, 12  # versions of Produce
COORDINATOR = 9
UNABLE = "Unable to verify the partition has been added to the transaction. Underlying error: "


class World:
    """A leader of the partitions of "t", whose transaction coordinator the test plays."""

    def __init__(self, partitions: int = 3, **properties: str) -> None:
        self.leader = Leader("/d", MemoryDisk(), **properties)
        self.leader.create(replicas=[1], partitions=partitions)
        self.runtime = self.leader.runtime
        self.coordinator = ScriptedBrokers()
        self.coordinator_id = COORDINATOR
        self.leader.node.services.add_partitions_to_txn = AddPartitionsToTxnManager(
            self.runtime, self.coordinator.ask, lambda _: self.coordinator_id
        )

    def request(self, *parts: tuple[int, bytes], acks: int = -1, name: str | None = "id") -> ProduceRequest:
        data = [PartitionProduceData(index, memoryview(bytearray(records))) for index, records in parts]
        return ProduceRequest(name, acks, 30_000, [TopicProduceData("t", TOPIC_ID, data)])

    def produce(self, *parts: tuple[int, bytes], version: int = ADDS, **fields: Any) -> Reply:
        reply = self.leader.ask(0, version, self.request(*parts, **fields))
        self.leader.run()
        return reply

    def asked(self) -> Asked:
        """The one question that has no answer yet."""
        self.leader.run()
        [asked] = self.coordinator.take()
        return asked

    def answer(self, asked: Asked, error: E = E.NONE, **errors: E) -> None:
        """The error of each partition, or of partition 1 as `t_1`."""
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
                                        index, errors.get(f"{topic.name}_{index}", error)
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
        self.leader.run()

    def ends(self) -> list[int]:
        return [self.leader.partition(index).log.log_end_offset for index in range(3)]

    def end(self, index: int = 0, epoch: int = EPOCH) -> None:
        """The coordinator ends the transaction."""
        results: list[E] = []
        self.leader.partition(index).append_marker(
            PRODUCER, epoch, commit=True, coordinator_epoch=0, transaction_version=0, done=results.append
        )
        assert results == [E.NONE]


@pytest.fixture
def world() -> World:
    return World()


def batch(
    sequence: int = 0,
    *,
    count: int = 1,
    producer: int = PRODUCER,
    epoch: int = EPOCH,
    transactional: bool = True,
    codec: Codec = Codec.NONE,
) -> bytes:
    return build_batch(
        [Record(at, TIME, b"k", b"v") for at in range(count)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        codec=codec,
    )


def plain() -> bytes:
    return build_batch([Record(0, TIME, b"k", b"v")])


def answers(reply: Reply) -> list[tuple[int, E, int]]:
    """(partition, error, base offset) of each."""
    assert reply.answer is not None, "it has not been answered"
    answer = reply.answer
    if isinstance(answer, RawResponse):  # of a large request
        answer, _ = PRODUCE_RESPONSE.decode(ADDS, answer.body)
    [topic] = answer.responses
    return [(one.index, E.of(one.error_code), one.base_offset) for one in topic.partition_responses]


def refusal(reply: Reply) -> tuple[E, str | None]:
    """Of the only partition."""
    [one] = reply.answer.responses[0].partition_responses
    assert (one.base_offset, one.log_start_offset, one.log_append_time_ms) == (-1, -1, -1)
    return E.of(one.error_code), one.error_message


@pytest.mark.parametrize("version", [3, 10, 11, 12, 13])
def test_the_first_batch_of_a_transaction_is_verified(world: World, version: int) -> None:
    first = world.produce((0, batch()), version=version)
    assert not first.done
    asked = world.asked()
    assert (asked.node_id, asked.api_key) == (COORDINATOR, 24)
    [transaction] = asked.request.transactions
    assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == (
        "id",
        PRODUCER,
        EPOCH,
    )
    assert transaction.verify_only == (version < ADDS)
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("t", [0])]
    world.answer(asked)
    assert answers(first) == [(0, E.NONE, 0)]
    assert answers(world.produce((0, batch(1)), version=version)) == [(0, E.NONE, 1)], "it is open"
    world.end()
    assert not world.produce((0, batch(2)), version=version).done
    world.answer(world.asked())
    assert world.ends()[0] == 4


def test_one_question_about_all_partitions(world: World) -> None:
    """Where the transaction is open nothing is asked; plain batches wait with the others."""
    world.produce((1, batch()))
    world.answer(world.asked())
    reply = world.produce((2, batch()), (1, batch(1)), (0, batch()))
    asked = world.asked()
    assert [sorted(topic.partitions) for topic in asked.request.transactions[0].topics] == [[0, 2]]
    assert world.ends() == [0, 1, 0]
    world.answer(asked, t_2=E.TRANSACTION_ABORTABLE)
    assert answers(reply) == [(2, E.TRANSACTION_ABORTABLE, -1), (1, E.NONE, 1), (0, E.NONE, 0)]


@pytest.mark.parametrize(
    ("version", "error", "expected"),
    [
        (10, E.TRANSACTION_ABORTABLE, (E.INVALID_TXN_STATE, "Partition was not added to the transaction")),
        (11, E.TRANSACTION_ABORTABLE, (E.TRANSACTION_ABORTABLE, None)),
        (12, E.TRANSACTION_ABORTABLE, (E.TRANSACTION_ABORTABLE, None)),
        (10, E.CONCURRENT_TRANSACTIONS, (E.NOT_ENOUGH_REPLICAS, UNABLE + "CONCURRENT_TRANSACTIONS")),
        (11, E.CONCURRENT_TRANSACTIONS, (E.NOT_ENOUGH_REPLICAS, UNABLE + "CONCURRENT_TRANSACTIONS")),
        (12, E.NOT_COORDINATOR, (E.NOT_ENOUGH_REPLICAS, UNABLE + "NOT_COORDINATOR")),
        (
            12,
            E.COORDINATOR_LOAD_IN_PROGRESS,
            (E.NOT_ENOUGH_REPLICAS, UNABLE + "COORDINATOR_LOAD_IN_PROGRESS"),
        ),
        (12, E.PRODUCER_FENCED, (E.INVALID_PRODUCER_EPOCH, None)),
        (12, E.INVALID_PRODUCER_ID_MAPPING, (E.INVALID_PRODUCER_ID_MAPPING, None)),
        (12, E.INVALID_REQUEST, (E.INVALID_REQUEST, None)),
    ],
)
def test_errors_of_the_coordinator(
    world: World, version: int, error: E, expected: tuple[E, str | None]
) -> None:
    reply = world.produce((0, batch()), version=version)
    world.answer(world.asked(), error)
    assert refusal(reply) == expected
    assert world.ends()[0] == 0


def test_errors_on_the_way_to_the_coordinator(world: World) -> None:
    reply = world.produce((0, batch()))
    world.asked().fail(E.NETWORK_EXCEPTION)
    world.leader.run()
    assert refusal(reply) == (E.NOT_ENOUGH_REPLICAS, UNABLE + "NETWORK_EXCEPTION")
    world.coordinator_id = -1
    reply = world.produce((0, batch()))
    assert refusal(reply) == (E.NOT_ENOUGH_REPLICAS, UNABLE + "COORDINATOR_NOT_AVAILABLE")
    world.coordinator_id = COORDINATOR
    reply = world.produce((0, batch()))
    world.answer(world.asked())
    assert answers(reply) == [(0, E.NONE, 0)], "the producer sends it again"


@pytest.mark.parametrize("longest_ms", [20, 3])
def test_a_transaction_that_still_ends_is_asked_about_again(longest_ms: int) -> None:
    """Soon at first: its producer waits for the markers of its last transaction."""
    world = World(add_partitions_to_txn_retry_backoff_ms=str(longest_ms))
    reply = world.produce((0, batch()))
    for pause_ms in (0.5, 1, 2, 4, 8, 16, 20, 20):
        world.answer(world.asked(), E.CONCURRENT_TRANSACTIONS)
        world.runtime.advance(min(pause_ms, longest_ms) / 1000 - 0.0001)
        assert not world.coordinator.take()
        assert not reply.done
        world.runtime.advance(0.0002)
    world.answer(world.asked())
    assert answers(reply) == [(0, E.NONE, 0)]


def test_it_is_asked_about_again_for_a_while_only() -> None:
    world = World(
        add_partitions_to_txn_retry_backoff_ms="30", add_partitions_to_txn_retry_backoff_max_ms="60"
    )
    reply = world.produce((0, batch()), (1, batch()))
    questions = 0
    while not reply.done:
        world.answer(world.asked(), t_1=E.CONCURRENT_TRANSACTIONS)
        questions += 1
        world.runtime.advance(0.03)
    assert questions == 3
    assert answers(reply) == [(0, E.NONE, 0), (1, E.CONCURRENT_TRANSACTIONS, -1)]


def test_a_partition_may_move_while_the_question_is_repeated(world: World) -> None:
    world.leader.register(2)
    reply = world.produce((0, batch()), (1, batch()))
    world.answer(world.asked(), E.CONCURRENT_TRANSACTIONS)
    world.leader.change(0, replicas=[2], isr=[2], leader=2)
    world.runtime.advance(0.02)
    asked = world.asked()
    assert [topic.partitions for topic in asked.request.transactions[0].topics] == [[1]]
    world.answer(asked)
    assert answers(reply) == [(0, E.NOT_LEADER_OR_FOLLOWER, -1), (1, E.NONE, 0)]


def test_a_marker_that_comes_first_ends_the_verification(world: World) -> None:
    """The answer is of a transaction that has ended meanwhile (KAFKA-14884)."""
    reply = world.produce((0, batch()), version=VERIFIED)
    asked = world.asked()
    world.end()
    world.answer(asked)
    assert answers(reply) == [(0, E.INVALID_TXN_STATE, -1)]
    assert world.ends()[0] == 1


def test_refused_producers_do_not_displace_one_that_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may name any producer id."""
    monkeypatch.setattr(verification, "ENTRIES_MAX", 2)
    live = world.produce((0, batch()))
    asked = world.asked()
    world.coordinator_id = COORDINATOR + 1
    for producer in range(50, 55):
        reply = world.produce((0, batch(producer=producer)), name=f"id {producer}")
        world.answer(world.asked(), E.INVALID_PRODUCER_ID_MAPPING)
        assert refusal(reply) == (E.INVALID_PRODUCER_ID_MAPPING, None)
    waiting = world.produce((0, batch(producer=60)), name="id 60")
    other = world.asked()
    assert refusal(world.produce((0, batch(producer=61)), name="id 61")) == (E.NOT_ENOUGH_REPLICAS, None)
    world.answer(asked)
    assert answers(live) == [(0, E.NONE, 0)]
    again = world.produce((0, batch(producer=61)), name="id 61")
    world.answer(other)
    world.answer(world.asked())
    assert (answers(waiting), answers(again)) == ([(0, E.NONE, 1)], [(0, E.NONE, 2)])


def test_a_repeated_question_is_of_one_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "ENTRIES_MAX", 1)
    reply = world.produce((0, batch()))
    world.answer(world.asked(), E.CONCURRENT_TRANSACTIONS)
    world.runtime.advance(0.01)
    world.answer(world.asked(), E.PRODUCER_FENCED)
    assert refusal(reply) == (E.INVALID_PRODUCER_EPOCH, None)
    world.produce((0, batch(producer=50)), name="other")
    world.answer(world.asked(), E.NONE)
    assert world.ends()[0] == 1


def test_a_fenced_producer_is_not_verified(world: World) -> None:
    world.produce((0, batch(epoch=6)))
    world.answer(world.asked())
    reply = world.produce((0, batch()))
    assert refusal(reply) == (E.INVALID_PRODUCER_EPOCH, None)


def test_duplicates_are_found_before_the_verification_is_missed(world: World) -> None:
    world.produce((0, batch()))
    world.answer(world.asked())
    assert answers(world.produce((0, batch()))) == [(0, E.NONE, 0)]
    world.end()
    reply = world.produce((0, batch()))
    world.answer(world.asked())
    assert answers(reply) == [(0, E.NONE, 0)]
    assert world.ends()[0] == 2


def test_an_id_is_needed(world: World) -> None:
    """Nothing of the request is appended, the plain batches neither."""
    reply = world.produce((0, plain()), (1, batch()), name=None)
    code = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert answers(reply) == [(0, code, -1), (1, code, -1)]
    assert reply.answer.responses[0].partition_responses[0].error_message is None
    assert world.ends() == [0, 0, 0]
    assert not world.coordinator.take()


def test_an_id_without_a_transactional_batch(world: World) -> None:
    reply = world.produce((0, plain()), (1, batch(transactional=False)))
    assert answers(reply) == [(0, E.NONE, 0), (1, E.NONE, 0)]


@pytest.mark.parametrize("other", [{"producer": 41}, {"epoch": EPOCH + 1}])
def test_a_request_is_of_one_producer(world: World, other: dict[str, int]) -> None:
    reply = world.produce((0, plain()), (1, batch()), (2, batch(**other)))  # type: ignore[arg-type]
    code = E.INVALID_PRODUCER_ID_MAPPING
    assert answers(reply) == [(0, code, -1), (1, code, -1), (2, code, -1)]
    message = reply.answer.responses[0].partition_responses[1].error_message
    assert message == "Transactional records contained more than one producer ID"
    assert world.ends() == [0, 0, 0]
    assert not world.produce((1, batch())).done
    world.answer(world.asked())


def test_plain_batches_of_other_producers_may_be_among_them(world: World) -> None:
    reply = world.produce((0, batch(transactional=False, producer=41)), (1, batch()))
    world.answer(world.asked())
    assert answers(reply) == [(0, E.NONE, 0), (1, E.NONE, 0)]


def test_what_is_refused_for_its_form_is_not_verified(world: World) -> None:
    cut = batch()[:-1]
    reply = world.produce((0, cut), (5, batch()), (1, batch()), (2, batch() + batch(1)))
    asked = world.asked()
    assert [topic.partitions for topic in asked.request.transactions[0].topics] == [[1]]
    world.answer(asked)
    assert answers(reply) == [
        (0, E.INVALID_RECORD, -1),
        (5, E.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (1, E.NONE, 0),
        (2, E.INVALID_RECORD, -1),
    ]


def test_a_batch_without_a_producer_id_is_not_verified(world: World) -> None:
    """As in Kafka, it belongs to no transaction."""
    assert answers(world.produce((0, batch(-1, producer=-1, epoch=-1)))) == [(0, E.NONE, 0)]
    assert world.leader.partition().last_stable_offset == 1


def test_without_acknowledgement(world: World) -> None:
    good = world.produce((0, batch()), acks=0)
    world.answer(world.asked())
    assert good.responses == [NO_RESPONSE]
    world.end()
    refused = world.produce((0, batch(1)), acks=0)
    world.answer(world.asked(), E.TRANSACTION_ABORTABLE)
    assert refused.responses == [CLOSE_CONNECTION]
    assert world.produce((0, batch(1)), acks=0, name=None).responses == [CLOSE_CONNECTION]


def test_acks_that_do_not_exist(world: World) -> None:
    assert answers(world.produce((0, batch()), acks=2)) == [(0, E.INVALID_REQUIRED_ACKS, -1)]


def test_verification_can_be_switched_off() -> None:
    world = World(transaction_partition_verification_enable="false")
    assert answers(world.produce((0, batch()), version=VERIFIED)) == [(0, E.NONE, 0)]
    reply = world.produce((1, batch()), version=ADDS)
    asked = world.asked()
    assert not asked.request.transactions[0].verify_only, "these add their partition"
    world.end(1)
    world.answer(asked)
    assert answers(reply) == [(1, E.NONE, 1)]


def test_verification_is_dynamic(world: World) -> None:
    world.leader.node.services.config.apply_dynamic(
        {"transaction.partition.verification.enable": "false"}, {}
    )
    assert answers(world.produce((0, batch()), version=VERIFIED)) == [(0, E.NONE, 0)]
    world.leader.node.services.config.apply_dynamic({}, {})
    assert not world.produce((1, batch()), version=VERIFIED).done


def test_a_connection_is_served_in_its_order(world: World) -> None:
    """The second batch is behind one that is being verified; another connection is served meanwhile."""
    client, other = Client(world.leader), Client(world.leader)
    requests = [world.request((0, batch(sequence))) for sequence in range(3)]
    client.send(b"".join(client.frame(0, request) for request in requests) + client.versions())
    other.send(other.produce("v", index=1))
    assert (client.order, other.order) == ([], [1])
    asked = world.asked()
    world.runtime.advance(5)
    assert not world.coordinator.take()
    world.answer(asked)
    world.runtime.advance(0.01)
    assert client.order == [1, 2, 3, 4]
    assert client.errors() == [E.NONE] * 3
    assert world.ends()[0] == 3


def test_the_request_buffer_is_used_again_while_the_coordinator_is_asked(world: World) -> None:
    client, other = Client(world.leader), Client(world.leader)
    client.send(client.frame(0, world.request((0, batch()), (1, batch(count=2)))))
    for _ in range(20):
        other.send(other.produce("something else" * 10, index=2))
    world.answer(world.asked())
    world.runtime.advance(0.01)
    assert client.errors() == [E.NONE]
    assert world.ends()[:2] == [1, 2]
    assert world.leader.node.services.waiting_produce_bytes == 0


def test_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_api, "TURN_PARTITIONS", 2)
    world = World()
    reply = world.produce((0, batch()), (1, batch()), (2, batch()))
    asked = world.asked()
    assert [topic.partitions for topic in asked.request.transactions[0].topics] == [[0, 1, 2]]
    world.answer(asked, t_1=E.TRANSACTION_ABORTABLE)
    world.runtime.run_until_idle()
    assert answers(reply) == [(0, E.NONE, 0), (1, E.TRANSACTION_ABORTABLE, -1), (2, E.NONE, 0)]
    reply = world.produce((0, batch(1)), (2, batch(1)), (0, batch(2)))
    world.runtime.run_until_idle()
    assert answers(reply) == [(0, E.NONE, 1), (2, E.NONE, 1), (0, E.NONE, 2)], "they are open"
    reply = world.produce((0, batch()), (1, batch(epoch=6)), (2, batch()))
    world.runtime.run_until_idle()
    assert {error for _, error, _ in answers(reply)} == {E.INVALID_PRODUCER_ID_MAPPING}
    reply = world.produce((0, plain()), (1, batch()), (2, plain()), name=None)
    world.runtime.run_until_idle()
    assert {error for _, error, _ in answers(reply)} == {E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    assert world.leader.node.services.waiting_produce_bytes == 0


def test_too_many_bytes_wait(world: World) -> None:
    world.leader.node.services.waiting_produce_bytes = produce_api.WAITING_BYTES_MAX + 1
    assert answers(world.produce((0, batch()))) == [(0, E.REQUEST_TIMED_OUT, -1)]
    assert not world.coordinator.take()


def test_records_that_have_to_be_read_are_verified_first(world: World) -> None:
    world.leader.partition().log.update_config(LogConfig(cleanup_policy=frozenset({"compact"})))
    reply = world.produce((0, batch(count=5000, codec=Codec.ZSTD)), (1, batch()))
    world.answer(world.asked())
    world.runtime.run_until_idle()
    assert answers(reply) == [(0, E.NONE, 0), (1, E.NONE, 0)]
    assert world.leader.partition().last_stable_offset == 0


def test_an_answer_waits_for_replicas_after_the_verification() -> None:
    world = World()
    world.leader.register(2)
    world.leader.change(0, replicas=[1, 2], isr=[1, 2])
    reply = world.produce((0, batch()))
    world.answer(world.asked())
    assert not reply.done
    assert world.ends()[0] == 1
    world.leader.follower(2).fetch(1)
    world.leader.run()
    assert answers(reply) == [(0, E.NONE, 0)]
