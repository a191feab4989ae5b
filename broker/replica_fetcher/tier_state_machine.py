"""Begins followers' logs behind what is tiered (KIP-405): their leader has the records before only in remote storage.

The leader has answered OFFSET_MOVED_TO_TIERED_STORAGE, or the log is empty and may begin at what is not tiered yet (KIP-1023,
follower.fetch.last.tiered.offset.enable). The follower asks where that begins, reads leader epochs and producers of what lies
before from remote storage, and restarts its log there, with the leader's log start: what is not copied here is read from
the store. As Kafka's TierStateMachine.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.replica_fetcher.leader_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
)
from barnabas.broker.replica_fetcher.state import Status
from barnabas.runtime.slices import run_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barnabas.broker.replica_fetcher.leader_offsets import LeaderOffsets
    from barnabas.broker.replica_fetcher.state import FetchState
    from barnabas.broker.replica_fetcher.truncation import ReplicaTruncations
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.segments import AuxState
    from barnabas.storage.manager.manager import LogManager

log = logging.getLogger("barnabas.replication")


class TierStateMachine:
    """See the module. `left(states, error)`: these may be fetched again, with an error of the leader after a while; their logs were
    left as they are. `delay(state)`: it is to be tried again later. Where they restart, ReplicaTruncations says when. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        log_manager: LogManager,
        offsets: LeaderOffsets,
        truncations: ReplicaTruncations,
        is_current: Callable[[FetchState], bool],
        left: Callable[[list[FetchState], BaseException | None], object],
        delay: Callable[[FetchState], object],
    ) -> None:
        self._runtime = runtime
        self._log_manager = log_manager
        self._offsets = offsets
        self._truncations = truncations
        self._is_current = is_current
        self._left = left
        self._delay = delay

    def begin_at_local_start(self, states: list[FetchState]) -> None:
        """The leader has the records at their ends in remote storage alone: begin where it has more."""
        self._offsets.ask(states, (EARLIEST_LOCAL, EARLIEST), self._received, self._left)

    def begin_at_pending(self, states: list[FetchState]) -> None:
        """Their logs are empty: begin at what is not in remote storage yet."""
        self._offsets.ask(states, (EARLIEST_PENDING_UPLOAD, EARLIEST), self._received, self._left)

    def _received(self, found: Iterator[tuple[FetchState, list[int]]]) -> None:
        for state, (offset, log_start_offset) in found:
            held = state.partition.log
            if held.remote is None:  # this broker's metadata is behind
                self._delay(state)
            elif offset <= max(held.log_end_offset, log_start_offset):
                self._left([state], None)  # nothing behind its end is tiered any more
            else:
                run_steps(
                    self._runtime,
                    held.remote.aux_state(offset, state.leader_epoch),
                    partial(self._read, state, log_start_offset),
                    remote=True,
                )

    def _read(
        self,
        state: FetchState,
        log_start_offset: int,
        aux_state: AuxState | None,
        error: BaseException | None,
    ) -> None:
        if not self._awaits(state):
            return
        if aux_state is None:
            self._not_yet(state, error)
            return
        held = state.partition.log
        log.info(
            "%s: has %d to %d, and begins at %d, as what lies before is tiered",
            state.name,
            held.log_start_offset,
            held.log_end_offset,
            aux_state.offset,
        )

        def written(_: None, failure: BaseException | None) -> None:
            if isinstance(failure, OSError):
                held.io_failed(failure)
            checkpointed(failure)

        def checkpointed(failure: BaseException | None) -> None:
            if not self._awaits(state) or state.partition.log is not held:
                if not held.closed:
                    held.forget_local_start()
            elif failure is not None:
                self._not_yet(state, failure)
            else:
                self._truncations.restart_behind(state, aux_state, log_start_offset)

        def prepare(failure: BaseException | None) -> None:
            if failure is not None:
                checkpointed(failure)
            else:
                self._runtime.run_in_thread(partial(held.prepare_restart_behind, aux_state), written)

        self._log_manager.when_start_is_checkpointed(held, prepare)

    def _awaits(self, state: FetchState) -> bool:
        """Whether the partition still waits for this, and its log is as it was."""
        return self._is_current(state) and state.status is Status.AWAITING_OFFSETS

    def _not_yet(self, state: FetchState, error: BaseException | None) -> None:
        log.warning("%s can't begin behind what is tiered, which is tried again: %s", state.name, error)
        self._delay(state)
