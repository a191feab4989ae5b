"""Transactions of 100 records of 1 KB: how many a second, what they cost the broker, how long EndTxn takes, and reading them.

A producer is a loop of Produce and EndTxn as Java's has been since transaction.version 2; clients of the older protocol add the
partitions by AddPartitionsToTxn first, and keep their epoch. CONCURRENT_TRANSACTIONS is answered while the last transaction is
still being ended, and the request is sent again after RETRY_S. Producers are multiplexed over one thread.
"""

from __future__ import annotations

import selectors
import struct
import time
from collections.abc import Generator, Mapping
from itertools import count
from typing import Any, Final

from crc32c import crc32c

from barnabas.wire import registry
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from compat_tests.bench import prepared
from compat_tests.bench.driver import Connection
from compat_tests.conform.client import decode_response, request_header

RETRY_S: Final = 0.002
RECORDS: Final = 100  # of a transaction
RECORD_BYTES: Final = 1000
ABORTED_EVERY: Final = 10  # transactions, of those that are read

_END_TXN: Final = 26
_KEYS: Final[dict[type, int]] = {
    ProduceRequest: 0,
    FindCoordinatorRequest: 10,
    ApiVersionsRequest: 18,
    InitProducerIdRequest: 22,
    AddPartitionsToTxnRequest: 24,
    EndTxnRequest: _END_TXN,
}
_TRANSACTIONAL: Final = 0x10  # the bit of a batch's attributes
_ATTRIBUTES, _TIMESTAMPS, _PRODUCER, _CRC, _CHECKED = 21, 27, 43, 17, 21  # offsets in a batch of magic 2
_RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # a new topic, for a moment
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,  # what the first transaction meets while the coordinator loads
    }
)
_TRANSACTION_MS: Final = 60_000
_numbers = count()

# What a producer's loop gives: a request, or seconds to wait; it is sent the response.
Exchange = Generator["tuple[object, int] | float", Any, None]


def are_served(address: str) -> bool:
    """Whether the broker has EndTxn; older checkouts do not."""
    connection = Connection(address)
    served = _ask(connection, ApiVersionsRequest(), 0)
    connection.close()
    return any(each.api_key == _END_TXN for each in served.api_keys)


class TransactionalProducer:
    """A producer with an id and an epoch; its transactions have RECORDS records, spread over the partitions."""

    def __init__(self, address: str, topic: str, partitions: int, *, bumps_epoch: bool = True) -> None:
        """`bumps_epoch`: transaction.version 2."""
        self.connection = Connection(address)
        self.transactional_id = f"bench-{next(_numbers)}"
        self.end_seconds: list[float] = []  # each EndTxn, from the request to its response
        self._topic = topic
        self._bumps_epoch = bumps_epoch
        self._records = RECORDS // partitions
        self._batches = [bytearray(prepared.batch(self._records, RECORD_BYTES)) for _ in range(partitions)]
        self._sequence = 0
        self._ask_again(FindCoordinatorRequest(coordinator_keys=[self.transactional_id], key_type=1), 4)
        answer = self._ask_again(InitProducerIdRequest(self.transactional_id, _TRANSACTION_MS), 4)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    @property
    def transaction_bytes(self) -> int:
        """Size of the batches of one transaction."""
        return sum(map(len, self._batches))

    def transactions(self, number: int, *, aborted_every: int = 0) -> Exchange:
        """So many transactions one after the other, every one with `aborted_every` aborted."""
        for done in range(1, number + 1):
            if not self._bumps_epoch:
                topics = [AddPartitionsToTxnTopic(self._topic, list(range(len(self._batches))))]
                yield from _until_accepted(
                    AddPartitionsToTxnRequest(
                        [], self.transactional_id, self._producer_id, self._epoch, topics
                    ),
                    3,
                )
            yield from _until_accepted(self._produce(), 12 if self._bumps_epoch else 11)
            commit = not (aborted_every and done % aborted_every == 0)
            end = EndTxnRequest(self.transactional_id, self._producer_id, self._epoch, commit)
            started = time.perf_counter()
            ended = yield from _until_accepted(end, 5 if self._bumps_epoch else 4)
            self.end_seconds.append(time.perf_counter() - started)
            if self._bumps_epoch:
                self._producer_id, self._epoch, self._sequence = ended.producer_id, ended.producer_epoch, 0

    def _produce(self) -> ProduceRequest:
        now_ms = int(
            time.time() * 1000
        )  # a marker, which has the broker's time, would roll a segment of older records
        for batch in self._batches:
            struct.pack_into(">qq", batch, _TIMESTAMPS, now_ms, now_ms)
            struct.pack_into(">h", batch, _ATTRIBUTES, _TRANSACTIONAL)
            struct.pack_into(">qhi", batch, _PRODUCER, self._producer_id, self._epoch, self._sequence)
            struct.pack_into(">I", batch, _CRC, crc32c(memoryview(batch)[_CHECKED:]))
        self._sequence += self._records
        partitions = [PartitionProduceData(index, bytes(batch)) for index, batch in enumerate(self._batches)]
        return ProduceRequest(
            self.transactional_id, -1, 30_000, [TopicProduceData(name=self._topic, partition_data=partitions)]
        )

    def _ask_again(self, request: object, version: int) -> Any:
        deadline = time.perf_counter() + 60
        while True:
            answer = _ask(self.connection, request, version)
            errors = _errors(answer)
            if not errors:
                return answer
            assert errors <= _RETRIED, f"{request} got {errors}"
            assert time.perf_counter() < deadline, f"{request} gets {errors} again and again"
            time.sleep(RETRY_S)


