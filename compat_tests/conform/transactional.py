"""A transactional id in a chosen state, and the requests of its producer, for the cases about transactions.

PrepareCommit and PrepareAbort last only until the markers are written. `Producer.reach` makes them stay: in the transaction's
partition a newer coordinator has written a marker, so that the leader refuses those of this one, which gives up.
"""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from compat_tests.conform.batches import TRANSACTIONAL, batch
from compat_tests.conform.session import Session, SetupFailed, Topic
from compat_tests.harness.eventually import eventually

TRANSACTION = 1  # key type of FindCoordinator
WAITS = (14, 15, 16, 51)  # loading, not available, not coordinator, concurrent transactions
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "CompleteCommit TV2",
    "CompleteAbort TV2",
)
"""TV2: the end has raised the epoch, as since transaction.version 2."""

NEWER_COORDINATOR = 1_000_000  # its epoch
ADD_BY_CLIENT, ADD_BY_BROKER = 3, 5  # versions of AddPartitionsToTxn
END, END_RAISES_EPOCH = 4, 5  # versions of EndTxn
ANOTHER_ID = 1_000_000  # added to a producer id: one that is not this producer's


def topics_of(*partitions: tuple[Topic | str, int]) -> list[AddPartitionsToTxnTopic]:
    """The partitions by topic."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic if isinstance(topic, str) else topic.name, []).append(partition)
    return [AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()]


class Producer:
    """One transactional id of a run, with the producer id and epoch that it has now."""

    def __init__(self, session: Session, suffix: str, timeout_ms: int = 60_000) -> None:
        """Initializes the id twice, so that its epoch is 1 and there is a lower one."""
        self._session = session
        self._timeout_ms = timeout_ms
        self.transactional_id = session.name(suffix)
        coordinate(session, self.transactional_id)
        self.id = self.epoch = -1
        for _ in range(2):
            self.initialize()

    def initialize(self) -> None:
        """InitProducerId, repeated until the last transaction has ended."""

        def succeeds() -> bool:
            answer = self._session.quiet(
                InitProducerIdRequest(
                    transactional_id=self.transactional_id, transaction_timeout_ms=self._timeout_ms
                )
            )
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            return _is_done("InitProducerId", answer.error_code)

        eventually(succeeds)
        self._session.names.numbered("producer id", self.id)  # in this order, not in that of an answer

    # requests

    def init_request(
        self, producer_id: int = -1, epoch: int = -1, timeout_ms: int | None = None
    ) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    def add_request(
        self,
        *partitions: tuple[Topic | str, int],
        producer_id: int | None = None,
        epoch: int | None = None,
        verify_only: bool = False,
    ) -> AddPartitionsToTxnRequest:
        """In the form of clients and in that of brokers; each version encodes one of them."""
        producer_id = self.id if producer_id is None else producer_id
        epoch = self.epoch if epoch is None else epoch
        topics = topics_of(*partitions)
        one = AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=verify_only,
            topics=topics,
        )
        return AddPartitionsToTxnRequest(
            transactions=[one],
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )

    def offsets_request(
        self, group: str, producer_id: int | None = None, epoch: int | None = None
    ) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            group_id=group,
        )

    def end_request(
        self, committed: bool, producer_id: int | None = None, epoch: int | None = None
    ) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=committed,
        )

    def batch(self, sequence: int = 0, values: tuple[bytes, ...] = (b"a",), **fields: Any) -> bytes:
        """A transactional batch; `fields` override its header."""
        header: dict[str, Any] = {
            "attributes": TRANSACTIONAL,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            **fields,
        }
        return batch(values, base_sequence=sequence, **header)

    # states

    def add(self, *partitions: tuple[Topic | str, int], version: int = ADD_BY_CLIENT) -> None:
        """Add partitions, repeated until the last transaction has ended."""
        request = self.add_request(*partitions)

        def succeeds() -> bool:
            answer = self._session.quiet(request, version=version)
            results = answer.results_by_transaction[0].topic_results if version > 3 else None
            topics = answer.results_by_topic_v3_and_below if results is None else results
            codes = {
                each.partition_error_code for topic in topics for each in topic.results_by_partition
            } or {answer.error_code}
            return all(_is_done("AddPartitionsToTxn", code) for code in sorted(codes))

        eventually(succeeds)

    def end(self, committed: bool, *, version: int = END, waits: bool = True) -> None:
        """End the transaction and take over the next epoch; `waits` for the markers."""
        before = self.epoch

        def succeeds() -> bool:
            answer = self._session.quiet(self.end_request(committed, epoch=before), version=version)
            if version >= END_RAISES_EPOCH and not answer.error_code:
                self.id, self.epoch = answer.producer_id, answer.producer_epoch
            return _is_done("EndTxn", answer.error_code)

        eventually(succeeds)
        if waits:
            self.await_end()

    def await_end(self) -> None:
        """Wait until the coordinator has written that all markers are there."""
        eventually(lambda: not self.state().transaction_state.startswith("Prepare"))

    def state(self) -> Any:
        """What DescribeTransactions says."""
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        return self._session.quiet(request).transaction_states[0]

    def reach(self, state: str, topic: Topic) -> None:
        """Bring a new id to a state; its transaction has partition 0 of `topic`."""
        if state == "Empty":
            return
        raises = state.endswith(" TV2")
        self.add((topic, 0), version=ADD_BY_BROKER if raises else ADD_BY_CLIENT)
        if state.startswith("Prepare"):
            self._refuse_markers(topic)
        if state != "Ongoing":
            version = END_RAISES_EPOCH if raises else END
            self.end("Commit" in state, version=version, waits=not state.startswith("Prepare"))

    def _refuse_markers(self, topic: Topic) -> None:
        request = marker_request((topic, 0), self.id, self.epoch, coordinator_epoch=NEWER_COORDINATOR)
        answer = self._session.quiet(request)
        error_code = answer.markers[0].topics[0].partitions[0].error_code
        if error_code:
            raise SetupFailed(f"WriteTxnMarkers: {error_code}")


def marker_request(
    partition: tuple[Topic | str, int],
    producer_id: int,
    epoch: int,
    *,
    committed: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> WriteTxnMarkersRequest:
    """One marker in one partition."""
    topic, index = partition
    name = topic if isinstance(topic, str) else topic.name
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=committed,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[index])],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    return WriteTxnMarkersRequest(markers=[marker])


def _is_done(what: str, error_code: int) -> bool:
    """False where the request is to be repeated."""
    if error_code in WAITS:
        return False
    if error_code:
        raise SetupFailed(f"{what}: {error_code}")
    return True


def coordinate(session: Session, transactional_id: str) -> None:
    """Wait until the coordinator of an id serves it."""
    find = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[transactional_id])
    describe = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def serves() -> bool:
        if not _is_done("FindCoordinator", session.quiet(find).coordinators[0].error_code):
            return False
        return session.quiet(describe).transaction_states[0].error_code not in WAITS

    eventually(serves)


def produce_request(
    records: dict[tuple[Topic, int], bytes], transactional_id: str | None, acks: int = -1
) -> ProduceRequest:
    """A batch for each partition."""
    topics: dict[str, TopicProduceData] = {}
    for (topic, partition), data in records.items():
        wanted = topics.setdefault(
            topic.name, TopicProduceData(name=topic.name, topic_id=topic.id, partition_data=[])
        )
        wanted.partition_data.append(PartitionProduceData(index=partition, records=data))
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=10_000, topic_data=list(topics.values())
    )
