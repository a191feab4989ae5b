"""The log of a shard: appends its records to its partition, and replays them.

The records of an append are replayed when they have been appended, so that the next decision sees them, and are taken back if
the append fails. Appends end in the order in which they began, failed ones too: when one is taken back, later ones may still be
pending, so taking it back must not depend on them (groups/offsets.py keeps the versions of a value). An append that takes longer
than the timeout is answered REQUEST_TIMED_OUT and stays pending, as in Kafka: it is in the log, where it is committed or lost.
Where the partition has one replica an append ends at once, and nothing is kept of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from barnabas.broker.coordinator.timers import DeadlineTimer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import EncodeError

if TYPE_CHECKING:
    from barnabas.broker.coordinator.loading import Replay
    from barnabas.broker.coordinator.log import CoordinatorLog, Loading, Marker
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.verification import Verification

log = logging.getLogger("barnabas.coordinator")

R = TypeVar("R")
Done = Callable[[ErrorCode], object]
End = Callable[[bool], object]  # of a record's append: whether it is committed; if not, take the record back

# Errors of an append that is committed all the same, by fewer replicas than min.insync.replicas.
COMMITTED: Final = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

_TIMER_MIN_S: Final = 0.1  # between two looks at the appends that time out

_RESPONSE_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(append_error: ErrorCode) -> ErrorCode:
    """The error to answer when an append to the coordinator's topic has failed."""
    return _RESPONSE_ERRORS.get(append_error, append_error)


class _Append:
    """A pending append. `ends`: of its records, in their order."""

    __slots__ = ("_waiting", "deadline", "ends")

    def __init__(self, done: Done, deadline: float) -> None:
        self.deadline = deadline
        self.ends: list[End] = []
        self._waiting: list[Done] | None = [done]  # None: answered

    @property
    def is_answered(self) -> bool:
        return self._waiting is None

    def wait(self, done: Done) -> None:
        """Call back when it ends or times out; now, if it has timed out."""
        if self._waiting is None:
            done(ErrorCode.REQUEST_TIMED_OUT)
        else:
            self._waiting.append(done)

    def answer(self, error: ErrorCode) -> None:
        """Call all that wait; the second time there are none."""
        waiting, self._waiting = self._waiting or (), None
        for done in waiting:
            done(error)


