"""The client of share coordinators, this broker or another: reads and writes the state of share partitions.

A coordinator that moves or is not available yet is asked again. Of one share partition one write is on its way at a time; those
that come meanwhile are merged and sent together after it, so that the start offset never goes back. What is larger than a write may
be is sent in parts, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.broker.share_coordinator.state import NO_EPOCH, WRITTEN_MAX, SharePartitionKey
from barnabas.broker.share_coordinator.state_batches import NO_START, StateBatch, merge
from barnabas.runtime.backoff import Backoff
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.peer_client import AskBroker
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.share_coordinator")

INITIALIZE, DELETE = 83, 86
READ, READ_VERSION = 84, 0
WRITE, WRITE_VERSION = 85, 1
READ_SUMMARY, READ_SUMMARY_VERSION = 87, 1
TRIES_MAX: Final = 8
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    }
)

ASKED_AT_ONCE: Final = 100  # share partitions, where there are many

Done = Callable[[ErrorCode], object]
FindCoordinator = Callable[[str, Callable[[ErrorCode, int], None]], object]


class StoredState(msgspec.Struct, frozen=True):
    """As the coordinator has it; a start offset of -1: the group has no position yet."""

    state_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]


class StateSummary(msgspec.Struct, frozen=True):
    """Without batches. Where there is no state the start offset and the count are -1."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


