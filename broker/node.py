"""The composition root: one node put together from its parts, started and stopped in order.

Start: lock and recover the log directories, replay the metadata, open the partitions, load the groups, then
listen. A node that cannot start raises before it has opened a port. Stop is the reverse: no new
connections, no more requests, then the logs are closed and marked clean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import barnabas.broker.api  # noqa: F401 - registers the handlers
from barnabas.broker.connection import Connection, Connections
from barnabas.broker.coordinator_log import CoordinatorLog
from barnabas.broker.directories import Directories, log_manager_settings
from barnabas.broker.dispatch import Dispatcher
from barnabas.broker.fetch_sessions import FetchSessionCache
from barnabas.broker.groups.coordinator import GroupCoordinator
from barnabas.broker.kafka_metadata import KafkaMetadata, metadata_directory
from barnabas.broker.partitions import PartitionManager
from barnabas.broker.producer_ids import ProducerIdAllocator, ask_controller_for_block
from barnabas.broker.purgatory import FetchPurgatory
from barnabas.broker.services import Endpoint, Services
from barnabas.broker.topic_creation import have_topic_created
from barnabas.controller.controller import Controller
from barnabas.controller.local_log import LocalMetadataLog
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC
from barnabas.controller.single_node import start_alone
from barnabas.storage.compaction.cleaner import CleanerSettings, LogCleaner
from barnabas.storage.disk import Disk, RealDisk
from barnabas.storage.errors import is_passing
from barnabas.storage.log_config import LogConfig
from barnabas.storage.manager import LogManager

if TYPE_CHECKING:
    from barnabas.broker.config import BrokerConfig
    from barnabas.controller.image import MetadataImage
    from barnabas.storage.runtime import Runtime, Server

log = logging.getLogger("barnabas.node")

BROKER_RESOURCE = 4  # ConfigResource.Type of a broker; the name "" is every broker


class Node:
    """One broker, with its own controller. `start` raises OSError, ConfigError, LogDirectoryError or
    MetadataError when it can't; nothing listens then."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, disk: Disk | None = None) -> None:
        self._disk = disk if disk is not None else RealDisk()
        self._config = config
        self._runtime = runtime
        self._servers: list[Server] = []
        self._log_manager = LogManager(
            self._disk,
            config.log_dirs,
            runtime,
            node_id=config.node_id,
            config=LogConfig.from_properties(config.topic_properties({})),
            settings=log_manager_settings(config),
            vital_dir=metadata_directory(config),
        )
        self._partitions: PartitionManager | None = None
        self._cleaner = LogCleaner(self._log_manager, self._disk, runtime, _cleaner_settings(config))
        self._kafka_metadata = KafkaMetadata(self._disk, config, self._log_manager, runtime)
        self.endpoints: list[
            Endpoint
        ] = []  # where each listener listens, which may not be what it advertises
        self.on_fatal: Callable[[str], object] = lambda _: None  # this broker can't go on and must be stopped
        self.services: Services
        self._metadata: tuple[LocalMetadataLog, Controller] | None = None  # once started
        self._connections: Connections

    @property
    def cluster_id(self) -> str:
        return self._log_manager.cluster_id

    def start(self) -> None:
        """Blocking: recovery and replay happen here. The loop need not run yet."""
        self._log_manager.open()
        try:
            self._start_services()
            self._listen()
        except BaseException:
            self._close_metadata()
            self._log_manager.close()
            raise

    def _start_services(self) -> None:
        config, runtime = self._config, self._runtime
        self._kafka_metadata.enter()
        metadata_log = LocalMetadataLog(self._disk, self._kafka_metadata.journal_directory, runtime)
        metadata_log.on_error = self._metadata_failed
        controller = Controller(metadata_log)
        start_alone(controller, config, runtime, self._log_manager.online_ids())
        self._metadata = metadata_log, controller
        self._kafka_metadata.warn_of_carried(controller.image)
        self._log_manager.broker_epoch = controller.image.brokers[config.node_id].broker_epoch
        partitions = PartitionManager(self._log_manager, config.node_id, self._topic_properties, runtime)
        self._configs_changed(controller.image, {(BROKER_RESOURCE, "")})
        directories = Directories(
            self._log_manager, partitions, controller, runtime, config, lambda why: self.on_fatal(why)
        )
        partitions.load(controller.image)
        groups = GroupCoordinator(
            CoordinatorLog(GROUP_METADATA_TOPIC, partitions, runtime),
            config,
            runtime,
            controller,
            lambda topic, done: have_topic_created(self.services.to_controller, topic, done),
        )
        self.services = Services(
            runtime=runtime,
            config=config,
            controller=controller,
            log_manager=self._log_manager,
            partitions=partitions,
            purgatory=FetchPurgatory(runtime),
            fetch_sessions=FetchSessionCache(runtime, config.max_incremental_fetch_session_cache_slots),
            groups=groups,
            producer_ids=ProducerIdAllocator(lambda done: ask_controller_for_block(self.services, done)),
            cluster_id=self.cluster_id,
            node_id=config.node_id,
        )
        controller.add_listener(partitions.metadata_changed)
        directories.start()
        controller.answer_after(partitions.when_settled)
        controller.add_config_listener(self._configs_changed)
        self._partitions = partitions
        groups.start()
        if config.log_cleaner_enable:
            self._cleaner.start()
        self._connections = Connections(
            runtime,
            Dispatcher(self.services),
            config,
        )

    def _metadata_failed(self, error: OSError) -> None:
        """As Kafka, a broker does not live on without its metadata; for room it waits."""
        if not is_passing(error):
            self.on_fatal(f"the metadata can't be written: {error}")

    def _configs_changed(self, image: MetadataImage, resources: set[tuple[int, str]]) -> None:
        """Dynamic broker configs: the cluster's, then this node's own."""
        if any(kind == BROKER_RESOURCE for kind, _ in resources):
            defaults = self._config.topic_defaults()
            self._config.apply_dynamic(
                image.configs.get((BROKER_RESOURCE, ""), {}),
                image.configs.get((BROKER_RESOURCE, str(self._config.node_id)), {}),
            )
            self._cleaner.reconfigure(_cleaner_settings(self._config))
            if self._partitions is not None and self._config.topic_defaults() != defaults:
                self._partitions.defaults_changed(image)
            self._log_manager.producer_id_expiration_ms = self._config.producer_id_expiration_ms

    def stop(self) -> None:
        """Stop serving and close everything cleanly. Blocking; call with the loop stopped or stopping."""
        for server in self._servers:
            server.close()
        self._connections.close_all()
        self.services.groups.stop()
        self._close_metadata()
        self._cleaner.stop()
        self._log_manager.close()

    def _close_metadata(self) -> None:
        """Nothing changes afterwards. Also after a start that has failed behind it: Kafka may start instead."""
        if self._metadata is not None:
            metadata_log, controller = self._metadata
            at_rest = metadata_log.at_rest
            controller.close()
            if at_rest:
                self._kafka_metadata.leave(controller.image)
        self._kafka_metadata.unlock()

    def _listen(self) -> None:
        for listener in self._config.listeners:
            name = listener.name
            try:
                server = self._runtime.listen(
                    listener.host,
                    listener.port,
                    partial(Connection, self._connections, name),
                    send_buffer_bytes=self._config.socket_send_buffer_bytes,
                    receive_buffer_bytes=self._receive_buffer_bytes(),
                )
            except OSError:
                for opened in self._servers:
                    opened.close()
                raise
            self._servers.append(server)
            self.endpoints.append(Endpoint(name, listener.security_protocol, listener.host, server.port))
            self.services.endpoints[name] = Endpoint(
                name,
                listener.security_protocol,
                listener.advertised_host,
                listener.advertised_port or server.port,
            )

    def _receive_buffer_bytes(self) -> int:
        # Kafka's default keeps the system from growing the buffer, which makes produce cost up to half as much
        # again. So it counts when somebody has set it.
        given = "socket.receive.buffer.bytes" in self._config.given
        return self._config.socket_receive_buffer_bytes if given else -1

    def _topic_properties(self, image: MetadataImage, topic: str) -> Mapping[str, str]:
        return self._config.topic_properties(image.topic_configs(topic))


def _cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        threads=config.log_cleaner_threads,
        backoff_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_size=config.log_cleaner_dedupe_buffer_size,
        io_buffer_load_factor=config.log_cleaner_io_buffer_load_factor,
        io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
    )