class ShardLog(Generic[R]):
    """See the module; R: the records. All calls on the loop's thread."""

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        index: int,
        runtime: Runtime,
        timeout_ms: int,
        encode: Callable[[Sequence[R], int], bytes],
        replay: Callable[[R, int | None], End | None],
    ) -> None:
        """`encode(records, now_ms)` makes one batch. `replay(record, append)` changes the state; `append` is the number of the
        pending append, None where it is committed already. For a pending one it may return what ends it."""
        self.name = f"{coordinator_log.topic}-{index}"
        self._log = coordinator_log
        self._index = index
        self._runtime = runtime
        self._timeout_ms = timeout_ms
        self._encode = encode
        self._replay = replay
        self._last_number = 0
        self._pending: dict[int, _Append] = {}  # by number, oldest first
        self._timer = DeadlineTimer(runtime, self._expire)
        self._expires_at = 0.0  # while the timer is armed
        self._loading: Loading | None = None
        self._loaded: _Append | None = None  # stands for what was loaded, until that is committed
        self._is_closed = False

    def append(self, records: Sequence[R], done: Done, *, timeout_ms: int | None = None) -> None:
        """Append the records as one batch and replay them; `done(error)` when they are committed, or have failed and are taken
        back; perhaps before this returns. REQUEST_TIMED_OUT: not known yet, after `timeout_ms` (None: the shard's)."""

        def append_to_log(batch: bytes, ended: Done) -> None:
            self._log.append(self._index, batch, ended)

        self._append_batch(records, partial(self._encode, records), append_to_log, done, timeout_ms)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, *, supports_epoch_bump: bool
    ) -> Verification | None:
        """See Partition.begin_verification."""
        return self._log.begin_verification(
            self._index, producer_id, producer_epoch, supports_epoch_bump=supports_epoch_bump
        )

    def verification_failed(self, producer_id: int, verification: Verification, error: ErrorCode) -> None:
        """See Partition.verification_failed."""
        self._log.verification_failed(self._index, producer_id, verification, error)

    def append_in_transaction(
        self,
        records: Sequence[R],
        encode: Callable[[int], bytes],
        verification: Verification | None,
        done: Done,
    ) -> None:
        """As `append`, for a batch of a producer's transaction, made by `encode(now_ms)`. `verification`: see Partition.append."""

        def append_to_log(batch: bytes, ended: Done) -> None:
            self._log.append_in_transaction(self._index, batch, verification, ended)

        self._append_batch(records, encode, append_to_log, done)

    def append_marker(self, marker: Marker, record: R, done: Done) -> None:
        """Append a marker, and replay `record`, which stands for it; `done` as in `append`."""
        if self._is_closed:
            done(ErrorCode.NOT_COORDINATOR)
        else:
            self._append([record], partial(self._log.append_marker, self._index, marker), done)

    def _append_batch(
        self,
        records: Sequence[R],
        encode: Callable[[int], bytes],
        append_to_log: Callable[[bytes, Done], object],
        done: Done,
        timeout_ms: int | None = None,
    ) -> None:
        if self._is_closed:
            done(ErrorCode.NOT_COORDINATOR)
            return
        try:
            batch = encode(self._runtime.time_ms())
        except EncodeError as reason:  # such as a group id that fits a request but no record
            log.warning("%s: %s", self.name, reason)
            done(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._append(records, partial(append_to_log, batch), done, timeout_ms)

    def _append(
        self,
        records: Sequence[R],
        append_to_log: Callable[[Done], object],
        done: Done,
        timeout_ms: int | None = None,
    ) -> None:
        number = self._next_number()
        at_once: list[ErrorCode] = []
        is_appending = True

        def ended(error: ErrorCode) -> None:
            if is_appending:
                at_once.append(error)
            else:
                self._end(number, error)

        append_to_log(ended)
        is_appending = False
        if at_once and at_once[0] not in COMMITTED:
            done(at_once[0])
        elif at_once and not self._pending:
            for record in records:
                self._replay(record, None)
            done(at_once[0])
        else:
            append = self._add(number, done, timeout_ms)
            ends = [self._replay(record, number) for record in records]
            append.ends = [end for end in ends if end is not None]
            if at_once:
                self._end(number, at_once[0])

    def when_settled(self, done: Done) -> None:
        """Call back once everything appended so far is committed or has failed; at once if nothing is pending. NOT_COORDINATOR once
        it is closed."""
        if self._is_closed:
            done(ErrorCode.NOT_COORDINATOR)
        elif self._pending:
            self._pending[next(reversed(self._pending))].wait(done)
        else:
            done(ErrorCode.NONE)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_replicated(self) -> bool:
        """Whether another broker may lead the partition by now, without this one knowing."""
        return self._log.is_replicated(self._index)

    # -- loading

    def load(self, replay: Replay, done: Callable[[Exception | None], object]) -> None:
        """Have `replay` take the partition; then `done(None)`, or `done(error)` when it can't be loaded; perhaps before this
        returns.

        Records that are not committed yet are replayed as well: they are committed before anything behind them is, and requests
        for the state wait for that (`when_load_committed`). Kafka answers as of the high watermark, which a new leader learns
        late, so that a position that was acknowledged may be missing for a moment."""

        def loaded(error: Exception | None) -> None:
            if error is None:
                self._await_commit()
            done(error)

        self._loading = self._log.load(self._index, replay, loaded)

    def _await_commit(self) -> None:
        number = self._next_number()
        self._loaded = self._add(number, lambda _: None)

        def committed(error: ErrorCode) -> None:
            if error in COMMITTED:
                error = ErrorCode.NONE
                self._loaded = None
            self._end(number, error)

        self._log.when_committed(self._index, committed)

    def when_load_committed(self, done: Done) -> None:
        """Call back once what was loaded is committed; at once if it is. COORDINATOR_LOAD_IN_PROGRESS when that takes too
        long."""

        def ended(error: ErrorCode) -> None:
            is_late = error == ErrorCode.REQUEST_TIMED_OUT
            done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_late else error)

        if self._loaded is None:
            done(ErrorCode.NONE)
        else:
            self._loaded.wait(ended)

    def close(self) -> None:
        """The partition is not led here any more: nothing is loaded or appended, and all that waits gets NOT_COORDINATOR. What
        was pending is not taken back."""
        self._is_closed = True
        if self._loading is not None:
            self._loading.cancel()
        self._timer.cancel()
        appends, self._pending = self._pending, {}
        for append in appends.values():
            append.answer(ErrorCode.NOT_COORDINATOR)

    # -- pending appends

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _add(self, number: int, done: Done, timeout_ms: int | None = None) -> _Append:
        timeout_s = (self._timeout_ms if timeout_ms is None else timeout_ms) / 1000
        append = self._pending[number] = _Append(done, self._runtime.monotonic() + timeout_s)
        self._expire_at(append.deadline)
        return append

    def _end(self, number: int, error: ErrorCode) -> None:
        append = self._pending.pop(number, None)
        if append is None:  # closed
            return
        for end in reversed(append.ends):
            end(error in COMMITTED)
        append.answer(error)

    def _expire_at(self, deadline: float) -> None:
        if not self._timer.armed or deadline < self._expires_at:
            self._expires_at = deadline
            self._timer.set(round((deadline - self._runtime.monotonic()) * 1000))

    def _expire(self) -> None:
        now = self._runtime.monotonic()
        deadlines = []
        for append in tuple(self._pending.values()):
            if append.is_answered:
                continue
            if append.deadline > now + 0.0005:
                deadlines.append(append.deadline)
            else:
                append.answer(ErrorCode.REQUEST_TIMED_OUT)
        if deadlines:
            self._expire_at(max(min(deadlines), now + _TIMER_MIN_S))
