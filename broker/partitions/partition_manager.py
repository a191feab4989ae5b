"""The partitions of this broker, kept in step with the metadata image.

After each committed change it gives partitions their present roles, creates new ones, closes and deletes removed ones, and
gives changed configs to the logs, in slices; roles have a queue of their own, so that a new leader does not wait while files
are created. At start it does the same for the whole image. Every half of replica.lag.time.max.ms, as in Kafka, leaders
propose ISRs without followers that lag.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from barnabas.broker.partitions.partition import Partition
from barnabas.broker.partitions.topic_stats import BrokerTopicStats
from barnabas.controller.operations.cluster_view import MIGRATING, UNASSIGNED, directory_of
from barnabas.runtime.slices import Periodic, WorkQueue, in_slices
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log_config import LogConfig
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.uuids import uuid_to_string

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from barnabas.broker.partitions.alter_partition import AlterPartitionManager
    from barnabas.broker.partitions.isr_rules import IsrRules
    from barnabas.controller.metadata.image import MetadataImage, PartitionState, TopicChanges, TopicImage
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.log import Log
    from barnabas.storage.manager.manager import LogManager

log = logging.getLogger("barnabas.partitions")


def _ignore(*_: object) -> None:
    """No callback is wanted."""


class PartitionManager:
    """Finds a partition by topic name or id. All calls on the loop's thread."""

    def __init__(
        self,
        log_manager: LogManager,
        rules: IsrRules,
        proposals: AlterPartitionManager,
        topic_configs: Callable[[MetadataImage, str], Mapping[str, str]],
        runtime: Runtime,
        *,
        on_following: Callable[[list[Partition]], object] = _ignore,
        on_not_following: Callable[[list[Partition]], object] = _ignore,
        on_opened: Callable[[Partition, PartitionState], object] = _ignore,
        on_changed: Callable[[Partition], object] = _ignore,
        on_removed: Callable[[Partition, bool], object] = _ignore,
        may_lead: Callable[[Partition, int, Callable[[], object]], bool] = lambda *_: True,
        has_session: Callable[[], bool] = lambda: True,
    ) -> None:
        """`topic_configs(image, topic)`: every topic-level setting, by Kafka's name. `on_following`: partitions that follow another
        leader, or in another epoch, than before; `on_not_following`: partitions that follow none. `on_opened`: a partition whose
        log has been opened. `on_changed`: a partition that has taken a role or new settings. `on_removed(partition, deleted)`: it is
        not here any more; `deleted`: nor anywhere else. `may_lead(partition, leader_epoch, ready)`: whether it can be led here already;
        where not, `ready` is called once it can. `has_session()`: whether the controller counts this broker as alive."""
        self._log_manager = log_manager
        self.rules = rules
        self.proposals = proposals
        self._node_id = rules.node_id
        self._runtime = runtime
        self._topic_configs = topic_configs
        # By name and by id it is the same dict of a topic's partitions by index.
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[bytes, dict[int, Partition]] = {}
        self.topic_stats = BrokerTopicStats()
        # By partition key (fastpath/partition_key.py); emptied when partitions come or go.
        self.by_name_key: dict[bytes, Partition] = {}
        self.by_id_key: dict[bytes, Partition] = {}
        self.on_following = on_following
        self.on_not_following = on_not_following
        self._on_opened = on_opened
        self._on_changed = on_changed
        self._on_removed = on_removed
        self._may_lead = may_lead
        self.has_session = has_session
        self._expiration: Periodic | None = None
        self._unmade: set[tuple[bytes, int]] = set()  # whose log could not be created; retried
        self._image: MetadataImage  # of the last change; a snapshot brings another one
        self._lost_logs: set[tuple[bytes, int]] = set()  # whose log is in a directory that is missing
        self._unsaved: list[Partition] = []  # whose leader epochs have to be written to their checkpoint
        self._missing: dict[bytes, list[str]] = {}  # directory id -> partitions, while `load` finds them
        self._log_configs: dict[frozenset[tuple[str, str]], LogConfig] = {}  # by what is set on a topic
        self._roles = WorkQueue(runtime, log)
        self._work = WorkQueue(runtime, log)

    def get(self, topic: str, partition: int) -> Partition | None:
        partitions = self._by_name.get(topic)
        return partitions.get(partition) if partitions is not None else None

    def of_topic(self, topic: str) -> Mapping[int, Partition]:
        """The topic's partitions on this broker, by index."""
        return self._by_name.get(topic, {})

    def by_id(self, topic_id: bytes, partition: int) -> Partition | None:
        partitions = self._by_id.get(topic_id)
        return partitions.get(partition) if partitions is not None else None

    def all(self) -> Iterator[Partition]:
        return iter([each for partitions in self._by_name.values() for each in partitions.values()])

    def leads(self, partition: Partition) -> bool:
        """Whether this broker leads the partition, and no other can have been elected in its place."""
        return partition.is_leader and self.has_session()

    def is_led(self, log: Log) -> bool:
        """Whether this is the log of a partition that this broker leads."""
        partition = self.get(log.topic, log.partition)
        return partition is not None and partition.log is log and self.leads(partition)

    def start(self) -> None:
        """Begin to expire followers that lag behind."""
        interval_s = self.rules.lag_time_max_s / 2
        self._expiration = Periodic(self._runtime, interval_s, interval_s, self._expire_laggards)

    def stop(self) -> None:
        if self._expiration is not None:
            self._expiration.stop()

    def _expire_laggards(self, done: Callable[[], object]) -> None:
        def each() -> Iterator[None]:
            now = self.rules.now()
            for partition in self.all():
                if partition.leadership is not None:
                    partition.leadership.drop_laggards(now)
                yield

        in_slices(self._runtime, each(), done)

    def load(self, image: MetadataImage) -> None:
        """At start: open all partitions of this broker in the image."""
        self._image = image
        self._log_manager.settle_duplicates(partial(self._named_directory, image))
        for topic in image.topics.values():
            for _ in self._update_topic(topic.topic_id, tuple(topic.partitions), new=False):
                pass
        self._warn_of_missing()
        for stray in self._log_manager.logs():
            if self.get(stray.topic, stray.partition) is None:
                self._log_manager.set_stray(stray.topic, stray.partition)

    def metadata_changed(self, image: MetadataImage, topics: TopicChanges, config_topics: set[str]) -> None:
        """Apply a committed change of these partitions (by topic id) and of the configs of these topics (by name). Topics are
        removed first: a new topic may have the name of a deleted one. Many logs take several turns of the loop; `when_settled`
        calls back when they are done."""
        self._image = image
        for topic_id in sorted(topics):
            if image.topic_by_id(topic_id) is None:
                self._remove_topic(topic_id)
        if config_topics:
            self._log_configs.clear()
        for topic_id in sorted(topics):
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                self._follow(topic, sorted(topics[topic_id]))
        # No later change of an ISR may be applied with a min.insync.replicas that the controller no longer decides by.
        for name in sorted(config_topics):
            self._roles.add(self._update_config(name))

    def defaults_changed(self, image: MetadataImage) -> None:
        """The broker's defaults for settings of topics have changed."""
        self._image = image
        self._log_configs.clear()
        for name in tuple(self._by_name):
            self._roles.add(self._update_config(name))

    def retry_unmade(self, image: MetadataImage) -> None:
        """Try again to create the logs that could not be created."""
        unmade: dict[bytes, set[int]] = {}
        for topic_id, index in self._unmade:
            unmade.setdefault(topic_id, set()).add(index)
        if unmade:
            self.metadata_changed(image, unmade, set())

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Call back once the changes so far have been applied; at once if they have."""
        self._roles.when_done(lambda: self._work.when_done(callback))

    def when_roles_taken(self, callback: Callable[[], object]) -> None:
        """Call back once the partitions have their roles after the changes so far; at once if they have."""
        self._roles.when_done(callback)

    def _follow(self, topic: TopicImage, indexes: Sequence[int]) -> None:
        roles = self._update_roles(topic.topic_id, indexes)
        steps = self._update_topic(topic.topic_id, indexes, new=True)
        if topic.is_internal:  # its coordinator applies the same change next, and needs the partitions open
            for _ in chain(roles, steps):
                pass
        else:
            self._roles.add(roles)
            self._work.add(steps)

    def _update_roles(self, topic_id: bytes, indexes: Sequence[int]) -> Iterator[None]:
        """Give the open partitions their present roles, or remove them."""
        for index in indexes:
            topic = self._image.topic_by_id(topic_id)
            if topic is None:
                return  # removed since the last step
            partition = self.by_id(topic.topic_id, index)
            state = topic.partitions[index]
            if partition is None or state is partition.state:
                continue
            if self._node_id not in state.replicas:
                self._remove_partition(partition)
            else:
                self._take_role(partition, state)
            yield

    def _save_epochs(self) -> Iterator[None]:
        begun, self._unsaved = self._unsaved, []
        for partition in begun:
            try:
                partition.log.save_epochs()
            except OSError as error:  # the next sync tries again
                log.error("%s: its leader epochs could not be saved: %s", partition.log.name, error)
                partition.log.io_failed(error)
            yield

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        self._lead_or_follow(partition, state)
        self._on_changed(partition)

    def _lead_or_follow(self, partition: Partition, state: PartitionState) -> None:
        was_leader, epoch_before, leader_before = (
            partition.is_leader,
            partition.leader_epoch,
            partition.leader_id,
        )
        if state.leader == self._node_id:
            if not was_leader:
                self.on_not_following([partition])
                if not self._may_lead(partition, state.leader_epoch, partial(self._may_be_led, partition)):
                    partition.follow(state)
                    return
            partition.lead(state, self.rules, self.proposals)
            if partition.log.epochs.unsaved:
                self._unsaved.append(partition)
                if len(self._unsaved) == 1:  # when all have their roles
                    self._roles.when_done(lambda: self._work.add(self._save_epochs()))
            return
        partition.follow(state)
        if was_leader:
            self._forget_keys()
        if partition.leader_epoch == epoch_before and partition.leader_id == leader_before and not was_leader:
            return
        if partition.leader_id < 0:
            self.on_not_following([partition])
        else:
            self.on_following([partition])

    def _may_be_led(self, partition: Partition) -> None:
        if self.by_id(partition.topic_id, partition.partition) is partition:
            self._take_role(partition, partition.state)

    def _remove_partition(self, partition: Partition) -> None:
        """Other brokers host the partition now: close it at once, and delete its log later."""
        topic_id, index = partition.topic_id, partition.partition
        self._unmade.discard((topic_id, index))
        self._lost_logs.discard((topic_id, index))
        self._forget_keys()
        partitions = self._by_id[topic_id]
        del partitions[index]
        if not partitions:
            del self._by_id[topic_id]
            if self._by_name.get(partition.topic) is partitions:
                del self._by_name[partition.topic]
                self.topic_stats.left(partition.topic)
        self._retire(partition, deleted=False)
        self._work.add(self._delete_logs({index: partition}))

    def _retire(self, partition: Partition, *, deleted: bool) -> None:
        self.on_not_following([partition])
        self._on_removed(partition, deleted)
        partition.retire()

    def _update_topic(self, topic_id: bytes, indexes: Sequence[int], *, new: bool) -> Iterator[None]:
        """Open the logs of partitions. `new`: a partition without a log is a new one, and its log is created."""
        for index in indexes:
            image = self._image
            topic = image.topic_by_id(topic_id)
            if topic is None:
                return  # removed since the last step
            state = topic.partitions[index]
            if self._node_id not in state.replicas:
                continue
            existing = self.by_id(topic.topic_id, index)
            if existing is not None and not self._may_be_made(topic.topic_id, index, state):
                continue
            config = self._log_config(image, topic.name)
            opened = None if new else self._lost(topic, index, state, config)
            if opened is None:
                opened = self._open_or_offline(topic, index, config)
            self._put(topic, index, state, opened)
            yield

    def _may_be_made(self, topic_id: bytes, index: int, state: PartitionState) -> bool:
        """Whether a missing log may be created."""
        key = topic_id, index
        return key in self._unmade or (key in self._lost_logs and not self._counts(state))

    def _counts(self, state: PartitionState) -> bool:
        """Whether this broker's replica may hold records that no other has: an empty log must not replace it."""
        counting = (*state.isr, *state.eligible_leader_replicas, *state.last_known_elr)
        return len(state.replicas) == 1 or self._node_id in counting

    def _lost(self, topic: TopicImage, index: int, state: PartitionState, config: LogConfig) -> Log | None:
        """An offline log, in place of one that is, or may be, in a directory that is missing; None for others.

        No log is created in another directory while the old one counts: records acknowledged there would be lost when the old
        directory is back. A log that no longer counts is fetched again from the other replicas."""
        manager = self._log_manager
        if manager.get(topic.name, index) is not None:
            return None
        directory = directory_of(state, self._node_id)
        if directory in (UNASSIGNED, MIGRATING):
            is_lost = bool(manager.directories.offline)
        else:
            is_lost = directory not in manager.directories.online_ids()
        if not is_lost or not self._counts(state):
            return None
        if manager.directories.offline:
            return self._offline(topic, index, config, "its log directory is offline")
        if len(state.replicas) > 1 and self._node_id not in state.isr and state.leader != self._node_id:
            return None
        reason = f"its log directory {uuid_to_string(directory)} is not in log.dirs"
        self._missing.setdefault(directory, []).append(f"{topic.name}-{index}")
        self._lost_logs.add((topic.topic_id, index))
        return manager.offline_log(topic.name, topic.topic_id, index, config, reason)

    def _warn_of_missing(self) -> None:
        missing, self._missing = self._missing, {}
        for directory, names in missing.items():
            log.warning(
                "%d partition%s no leader, %s log directory %s is not in log.dirs: %s",
                len(names),
                " has" if len(names) == 1 else "s have",
                "its" if len(names) == 1 else "their",
                uuid_to_string(directory),
                ", ".join(names),
            )

    def _named_directory(self, image: MetadataImage, topic: str, index: int) -> bytes:
        """The id of a log's directory in the metadata; UNASSIGNED when it has none."""
        found = image.topics.get(topic)
        state = found.partitions.get(index) if found is not None else None
        return directory_of(state, self._node_id) if state is not None else UNASSIGNED

    def _open_or_offline(self, topic: TopicImage, index: int, config: LogConfig) -> Log:
        self._unmade.discard((topic.topic_id, index))
        self._lost_logs.discard((topic.topic_id, index))
        try:
            return self._open_log(topic, index, config)
        except StorageError as error:  # the other partitions live on
            self._unmade.add((topic.topic_id, index))
            return self._offline(topic, index, config, str(error))

    def _offline(self, topic: TopicImage, index: int, config: LogConfig, reason: str) -> Log:
        log.error("%s-%d is offline: %s", topic.name, index, reason)
        return self._log_manager.offline_log(topic.name, topic.topic_id, index, config, reason)

    def _put(self, topic: TopicImage, index: int, state: PartitionState, opened: Log) -> None:
        partition = self.by_id(topic.topic_id, index)
        if partition is None:
            partition = Partition(topic.name, topic.topic_id, index, opened, self.topic_stats.of(topic.name))
            self._add(partition)
        else:
            partition.reopened(opened)
        self._take_role(partition, state)
        if not opened.offline:
            self._on_opened(partition, state)

    def _add(self, partition: Partition) -> None:
        self._forget_keys()
        partitions = self._by_id.setdefault(partition.topic_id, {})
        partitions[partition.partition] = partition
        self._by_name[partition.topic] = partitions

    def _forget_keys(self) -> None:
        self.by_name_key.clear()
        self.by_id_key.clear()

    def _log_config(self, image: MetadataImage, topic: str) -> LogConfig:
        """Topics whose settings are equal share one."""
        own = frozenset(image.topic_configs(topic).items())
        config = self._log_configs.get(own)
        if config is None:
            config = self._log_configs[own] = LogConfig.from_properties(self._topic_configs(image, topic))
        return config

    def _open_log(self, topic: TopicImage, index: int, config: LogConfig) -> Log:
        opened = self._log_manager.get(topic.name, index)
        if opened is not None and opened.topic_id == ZERO_UUID:
            self._log_manager.adopt(opened, topic.topic_id)
        if opened is not None and opened.topic_id != topic.topic_id:
            self._log_manager.set_stray(topic.name, index)
            opened = None
        if opened is None:
            return self._log_manager.create(topic.name, topic.topic_id, index, config)
        opened.update_config(config)
        others = set(topic.partitions[index].isr) - {self._node_id}
        try:
            self._log_manager.settle_recovery(opened, others_have_it=bool(others))
        except (OSError, StorageError) as error:
            log.error("%s has a gap that can't be cut off: %s", opened.name, error)
            if isinstance(error, OSError):
                opened.io_failed(error)
        return opened

    def _remove_topic(self, topic_id: bytes) -> None:
        """Close the partitions at once, and delete the logs one by one."""
        self._unmade = {each for each in self._unmade if each[0] != topic_id}
        self._lost_logs = {each for each in self._lost_logs if each[0] != topic_id}
        partitions = self._by_id.pop(topic_id, None)
        if not partitions:
            return
        self._forget_keys()
        name = next(iter(partitions.values())).topic
        if self._by_name.get(name) is partitions:
            del self._by_name[name]
            self.topic_stats.left(name)
        for partition in partitions.values():
            self._retire(partition, deleted=True)
        self._work.add(self._delete_logs(partitions))

    def _delete_logs(self, partitions: Mapping[int, Partition]) -> Iterator[None]:
        for partition in partitions.values():
            # By now the name may belong to another topic's log, or the replica may be back.
            here = self.by_id(partition.topic_id, partition.partition)
            is_used = here is not None and here.log is partition.log
            if not is_used and self._log_manager.get(partition.topic, partition.partition) is partition.log:
                self._log_manager.delete(partition.topic, partition.partition)
            yield

    def _update_config(self, topic: str) -> Iterator[None]:
        for partition in tuple(self._by_name.get(topic, {}).values()):
            if topic not in self._image.topics:
                return
            partition.log.update_config(self._log_config(self._image, topic))
            if partition.leadership is not None:
                partition.leadership.config_changed()
            self._on_changed(partition)
            yield
