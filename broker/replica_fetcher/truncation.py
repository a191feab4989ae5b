"""Truncates and restarts logs for a fetcher: many at once, in slices of the loop.

First the checkpoints are lowered, then the logs are truncated, then a thread makes that durable; the partitions are not
fetched before. A partition that gets another leader in between keeps its log: its next fetcher compares the logs again.

Where a log is cut (KIP-101, KIP-279, KIP-595): to a fetch whose last epoch and offset do not match its log, the leader answers
with the largest epoch up to that one that it has, and with that epoch's end offset.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.runtime.slices import in_slices
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from barnabas.broker.replica_fetcher.state import FetchState
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.log import Log
    from barnabas.storage.log.segments import AuxState
    from barnabas.storage.manager.manager import LogManager

log = logging.getLogger("barnabas.replication")

_SEALING_WAIT_S: Final = 0.005  # between two checks whether a thread has sealed a segment


def diverging_offset(log: Log, leader_epoch: int, leader_end_offset: int) -> int:
    """The offset to cut the log back to. If the follower has nothing of that epoch, this is the end of its own latest epoch
    before it, and the next fetch compares again. As Kafka's AbstractFetcherThread.getOffsetTruncationState."""
    end = log.log_end_offset
    if leader_end_offset < 0:  # the leader has no epoch up to that one
        return min(log.high_watermark, end)
    if leader_epoch < 0:
        return min(leader_end_offset, end)
    own_epoch, own_end_offset = log.epoch_end_offset(leader_epoch)
    if own_end_offset < 0:  # this log has no epochs
        return min(leader_end_offset, end)
    if own_epoch != leader_epoch:
        return min(own_end_offset, end)
    return min(own_end_offset, leader_end_offset, end)


def offset_out_of_range(log: Log, leader_start_offset: int, leader_end_offset: int) -> tuple[int, bool]:
    """(offset to continue at, whether the log is emptied) when the leader has nothing at the follower's end.

    A leader whose log ends before the follower's was elected uncleanly, or has lost its disk: the follower truncates to the
    leader's end. A leader whose log starts behind the follower's end has deleted records that the follower lacks: the
    follower restarts there. Else the leader has caught up since. As Kafka's AbstractFetcherThread.fetchOffsetAndTruncate.
    """
    end = log.log_end_offset
    if leader_end_offset < end:
        return leader_end_offset, False
    if leader_start_offset > end:
        return leader_start_offset, True
    return end, False


class ReplicaTruncations:
    """See the module. `truncated(states, error)` is called when partitions may be fetched again."""

    def __init__(
        self,
        runtime: Runtime,
        log_manager: LogManager,
        is_current: Callable[[FetchState], bool],
        truncated: Callable[[list[FetchState], BaseException | None], object],
    ) -> None:
        self._runtime = runtime
        self._log_manager = log_manager
        self._is_current = is_current
        self._truncated = truncated

    def cut(self, cuts: list[tuple[FetchState, int]]) -> None:
        """Cut each log back to its offset."""

        def ready(error: BaseException | None) -> None:
            if error is not None:
                self._truncated([state for state, _ in cuts], error)
                return
            works: list[tuple[FetchState, Callable[[], object]]] = []
            in_slices(self._runtime, self._cut_each(cuts, works), lambda: self.make_durable(works))

        self._log_manager.when_truncatable(
            [(state.partition.log, offset) for state, offset in cuts if self._is_current(state)], ready
        )

    def _cut_each(
        self, cuts: list[tuple[FetchState, int]], works: list[tuple[FetchState, Callable[[], object]]]
    ) -> Iterator[None]:
        for state, offset in cuts:
            if not self._is_current(state):
                continue
            held = state.partition.log
            if held.is_sealing_from(offset):
                self._runtime.call_later(_SEALING_WAIT_S, partial(self.cut, [(state, offset)]))
                continue
            before = held.log_end_offset, held.epochs.latest_epoch
            if state.partition.observer is not None:
                state.partition.observer.cutting(held, offset)
            try:
                finish = held.cut_to(offset)
            except (OSError, StorageError) as error:
                self._failed(state, error)
                continue
            if finish is not None:
                works.append((state, finish))
            elif before == (held.log_end_offset, held.epochs.latest_epoch):
                self._truncated([state], StorageError(ErrorCode.UNKNOWN_LEADER_EPOCH, "nothing to cut"))
            else:
                self._truncated([state], None)
            yield

    def restart(self, state: FetchState, offset: int) -> None:
        """Empty the log, and start it at `offset`."""
        self._restart(state, lambda held: held.restart_at(offset))

    def restart_behind(self, state: FetchState, aux_state: AuxState, log_start_offset: int) -> None:
        """Empty the log, and start it behind what is tiered; `log_start_offset` is the leader's. It has been prepared."""
        if aux_state.offset > state.partition.log.log_end_offset:
            self._restart(state, lambda held: held.restart_behind(aux_state, log_start_offset))
        else:
            self._truncated([state], None)

    def _restart(self, state: FetchState, restart: Callable[[Log], Callable[[], object]]) -> None:
        if not self._is_current(state):
            return
        held = state.partition.log
        if held.is_sealing_from(0):
            self._runtime.call_later(_SEALING_WAIT_S, partial(self._restart, state, restart))
            return
        if state.partition.observer is not None:
            state.partition.observer.cutting(held, held.log_start_offset)
        try:
            works = [(state, restart(held))]
        except (OSError, StorageError) as error:
            self._failed(state, error)
            return
        self.make_durable(works)

    def _failed(self, state: FetchState, error: BaseException) -> None:
        if isinstance(error, OSError):
            state.partition.log.io_failed(error)
        self._truncated([state], error)

    def make_durable(self, works: list[tuple[FetchState, Callable[[], object]]]) -> None:
        """Have a thread make the truncations durable."""
        if not works:
            return

        def work() -> None:
            for _, finish in works:
                finish()

        def done(_result: None, error: BaseException | None) -> None:
            if isinstance(error, OSError):
                for state, _ in works:
                    if self._is_current(state):
                        state.partition.log.io_failed(error)
            self._truncated([state for state, _ in works], error)

        self._runtime.run_in_thread(work, done)

    # -- offsets out of the leader's range

    def out_of_range(self, found: Iterable[tuple[FetchState, list[int]]]) -> None:
        """The leader has nothing at these followers' ends; each with where its log ends and starts: truncate or restart."""
        cuts: list[tuple[FetchState, int]] = []
        for state, (end, start) in found:
            held = state.partition.log
            offset, restarts = offset_out_of_range(held, start, end)
            log.warning(
                "%s: has %d to %d, its leader %d to %d; continues at %d",
                state.name,
                held.log_start_offset,
                held.log_end_offset,
                start,
                end,
                offset,
            )
            if restarts:
                self.restart(state, offset)
            elif offset < held.log_end_offset:
                cuts.append((state, offset))
            else:
                self._truncated([state], None)
        if cuts:
            self.cut(cuts)