def run(producers: Mapping[TransactionalProducer, Exchange]) -> float:
    """Let all of them do their transactions at the same time; seconds taken."""
    selector = selectors.DefaultSelector()
    expected: dict[TransactionalProducer, tuple[object, int]] = {}
    waiting: dict[TransactionalProducer, float] = {}
    for producer in producers:
        selector.register(producer.connection.socket, selectors.EVENT_READ, producer)
    left = len(producers)

    def go_on(producer: TransactionalProducer, answer: Any) -> None:
        nonlocal left
        try:
            wanted = producers[producer].send(answer)
        except StopIteration:
            left -= 1
            return
        if isinstance(wanted, float):
            waiting[producer] = time.perf_counter() + wanted
        else:
            expected[producer] = wanted
            _send(producer.connection, *wanted)

    started = time.perf_counter()
    for producer in producers:
        go_on(producer, None)
    while left:
        now = time.perf_counter()
        for producer in [each for each, due in waiting.items() if due <= now]:
            del waiting[producer]
            go_on(producer, None)
        timeout_s = max(0.0, min(waiting.values()) - time.perf_counter()) if waiting else 60
        for key, _ in selector.select(timeout_s if left else 0):
            producer = key.data
            go_on(producer, _response(producer.connection, *expected.pop(producer)))
    seconds = time.perf_counter() - started
    selector.close()
    return seconds


def fetch_transactions(address: str, topic: str, transactions: int, size: int, isolation: int) -> float:
    """Fetch the transactions of one producer and partition, ten of `size` bytes in each request, five requests in flight; seconds
    taken. `isolation`: 1 is read_committed."""
    connection = Connection(address)
    a_fetch, in_flight = 10, 5
    requests = [
        prepared.fetch(topic, first * (RECORDS + 1), a_fetch * size, isolation=isolation)
        for first in range(0, transactions - a_fetch + 1, a_fetch)
    ]
    started = time.perf_counter()
    for sent in range(len(requests) + in_flight):
        if sent >= in_flight:
            response = connection.receive()
            error = prepared.fetched_error(topic, response)
            assert error == 0, f"error {error}"
            assert len(response) > (a_fetch - 1) * size, f"a response of {len(response)} bytes"
        if sent < len(requests):
            connection.send(requests[sent])
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


def _until_accepted(request: object, version: int) -> Generator[tuple[object, int] | float, Any, Any]:
    """The response without an error."""
    while True:
        answer = yield request, version
        errors = _errors(answer)
        if not errors:
            return answer
        assert errors <= _RETRIED, f"{type(request).__name__} got {errors}"
        yield RETRY_S


def _errors(answer: Any) -> set[ErrorCode]:
    """All error codes of a response, wherever they stand, but NONE."""
    found = set()
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        if name in ("error_code", "partition_error_code"):
            found.add(ErrorCode.of(value))
        elif isinstance(value, list):
            for each in value:
                if hasattr(each, "__struct_fields__"):
                    found |= _errors(each)
    return found - {ErrorCode.NONE}


def _ask(connection: Connection, request: object, version: int) -> Any:
    _send(connection, request, version)
    return _response(connection, request, version)


def _send(connection: Connection, request: object, version: int) -> None:
    key = _KEYS[type(request)]
    parts = registry.request_type(key).encode(version, request)
    frame = b"".join([request_header(key, version, 1, "bench"), *parts])  # type: ignore[list-item]  # no file among them
    connection.send(struct.pack(">i", len(frame)) + frame)


def _response(connection: Connection, request: object, version: int) -> Any:
    return decode_response(_KEYS[type(request)], version, 1, bytes(connection.receive()[4:]))
