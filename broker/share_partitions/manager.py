"""The share partitions that this broker leads: loaded when a member first fetches from one, dropped with the leadership.

A share partition belongs to one leader epoch. Reading its state fences the leaders of earlier epochs at the share coordinator;
when this broker is fenced there itself, it drops the share partition. Those of a group without sessions here are dropped, as in
Kafka: the offsets of a group without members may be altered.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.timers import DeadlineTimer
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.broker.share_coordinator.state_batches import NO_START
from barnabas.broker.share_partitions.group_settings import ShareGroupSettings, share_group_settings
from barnabas.broker.share_partitions.sessions import Key, ShareSession, ShareSessionCache, TopicPartition
from barnabas.broker.share_partitions.share_partition import (
    RENEW,
    Acknowledgement,
    SharePartition,
)
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import GROUP_RESOURCE
from barnabas.controller.operations.features import SHARE_VERSION
from barnabas.runtime.slices import StepQueue, TurnQueue, in_slices
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.replica import Waiters
    from barnabas.broker.share_coordinator.persister import Persister, StateWriter, StoredState
    from barnabas.broker.share_coordinator.state_batches import StateBatch
    from barnabas.broker.share_partitions.in_flight import Transition
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.timestamps import TimestampOffset

log = logging.getLogger("barnabas.share_partitions")

# What the leader answers instead of the coordinator's error.
_LEADER_ERRORS: Final = {
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    **{
        each: each
        for each in (
            ErrorCode.NONE,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.GROUP_ID_NOT_FOUND,
        )
    },
}
LOOKUPS_AT_ONCE: Final = 16  # by time; those in tiered topics may wait long for the object store
LOCK_TIMER_MIN_S: Final = 0.01  # between two looks at locks that expire

Acknowledged = Callable[[ErrorCode, str | None], object]


class LedSharePartition:
    """A share partition of a partition that is led here. `state` is None until it is loaded; `error` says why it is not."""

    def __init__(self, manager: SharePartitionManager, key: SharePartitionKey, partition: Partition) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state: SharePartition | None = None
        self.error = ErrorCode.NONE
        self.waiters: Waiters = {}
        self._manager = manager
        self._writer: StateWriter | None = None
        self._writes = 0  # not answered yet
        self._timer = DeadlineTimer(manager.runtime, self._expire)
        self._timer_at = 0.0  # on the monotonic clock, while it is armed

    @property
    def settings(self) -> ShareGroupSettings:
        return self._manager.settings(self.key.group_id)

    @property
    def is_valid(self) -> bool:
        """Whether this broker has led the partition since."""
        partition = self.partition
        return partition.is_leader and partition.leader_epoch == self.leader_epoch and not self.error

    @property
    def is_writing(self) -> bool:
        return self._writes > 0

    def loaded(self, state: SharePartition, writer: StateWriter) -> None:
        self.state, self._writer = state, writer
        self.wake()

    def failed(self, error: ErrorCode) -> None:
        """It can't be used; the next fetch loads it again."""
        self.error = error
        self._timer.cancel()
        self.wake()

    def wake(self) -> None:
        """Have the fetches that wait for it look again."""
        for waiter in tuple(self.waiters):
            waiter.changed(self.partition)

    def refresh(self) -> SharePartition:
        """The state, as of the log's start."""
        assert self.state is not None
        self.state.log_start_moved(self.partition.log.log_start_offset)
        return self.state

    def acquired(self, lock_s: float) -> None:
        """Watch the locks of records that were just acquired, or renewed. Those of earlier ones may be longer."""
        expires_at = self._manager.runtime.monotonic() + lock_s
        if not self._timer.armed or expires_at < self._timer_at:
            self._set_timer(expires_at)

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[Acknowledgement], done: Acknowledged
    ) -> None:
        """`done(error, message)` when the new states are persisted; on an error nothing has changed."""
        if self.state is None:
            done(ErrorCode.INVALID_RECORD_STATE, None)
            return
        settings = self.settings
        renews = any(RENEW in each.types for each in acknowledgements)
        if renews and not settings.allows_renewal:
            done(ErrorCode.INVALID_RECORD_STATE, None)
            return
        try:
            transition = self.refresh().acknowledge(
                member_id, acknowledgements, settings.limits, self._manager.runtime.monotonic()
            )
        except ApiError as error:
            done(error.error, error.message)
            return
        if renews:
            self.acquired(settings.limits.lock_s)
        self._persist(transition, done)

    def release(self, member_id: str, done: Acknowledged) -> None:
        """The member's session has ended."""
        if self.state is None or self.error:
            done(ErrorCode.NONE, None)
        else:
            self._persist(self.refresh().release(member_id, self.settings.limits), done)

    def _persist(self, transition: Transition, done: Acknowledged) -> None:
        state = self.state
        assert state is not None
        if not transition.batches:
            done(ErrorCode.NONE, None)
            return

        def written(error: ErrorCode) -> None:
            now = self._manager.runtime.monotonic()
            state.complete(transition, not error, self.settings.limits, now)
            self._check_written(error)
            if error:
                self._watch_locks()  # the timer may be that of a later lock
            self.wake()
            done(error, error.message if error else None)

        self._write(transition.batches, written)

    def _write(self, batches: Sequence[StateBatch], done: Callable[[ErrorCode], object]) -> None:
        assert self.state is not None
        assert self._writer is not None
        self._writes += 1

        def written(error: ErrorCode) -> None:
            self._writes -= 1
            done(_leader_error(error))
            self._manager.drop_unused(self)

        self._writer.write(self.state.start_offset, self.state.delivery_complete_count, batches, written)

    def _expire(self) -> None:
        self.unlock(self._manager.runtime.monotonic())

    def unlock(self, deadline: float) -> None:
        """Unlock what is locked until then, or not as long. This holds even if it can't be persisted."""
        if not self.is_valid:
            return
        state = self.refresh()
        changed = state.expire(self.settings.limits, deadline)
        if changed:
            self._write(changed, self._check_written)
            self.wake()
        self._watch_locks()

    def _check_written(self, error: ErrorCode) -> None:
        """Unless the coordinator could not be reached, the stored state is not the one that was loaded: load it again."""
        if error not in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._manager.drop(self, error)

    def _watch_locks(self) -> None:
        """Set the timer for the next lock that expires."""
        assert self.state is not None
        deadline = self.state.next_deadline()
        if deadline is not None and not self.error:
            self._set_timer(deadline)

    def _set_timer(self, expires_at: float) -> None:
        self._timer_at = expires_at
        delay_s = max(expires_at - self._manager.runtime.monotonic(), LOCK_TIMER_MIN_S)
        self._timer.set(round(delay_s * 1000 + 0.5))


