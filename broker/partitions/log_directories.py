"""The log directories of this broker in the metadata: which ones are online, and which partition is in which.

A directory that fails is reported to the controller, which moves the leadership of its partitions away; waiting fetches of
them are answered. With several directories the metadata has the directory of each partition (KIP-858), so a start without one
of them, be it broken, replaced or left out of log.dirs, does not create its partitions again, empty, in another one. They have
no leader until it is back.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from barnabas.controller.operations.cluster_view import UNASSIGNED, directory_of
from barnabas.controller.operations.directories import report_directories
from barnabas.storage.manager.manager import LogManagerEvents, LogManagerSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from barnabas.wire.uuids import uuid_from_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.cluster.controller_channel import ControllerChannel
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import PartitionState
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.storage.log.log import Log
    from barnabas.storage.manager.manager import LogManager

log = logging.getLogger("barnabas.directories")


ASSIGN_REPLICAS_TO_DIRS: Final = 73


def log_manager_settings(config: BrokerConfig) -> LogManagerSettings:
    """The broker's settings for the timers of the logs."""
    return LogManagerSettings(
        log_initial_task_delay_ms=config.log_initial_task_delay_ms,
        log_retention_check_interval_ms=config.log_retention_check_interval_ms,
        log_flush_offset_checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_flush_start_offset_checkpoint_interval_ms=config.log_flush_start_offset_checkpoint_interval_ms,
        replica_high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
        producer_id_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        remote_log_storage_system_enable=config.remote_log_storage_system_enable,
    )


MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
RETRY_S = 10.0  # how often the creation of logs is retried
REPORTED_AT_ONCE = 1000  # partitions in one request, which the controller decides in one turn
REPORT_RETRY_S = 0.05  # after a failure to report directories; doubled after each
REPORT_RETRY_MAX_S = 10.0


def move_rate(config: BrokerConfig) -> float:
    """Bytes a second that a move between directories may copy; dynamic only, of the node or the cluster."""
    text = config.stored_node.get(MOVE_RATE, config.stored_cluster.get(MOVE_RATE))
    return float("inf") if text is None else float(text)


