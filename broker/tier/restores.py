"""Holds partitions back that begin with what is in remote storage (barnabas.remote.restore), until their logs have it.

Until then this broker does not lead them for clients and followers (NOT_LEADER_OR_FOLLOWER, which they try again): what is
appended to an empty log would have the offsets of records that are in remote storage.

A transaction whose marker lay behind what is in remote storage is open in such a log, and no coordinator knows it. Its outcome is
lost; it is aborted, or the last stable offset would stay where it began.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.controller.config.topic_configs import RestoreSource
from barnabas.runtime.backoff import Backoff
from barnabas.storage.errors import StorageError

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.log import Log
    from barnabas.storage.manager.manager import LogManager
    from barnabas.storage.tier.remote_log_manager import RemoteLogManager
    from barnabas.storage.tier.restore import Restored

log = logging.getLogger("barnabas.tier")

RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 30.0


class _Waiting(msgspec.Struct, eq=False):
    """A partition that is led here, and whose log is empty. `ready()`: it may be led."""

    partition: Partition
    log: Log
    leader_epoch: int
    source: RestoreSource
    ready: Callable[[], object]
    backoff: Backoff


class Restores:
    """See the module. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, log_manager: LogManager, manager: RemoteLogManager) -> None:
        self._runtime = runtime
        self._log_manager = log_manager
        self._manager = manager
        self._waiting: dict[Log, _Waiting] = {}
        self._empty: set[Log] = set()  # there was nothing for them in remote storage

    @property
    def count(self) -> int:
        """Of the partitions that wait."""
        return len(self._waiting)

    def stop(self) -> None:
        """Go on with nothing."""
        self._waiting.clear()

    def forget(self, held: Log) -> None:
        """Its partition is not here any more."""
        self._waiting.pop(held, None)
        self._empty.discard(held)

    def may_lead(self, partition: Partition, leader_epoch: int, ready: Callable[[], object]) -> bool:
        """Whether this broker may lead the partition in this epoch now. If not, it must have this epoch and follow none, and
        `ready()` is called once it may lead, unless another epoch or leader comes before."""
        held = partition.log
        source = RestoreSource.parse(held.config.remote_restore)
        if source is None or held.offline or held in self._empty:
            return True
        if held.log_end_offset > 0:
            # A kill may have come before. One that began below the log's start may be a live one, whose records were deleted.
            _abort_open_transactions(held, leader_epoch, held.log_start_offset)
            return True
        waiting = self._waiting.get(held)
        if waiting is None or waiting.leader_epoch != leader_epoch:
            backoff = Backoff(self._runtime, RETRY_FIRST_S, RETRY_LONGEST_S)
            waiting = self._waiting[held] = _Waiting(partition, held, leader_epoch, source, ready, backoff)
            # The partition takes this epoch when this has returned.
            self._runtime.call_soon(partial(self._begin, waiting))
        return False

    def _begin(self, waiting: _Waiting) -> None:
        if self._is_current(waiting):
            self._manager.restore(
                waiting.log,
                waiting.source.cluster_id,
                waiting.source.topic_id,
                waiting.leader_epoch,
                lambda: not self._is_current(waiting),
                lambda: not waiting.log.config.remote_restore,
                partial(self._restored, waiting),
            )

    def _is_current(self, waiting: _Waiting) -> bool:
        held, partition = waiting.log, waiting.partition
        if self._waiting.get(held) is not waiting:
            return False
        is_current = (
            partition.log is held
            and not held.closed
            and not held.offline
            and not partition.is_leader
            and partition.leader_epoch == waiting.leader_epoch
        )
        if not is_current:
            del self._waiting[held]
        return is_current

    def _restored(self, waiting: _Waiting, restored: Restored | None, error: BaseException | None) -> None:
        if not self._is_current(waiting):
            return
        if restored is None:
            self._failed(waiting, error)
        elif restored.state.offset == 0:
            self._empty.add(waiting.log)
            self._lead(waiting)
        else:
            self._log_manager.when_start_is_checkpointed(
                waiting.log, partial(self._prepare, waiting, restored)
            )

    def _prepare(self, waiting: _Waiting, restored: Restored, error: BaseException | None) -> None:
        if error is not None:
            self._failed(waiting, error)
        else:
            self._runtime.run_in_thread(
                partial(waiting.log.prepare_restart_behind, restored.state),
                partial(self._restart, waiting, restored),
            )

    def _restart(
        self, waiting: _Waiting, restored: Restored, _prepared: None, error: BaseException | None
    ) -> None:
        held = waiting.log
        if not self._is_current(waiting):
            if not held.closed:
                held.forget_local_start()
            return
        try:
            if error is not None:
                raise error
            finish = held.restart_behind(restored.state, restored.log_start_offset)
        except OSError as failure:
            held.io_failed(failure)
            self._failed(waiting, failure)
        else:
            self._runtime.run_in_thread(finish, partial(self._restarted, waiting))

    def _restarted(self, waiting: _Waiting, _finished: object, error: BaseException | None) -> None:
        held = waiting.log
        if isinstance(error, OSError):
            held.io_failed(error)
        if not self._is_current(waiting):
            return
        log.info(
            "%s: begins with the records from %d to %d of the topic %s of cluster %s in remote storage",
            held.name,
            held.log_start_offset,
            held.log_end_offset - 1,
            waiting.source.topic_id,
            waiting.source.cluster_id,
        )
        _abort_open_transactions(held, waiting.leader_epoch, 0)
        self._lead(waiting)

    def _lead(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.log]
        waiting.ready()

    def _failed(self, waiting: _Waiting, error: BaseException | None) -> None:
        if not self._is_current(waiting):
            return
        expected = isinstance(error, OSError | ValueError)
        log.warning(
            "%s can't be restored from remote storage yet, and has no leader until then: %s",
            waiting.log.name,
            error,
            exc_info=None if expected else error,
        )
        self._runtime.call_later(waiting.backoff.next_s(), partial(self._begin, waiting))


def _abort_open_transactions(held: Log, leader_epoch: int, from_offset: int) -> None:
    """Those that began at this offset or later in what is in remote storage alone: that ends below the last stable offset of the log
    that it comes from, so that they had ended there. Called before the partition is led."""
    state = held.producers.state
    if state is None:
        return
    for first_offset, producer_id in tuple(state.ongoing.items()):
        if not from_offset <= first_offset < held.segments.bases[0]:
            continue
        entry = state.entries[producer_id]
        log.warning(
            "%s: the transaction of producer %d, epoch %d, from %d on is aborted: its end is not in remote storage",
            held.name,
            producer_id,
            entry.producer_epoch,
            first_offset,
        )
        try:
            marker = held.marker_to_append(
                producer_id,
                entry.producer_epoch,
                commit=False,
                coordinator_epoch=entry.coordinator_epoch,
                transaction_version=1,
            )
            held.append_as_leader(marker, leader_epoch, from_client=False)
        except StorageError as error:  # the next leader tries again
            log.error("%s: the transaction could not be aborted: %s", held.name, error)