class SharePartitionManager:
    """See the module. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        controller: Controller,
        persister: Persister,
    ) -> None:
        self.runtime = runtime
        self._config = config
        self._controller = controller
        self.persister = persister
        self.turns = TurnQueue(runtime)  # of fetches that look again: many may wait for one share partition
        self._led: dict[str, dict[TopicPartition, LedSharePartition]] = {}  # by group
        self._lookups = StepQueue(runtime, LOOKUPS_AT_ONCE, remote=True)
        self._releasing: Counter[Key] = Counter()  # sessions that have ended, and are not released yet
        self._releasing_of_group: Counter[str] = Counter()
        self._waiting: dict[Key, list[Callable[[], object]]] = {}  # for that
        self.sessions = ShareSessionCache(config.group_share_max_share_sessions, self._sessions_ended)

    def stop(self) -> None:
        """Nothing is persisted any more, and no lock expires."""
        self.persister.close()
        for led in self._all():
            self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def metadata_changed(
        self, _image: MetadataImage, topic_ids: Collection[bytes], _config_topics: set[str]
    ) -> None:
        """These topics changed: drop the share partitions that are not led here any more."""
        for led in self._all():
            if led.key.topic_id in topic_ids and not led.is_valid:
                self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def image_changed(self, image: MetadataImage) -> None:
        """End all sessions when share groups are switched off."""
        if not image.features.get(SHARE_VERSION, 0):
            self.sessions.end_all()

    def settings(self, group_id: str) -> ShareGroupSettings:
        """Those of now."""
        configs = self._controller.image.configs.get((GROUP_RESOURCE, group_id), {})
        return share_group_settings(self._config, configs)

    def find(self, group_id: str, topic_id: bytes, index: int) -> LedSharePartition | None:
        """The share partition, if it is in use here."""
        led = self._led.get(group_id, {}).get((topic_id, index))
        if led is not None and not led.is_valid:
            self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return None
        return led

    def get(self, group_id: str, partition: Partition) -> LedSharePartition:
        """The share partition, which is loaded if it is not in use yet. The partition is led here."""
        led = self.find(group_id, partition.topic_id, partition.partition)
        if led is None or led.partition is not partition:
            key = SharePartitionKey(group_id, partition.topic_id, partition.partition)
            led = LedSharePartition(self, key, partition)
            self._led.setdefault(group_id, {})[key.topic_id, key.partition] = led
            self._load(led)
        return led

    def of_group(self, group_id: str) -> list[LedSharePartition]:
        """Those that are in use here and loaded."""
        of_group = self._led.get(group_id, {})
        return [led for led in of_group.values() if led.is_valid and led.state is not None]

    def drop(self, led: LedSharePartition, error: ErrorCode) -> None:
        """This broker does not lead it any more, or can't use it."""
        group_id, topic_id, index = led.key
        of_group = self._led.get(group_id, {})
        if of_group.get((topic_id, index)) is led:
            del of_group[topic_id, index]
            if not of_group:
                del self._led[group_id]
        led.failed(error)

    def _all(self) -> list[LedSharePartition]:
        return [led for of_group in self._led.values() for led in of_group.values()]

    # -- the end of sessions

    def end(self, session: ShareSession, done: Callable[[], object]) -> None:
        """End the session and release what its member has acquired, then `done()`, perhaps before this returns. If it has ended
        already nothing is released: what the member has may be that of its next session."""
        if self.sessions.remove(session):
            self._release([session], done)
        else:
            done()

    def when_released(self, key: Key, then: Callable[[], object]) -> None:
        """Call back when what the member had in earlier sessions is released, perhaps now. What it acquires before would be
        released, too."""
        if key in self._releasing:
            self._waiting.setdefault(key, []).append(then)
        else:
            then()

    def _sessions_ended(self, sessions: Sequence[ShareSession]) -> None:
        self._release(sessions, lambda: None)

    def _release(self, sessions: Sequence[ShareSession], done: Callable[[], object]) -> None:
        """Release what the members of sessions that have ended have, in slices, then `done()`."""
        missing = 1

        def released(_error: ErrorCode, _message: str | None) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done()

        def release() -> Iterator[None]:
            nonlocal missing
            for session in sessions:
                group_id, member_id = session.key
                for topic_id, index in tuple(session.partitions):
                    led = self.find(group_id, topic_id, index)
                    if led is not None:
                        missing += 1
                        led.release(member_id, released)
                    yield

        def all_released() -> None:
            for session in sessions:
                self._member_released(session.key)
            released(ErrorCode.NONE, None)

        self._releasing.update(session.key for session in sessions)
        self._releasing_of_group.update(session.key[0] for session in sessions)
        in_slices(self.runtime, release(), all_released)

    def _member_released(self, key: Key) -> None:
        """What one session of the member had acquired is released."""
        group_id, _ = key
        self._releasing_of_group[group_id] -= 1
        if not self._releasing_of_group[group_id]:
            del self._releasing_of_group[group_id]
        self._releasing[key] -= 1
        if self._releasing[key]:
            return
        del self._releasing[key]
        if self._is_unused(group_id):
            in_slices(self.runtime, self._drop_group(group_id), lambda: None)
        for then in self._waiting.pop(key, ()):
            self.turns.add(then)

    def _drop_group(self, group_id: str) -> Iterator[None]:
        """No member has a session here: the next one has the states loaded again."""
        for led in tuple(self._led.get(group_id, {}).values()):
            self.drop_unused(led)
            yield

    def drop_unused(self, led: LedSharePartition) -> None:
        """Unless a member of the group has a session, or a state is being written, which the next one has to read."""
        if not led.is_writing and self._is_unused(led.key.group_id):
            self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _is_unused(self, group_id: str) -> bool:
        return not self.sessions.has_group(group_id) and group_id not in self._releasing_of_group

    # -- loading

    def _load(self, led: LedSharePartition) -> None:
        def read(stored: StoredState | None, error: ErrorCode) -> None:
            if not led.is_valid:
                self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif stored is None:
                self.drop(led, _leader_error(error))
            elif stored.start_offset == NO_START:
                self._begin_at(led, stored)
            else:
                self._loaded(led, stored, stored.start_offset)

        self.persister.read(led.key, led.leader_epoch, read)

    def _begin_at(self, led: LedSharePartition, stored: StoredState) -> None:
        """The group has no position: share.auto.offset.reset."""
        settings = led.settings
        partition = led.partition
        end = partition.last_stable_offset if settings.is_read_committed else partition.high_watermark
        if settings.reset == "latest":
            self._loaded(led, stored, end)
            return
        if settings.reset == "earliest":
            self._loaded(led, stored, partition.log.log_start_offset)
            return
        assert isinstance(settings.reset, int)

        def found(result: TimestampOffset | None, error: BaseException | None) -> None:
            if not led.is_valid:
                self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif error is not None:
                self.drop(led, ErrorCode.UNKNOWN_SERVER_ERROR)
            else:
                self._loaded(led, stored, end if result is None else min(result.offset, end))

        time_ms = self.runtime.time_ms() - settings.reset
        try:
            self._lookups.add(partition.log.timestamp_lookup(time_ms), found)
        except StorageError as error:
            self.drop(led, error.error)

    def _loaded(self, led: LedSharePartition, stored: StoredState, start_offset: int) -> None:
        writer = self.persister.writer(led.key, stored.state_epoch, led.leader_epoch)
        led.loaded(SharePartition(start_offset, stored.batches), writer)
        log.debug("share partition %.300s begins at %d", led.key.text, start_offset)


def _leader_error(error: ErrorCode) -> ErrorCode:
    return _LEADER_ERRORS.get(error, ErrorCode.UNKNOWN_SERVER_ERROR)