class LogDirectories:
    """Follows the LogManager's events from `start` on. All calls on the loop's thread."""

    def __init__(
        self,
        log_manager: LogManager,
        partitions: PartitionManager,
        controller: Controller,
        controller_channel: ControllerChannel,
        runtime: Runtime,
        config: BrokerConfig,
        *,
        on_failed: Callable[[], object] | None,
        on_fatal: Callable[[str], object],
    ) -> None:
        """`on_failed()` reports the online directories to a controller on another node; None where this node is alone.
        `on_fatal(why)`: no directory is online."""
        self._log_manager = log_manager
        self._partitions = partitions
        self._controller = controller
        self._to_controller = controller_channel
        self._on_failed = on_failed
        self._config = config
        self._node_id = config.node_id
        self._runtime = runtime
        self._unassigned: dict[
            tuple[bytes, int], bytes
        ] = {}  # (topic id, index) -> directory, to be reported
        self._is_reporting = False  # a request is in flight; later assignments go into the next one
        self._report_timer: Timer | None = None
        self._report_retry_s = REPORT_RETRY_S
        log_manager.subscribe(
            LogManagerEvents(
                log_replaced=self._replaced,
                start_offset_changed=self._start_offset_changed,
                directory_failed=self._directory_failed,
                all_failed=on_fatal,
            )
        )

    def start(self) -> None:
        """Before requests are served: report the online directories, and the directories in which logs were found."""
        self._report_assignments()
        self._report()
        self._runtime.call_later(RETRY_S, self._retry)

    def opened(self, partition: Partition, state: PartitionState) -> None:
        """A log is open: report its directory, unless the metadata has it or there has only ever been one directory."""
        named = directory_of(state, self._node_id)
        if named == UNASSIGNED and len(self._log_manager.directories.paths) == 1:
            return
        directory = uuid_from_string(self._log_manager.directories.id_of(partition.log.log_dir))
        if named != directory:
            self.assign(partition.topic_id, partition.partition, directory)

    def assign(self, topic_id: bytes, index: int, directory: bytes) -> None:
        """Report the directory of a partition, in one request with all others of this turn and those to be retried."""
        self._unassigned[topic_id, index] = directory
        self._report_assignments_later(0)

    def _report_assignments_later(self, delay_s: float) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()
        self._report_timer = self._runtime.call_later(delay_s, self._report_assignments)

    def _report_assignments(self) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        if self._is_reporting or not self._unassigned:
            return
        reported = dict(islice(self._unassigned.items(), REPORTED_AT_ONCE))
        for each in reported:
            del self._unassigned[each]
        self._is_reporting = True
        self._to_controller.send(
            ASSIGN_REPLICAS_TO_DIRS,
            _assignment(self._node_id, self._log_manager.broker_epoch, reported),
            partial(self._answered, reported),
        )

    def _answered(self, reported: dict[tuple[bytes, int], bytes], response: Any, failure: ErrorCode) -> None:
        self._is_reporting = False
        error = failure or ErrorCode.of(response.error_code)
        if not error:
            self._report_retry_s = REPORT_RETRY_S
            self._report_assignments()
            return
        log.warning(
            "the directories of %d partitions could not be reported yet: %s", len(reported), error.name
        )
        has_news = bool(self._unassigned)
        for key, directory in reported.items():
            self._unassigned.setdefault(key, directory)
        self._report_assignments_later(REPORT_RETRY_S if has_news else self._report_retry_s)
        self._report_retry_s = min(2 * self._report_retry_s, REPORT_RETRY_MAX_S)

    def _report(self) -> None:
        """Report the online directories. A broker that registers with a controller on another node reports them with its
        registration and its heartbeats."""
        if self._on_failed is not None:
            self._on_failed()
            return
        online = self._log_manager.directories.online_ids()
        self._controller.run(
            lambda image: report_directories(image, self._config, self._node_id, online),
            lambda changed: log.info("%d partitions change their leader", changed) if changed else None,
            lambda _, message: log.error("the online directories could not be reported: %s", message),
        )

    def _directory_failed(self, _log_dir: str) -> None:
        for partition in self._partitions.all():
            if partition.log.offline:
                partition.interrupt_waiters()
        self._report()

    def _replaced(self, old: Log, new: Log) -> None:
        """A log has moved to another directory."""
        partition = self._partitions.get(old.topic, old.partition)
        if partition is not None and partition.log is old:
            partition.log = new
            self.assign(
                partition.topic_id,
                partition.partition,
                uuid_from_string(self._log_manager.directories.id_of(new.log_dir)),
            )

    def _start_offset_changed(self, moved: Log) -> None:
        partition = self._partitions.get(moved.topic, moved.partition)
        if partition is not None and partition.log is moved:
            partition.interrupt_waiters()

    def _retry(self) -> None:
        self._partitions.retry_unmade(self._controller.image)
        self._runtime.call_later(RETRY_S, self._retry)


def _assignment(
    broker_id: int, broker_epoch: int, assigned: dict[tuple[bytes, int], bytes]
) -> AssignReplicasToDirsRequest:
    """The request for (topic id, index) -> directory."""
    directories: dict[bytes, dict[bytes, list[PartitionData]]] = {}
    for (topic_id, index), directory in assigned.items():
        topics = directories.setdefault(directory, {})
        topics.setdefault(topic_id, []).append(PartitionData(partition_index=index))
    return AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        directories=[
            DirectoryData(
                id=directory,
                topics=[
                    TopicData(topic_id=topic_id, partitions=partitions)
                    for topic_id, partitions in topics.items()
                ],
            )
            for directory, topics in directories.items()
        ],
    )