class Persister:
    """See the module. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, ask: AskBroker, find_coordinator: FindCoordinator) -> None:
        """`find_coordinator(key, reply)`: see CoordinatorTopic.find, of __share_group_state."""
        self._runtime = runtime
        self._ask = ask
        self._find_coordinator = find_coordinator
        self._is_closed = False

    def close(self) -> None:
        """Nothing is sent any more, and no callback is called."""
        self._is_closed = True

    def read(
        self,
        key: SharePartitionKey,
        leader_epoch: int,
        done: Callable[[StoredState | None, ErrorCode], object],
    ) -> None:
        """`done(state, NONE)`, or `done(None, error)`: INVALID_REQUEST if there is no state. Leaders of earlier epochs can't write
        afterwards."""
        from barnabas.wire.messages import (
            read_share_group_state as messages,  # late: a start needs none of it
        )

        request = messages.ReadShareGroupStateRequest(
            key.group_id,
            [messages.ReadStateData(key.topic_id, [messages.PartitionData(key.partition, leader_epoch)])],
        )

        def answered(result: Any, error: ErrorCode) -> None:
            if error:
                done(None, error)
                return
            batches = tuple(
                StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
                for each in result.state_batches
            )
            done(StoredState(result.state_epoch, result.start_offset, batches), ErrorCode.NONE)

        _Question(self, key, READ, READ_VERSION, request, answered).ask()

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, done: Done) -> None:
        """Give the share partition a new state; a start offset of -1: its leader chooses one."""
        from barnabas.wire.messages import initialize_share_group_state as messages  # late: as above

        wanted = messages.PartitionData(key.partition, state_epoch, start_offset)
        request = messages.InitializeShareGroupStateRequest(
            key.group_id, [messages.InitializeStateData(key.topic_id, [wanted])]
        )
        _Question(self, key, INITIALIZE, 0, request, lambda _, error: done(error)).ask()

    def delete(self, key: SharePartitionKey, done: Done) -> None:
        """Delete the state, if there is one."""
        from barnabas.wire.messages import delete_share_group_state as messages  # late: as above

        request = messages.DeleteShareGroupStateRequest(
            key.group_id, [messages.DeleteStateData(key.topic_id, [messages.PartitionData(key.partition)])]
        )
        _Question(self, key, DELETE, 0, request, lambda _, error: done(error)).ask()

    def read_summary(
        self, key: SharePartitionKey, done: Callable[[StateSummary | None, ErrorCode], object]
    ) -> None:
        """`done(summary, NONE)`, or `done(None, error)`. It fences no leader."""
        from barnabas.wire.messages import read_share_group_state_summary as messages  # late: as above

        wanted = messages.PartitionData(key.partition, NO_EPOCH)
        request = messages.ReadShareGroupStateSummaryRequest(
            key.group_id, [messages.ReadStateSummaryData(key.topic_id, [wanted])]
        )

        def answered(result: Any, error: ErrorCode) -> None:
            if error:
                done(None, error)
            else:
                summary = StateSummary(
                    result.state_epoch,
                    result.leader_epoch,
                    result.start_offset,
                    result.delivery_complete_count,
                )
                done(summary, ErrorCode.NONE)

        _Question(self, key, READ_SUMMARY, READ_SUMMARY_VERSION, request, answered).ask()

    def writer(self, key: SharePartitionKey, state_epoch: int, leader_epoch: int) -> StateWriter:
        """For the leader of this epoch."""
        return StateWriter(self, key, state_epoch, leader_epoch)

    # -- of _Question

    def ask(
        self,
        key: SharePartitionKey,
        api_key: int,
        version: int,
        request: msgspec.Struct,
        answered: Callable[[Any, ErrorCode], object],
    ) -> None:
        """Ask the coordinator once, creating the topic if it does not exist."""

        def found(error: ErrorCode, node_id: int) -> None:
            if error:
                answered(None, error)
            else:
                self._ask(node_id, api_key, version, request, answered)

        if not self._is_closed:
            self._find_coordinator(key.text, found)

    def later(self, delay_s: float, call: Callable[[], object]) -> None:
        self._runtime.call_later(delay_s, lambda: None if self._is_closed else call())

    def new_backoff(self) -> Backoff:
        return Backoff(self._runtime, RETRY_FIRST_S, RETRY_MAX_S)


class _Question:
    """A request about one share partition, asked until there is an answer."""

    def __init__(
        self,
        persister: Persister,
        key: SharePartitionKey,
        api_key: int,
        version: int,
        request: msgspec.Struct,
        done: Callable[[Any, ErrorCode], object],
    ) -> None:
        """`done(result of the partition, NONE)`, or `done(None, error)`: COORDINATOR_NOT_AVAILABLE for all that was tried again."""
        self._persister = persister
        self._key = key
        self._api_key = api_key
        self._version = version
        self._request = request
        self._done = done
        self._backoff = persister.new_backoff()

    def ask(self) -> None:
        self._persister.ask(self._key, self._api_key, self._version, self._request, self._answered)

    def _answered(self, response: Any, error: ErrorCode) -> None:
        result = None
        if not error:
            results = [each for topic in response.results for each in topic.partitions]
            result = results[0] if len(results) == 1 else None
            error = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else ErrorCode.of(result.error_code)
        if error in _RETRIABLE and self._backoff.failures < TRIES_MAX:
            self._persister.later(self._backoff.next_s(), self.ask)
        elif error:
            level = (
                logging.INFO if error in _RETRIABLE else logging.DEBUG
            )  # any client may name an unknown group
            log.log(level, "the state of share partition %.300s: %s", self._key.text, error.name)
            self._done(None, ErrorCode.COORDINATOR_NOT_AVAILABLE if error in _RETRIABLE else error)
        else:
            self._done(result, ErrorCode.NONE)


class StateWriter:
    """The writes of one share partition, by the leader of one epoch."""

    def __init__(
        self, persister: Persister, key: SharePartitionKey, state_epoch: int, leader_epoch: int
    ) -> None:
        self._persister = persister
        self._key = key
        self._state_epoch = state_epoch
        self._leader_epoch = leader_epoch
        self._is_writing = False
        self._waiting: list[tuple[Sequence[StateBatch], Done]] = []
        self._start_offset = 0
        self._complete_count = 0

    def write(
        self, start_offset: int, complete_count: int, batches: Sequence[StateBatch], done: Done
    ) -> None:
        """`done(error)` when they are persisted, or can't be; perhaps before this returns."""
        self._start_offset, self._complete_count = start_offset, complete_count
        self._waiting.append((batches, done))
        if not self._is_writing:
            self._send()

    def _send(self) -> None:
        """Send what waits, and then answer it."""
        sent, self._waiting = self._waiting, []
        self._is_writing = True
        batches = sent[0][0] if len(sent) == 1 else merge(NO_START, *(each for each, _ in sent))

        def written(error: ErrorCode) -> None:
            self._is_writing = False
            failed = sent
            if error not in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                # The leader loads the state again, and must not write what it decided by the one before.
                failed, self._waiting = [*sent, *self._waiting], []
            for _, done in failed:
                done(error)
            if self._waiting and not self._is_writing:
                self._send()

        self._send_parts(batches, written)

    def _send_parts(self, batches: Sequence[StateBatch], written: Done) -> None:
        """Send the first part, and then the others, until one fails."""
        from barnabas.wire.messages import write_share_group_state as messages  # late: as above

        data = messages.PartitionData(
            self._key.partition,
            self._state_epoch,
            self._leader_epoch,
            self._start_offset,
            self._complete_count,
            [
                messages.StateBatch(
                    each.first_offset, each.last_offset, each.delivery_state, each.delivery_count
                )
                for each in batches[:WRITTEN_MAX]
            ],
        )
        request = messages.WriteShareGroupStateRequest(
            self._key.group_id, [messages.WriteStateData(self._key.topic_id, [data])]
        )
        others = batches[WRITTEN_MAX:]

        def answered(_result: Any, error: ErrorCode) -> None:
            if others and not error:
                self._send_parts(others, written)
            else:
                written(error)

        _Question(self._persister, self._key, WRITE, WRITE_VERSION, request, answered).ask()


def ask_each(
    keys: Iterable[SharePartitionKey],
    ask: Callable[[SharePartitionKey, Callable[[], object]], object],
    done: Callable[[], object],
) -> None:
    """`ask(key, answered)` for each of many share partitions, ASKED_AT_ONCE at a time; then `done()`, perhaps before this returns."""
    waiting = iter(keys)
    asked = 1  # this function itself, until it returns
    is_asking = False

    def go_on() -> None:
        nonlocal asked, is_asking
        if is_asking:
            return
        is_asking = True
        while asked <= ASKED_AT_ONCE and (key := next(waiting, None)) is not None:
            asked += 1
            ask(key, answered)
        is_asking = False

    def answered() -> None:
        nonlocal asked
        asked -= 1
        go_on()
        if not asked:
            done()

    go_on()
    answered()
