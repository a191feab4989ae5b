"""Requests that arrive late or twice: copies of Produce and WriteTxnMarkers requests that reach the leader of that time after a
delay, as those of a connection that was given up do, and those that a coordinator repeats after a lost answer. Of the coordinators'
answers about batches that are verified some arrive late, and some never; and some records of coordinators are refused, as while too
few replicas are in sync.

Markers are those of transaction.version 2 only: one of an earlier version may end the next transaction of the same epoch, in Kafka
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from barnabas.broker.coordinator.log import CoordinatorLog
from barnabas.broker.transactions import markers
from barnabas.broker.transactions.verification import AddPartitionsToTxnManager
from barnabas.controller.operations.internal_topics import TRANSACTION_STATE_TOPIC
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from compat_tests.simulation.history import History, Partition
from compat_tests.simulation.tasks import Task, sleep
from compat_tests.simulation.wire_client import Client, NoResponse

WRITE_TXN_MARKERS = 27
DELAYS_S = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.5, 2.0)
COPIED = 0.3  # of the markers
LOST, LATE = (0.0, 0.1, 0.3), (0.05, 0.2, 0.5)  # of the answers about batches
REFUSED = (0.0, 0.03, 0.1)  # of the coordinators' records
TRANSACTION_VERSION = 2


class LateRequests:
    """Delivers copies until `should_continue` returns false, each over the client's own connections."""

    def __init__(self, client: Client, history: History, should_continue: Callable[[], bool]) -> None:
        self._client = client
        self._history = history
        self._should_continue = should_continue
        self._open = 0
        chance = client.random
        self._lost, self._late = chance.choice(LOST), chance.choice(LATE)
        self._refused = chance.choice(REFUSED)

    @property
    def is_done(self) -> bool:
        """Whether all copies have arrived, or are lost."""
        return not self._open

    def take(self, key: int, version: int, request: Any, partition: Partition) -> None:
        """Deliver a request about one partition later."""
        self._open += 1
        Task(self._client.runtime, self._deliver(key, version, request, partition))

    async def _deliver(self, key: int, version: int, request: Any, partition: Partition) -> None:
        client = self._client
        try:
            await sleep(client.runtime, client.random.choice(DELAYS_S) * client.random.uniform(0.5, 1.5))
            if not client.brokers:
                await client.refresh()
            address, _ = client.leader(*partition)
            if address is not None:
                await client.ask(address, key, version, request)
                self._history.count(f"late requests of API {key}")
        except NoResponse:
            await client.refresh()
        finally:
            self._open -= 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Also what brokers send to each other."""

        request = markers._request

        def copied(sent: Any) -> WriteTxnMarkersRequest:
            made = request(sent)
            if self._should_continue():
                for marker in made.markers:
                    if marker.transaction_version == TRANSACTION_VERSION:
                        self._copy(marker)
            return made

        answered = AddPartitionsToTxnManager._answered

        def late(
            self: AddPartitionsToTxnManager, node: int, coordinator: Any, sent: Any, *answer: Any
        ) -> None:
            luck = chance.random()
            if luck < late_requests._lost:
                answered(self, node, coordinator, sent, None, ErrorCode.NETWORK_EXCEPTION)
            elif luck < late_requests._lost + late_requests._late:
                call = partial(answered, self, node, coordinator, sent, *answer)
                self._runtime.call_later(chance.choice(DELAYS_S[1:-1]), call)
            else:
                answered(self, node, coordinator, sent, *answer)

        append = CoordinatorLog.append

        def refused(
            self: CoordinatorLog, index: int, batch: bytes, done: Callable[[ErrorCode], object]
        ) -> None:
            if chance.random() < late_requests._refused and self.topic == TRANSACTION_STATE_TOPIC:
                done(ErrorCode.NOT_ENOUGH_REPLICAS)
            else:
                append(self, index, batch, done)

        late_requests, chance = self, self._client.random
        with (
            mock.patch.object(CoordinatorLog, "append", refused),
            mock.patch.object(markers, "_request", copied),
            mock.patch.object(AddPartitionsToTxnManager, "_answered", late),
        ):
            yield

    def _copy(self, marker: WritableTxnMarker) -> None:
        for topic in marker.topics:
            known = self._history.topics.get(topic.name)
            for index in topic.partition_indexes if known is not None else ():
                if known is not None and self._client.random.random() < COPIED:
                    one = WritableTxnMarker(
                        marker.producer_id,
                        marker.producer_epoch,
                        marker.transaction_result,
                        [WritableTxnMarkerTopic(topic.name, [index])],
                        marker.coordinator_epoch,
                        marker.transaction_version,
                    )
                    self.take(WRITE_TXN_MARKERS, 2, WriteTxnMarkersRequest([one]), (known.topic_id, index))
