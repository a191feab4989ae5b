"""The transaction coordinator: the shards of __transaction_state on this broker, and what concerns all of them.

A request is decided by the state of its transactional id (transaction.py), in the shard that holds the id (shard.py), and is
answered once the decision is committed. Everything here runs on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from barnabas.broker.coordinator.shards import Shards
from barnabas.broker.coordinator.topic import CoordinatorTopic
from barnabas.broker.transactions.markers import TransactionMarkerSender
from barnabas.broker.transactions.transaction import transaction_version
from barnabas.controller.operations.internal_topics import TRANSACTION_STATE_TOPIC, transaction_state_topic
from barnabas.runtime.slices import PeriodicPasses
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from barnabas.broker.cluster.peer_client import AskBroker
    from barnabas.broker.cluster.producer_ids import ProducerIdAllocator
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.coordinator.log import CoordinatorLog
    from barnabas.broker.coordinator.topic import CreateTopic
    from barnabas.broker.transactions.shard import Done, DoneWithProducer, TransactionShard
    from barnabas.broker.transactions.transaction import NeedsProducerId, TopicPartition, Transaction
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.wall_clock import WallClock

    # A request to a shard, first without a new producer id; it is repeated with one if the shard needs it.
    Attempt = Callable[[TransactionShard, int | None], NeedsProducerId | None]


class TransactionSettings(msgspec.Struct, frozen=True):
    """The configuration of the transaction coordinator, as it is when the broker starts: Kafka's properties, times in ms."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    abort_interval_ms: int = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
    expiration_interval_ms: int = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms

    @classmethod
    def from_config(cls, config: BrokerConfig) -> TransactionSettings:
        return cls(
            max_timeout_ms=config.transaction_max_timeout_ms,
            expiration_ms=config.transactional_id_expiration_ms,
            abort_interval_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            expiration_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
        )


class TransactionCoordinator:
    """All transactional ids whose partitions this broker leads."""

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        config: BrokerConfig,
        runtime: Runtime,
        controller: Controller,
        wall_clock: WallClock,
        create_topic: CreateTopic,
        producer_ids: ProducerIdAllocator,
        ask: AskBroker,
    ) -> None:
        """`create_topic`: see CoordinatorTopic. `ask` carries the markers."""
        self._log = coordinator_log
        self._settings = TransactionSettings.from_config(config)
        self._runtime = runtime
        self._controller = controller
        self._wall_clock = wall_clock
        self._producer_ids = producer_ids
        self.topic = CoordinatorTopic(
            TRANSACTION_STATE_TOPIC, controller, partial(transaction_state_topic, config), create_topic
        )
        self.markers = TransactionMarkerSender(runtime, ask, lambda: controller.image)
        self.shards = Shards(TRANSACTION_STATE_TOPIC, config.node_id, self._make_shard, runtime.monotonic)
        self._passes = PeriodicPasses(runtime)

    def _make_shard(self, index: int) -> TransactionShard:
        from barnabas.broker.transactions.shard import TransactionShard  # late: as for groups

        return TransactionShard(
            index,
            self._log,
            self._runtime,
            self.markers,
            transaction_version=lambda: transaction_version(self._controller.image),
            leader_epoch=lambda: self.shards.led[index].leader_epoch,
        )

    # -- life

    def start(self) -> None:
        """Load the shards of this broker, follow the metadata, abort transactions that time out and expire ids from now on."""
        # As in Kafka: with another number of partitions the ids would have other coordinators, and each of them two.
        self.shards.fixed_count = self.topic.fix_partition_count()
        self.shards.metadata_changed(self.topic.image())
        self._controller.add_listener(self.metadata_changed)
        self._controller.add_broker_listener(lambda _image, _broker_ids: self.markers.metadata_changed())
        self._passes.add(self._settings.abort_interval_ms, self._abort_timed_out)
        self._passes.add(self._settings.expiration_interval_ms, self._expire)

    def stop(self) -> None:
        """Requests are answered NOT_COORDINATOR from now on, and no marker is sent."""
        self._passes.stop()
        self.shards.stop()
        self.markers.stop()

    def metadata_changed(
        self, _image: MetadataImage, topic_ids: Collection[bytes], _config_topics: set[str]
    ) -> None:
        """These topics changed: shards are loaded and unloaded as partitions of __transaction_state have moved, and markers go to
        new leaders."""
        topic = self.topic.image()
        if topic is None or topic.topic_id in topic_ids:
            self.shards.metadata_changed(topic)
        self.markers.metadata_changed()

    def _abort_timed_out(self) -> Iterator[None]:
        for shard in self.shards.loaded():
            yield from shard.abort_timed_out()

    def _expire(self) -> Iterator[None]:
        now_ms = self._wall_clock.deletion_time_ms()
        if now_ms is not None:
            for shard in self.shards.loaded():
                yield from shard.expire(now_ms, self._settings.expiration_ms)

    # -- requests

    def initialize(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: int,
        producer_epoch: int,
        done: DoneWithProducer,
    ) -> None:
        """InitProducerId; the id and the epoch are -1 if the producer has none."""
        if not transactional_id:
            done(ErrorCode.INVALID_REQUEST, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        elif not 0 < timeout_ms <= self._settings.max_timeout_ms:
            done(ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        else:

            def attempt(shard: TransactionShard, new_producer_id: int | None) -> NeedsProducerId | None:
                return shard.initialize(
                    transactional_id, timeout_ms, producer_id, producer_epoch, new_producer_id, done
                )

            self._attempt(transactional_id, attempt, done)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        supports_epoch_bump: bool,
        done: Done,
    ) -> None:
        """Add partitions to the open transaction, or begin one."""
        shard = self._shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            done(shard)
        else:
            shard.add_partitions(
                transactional_id, producer_id, producer_epoch, partitions, supports_epoch_bump, done
            )

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each of the partitions is in the open transaction."""
        shard = self._shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return dict.fromkeys(partitions, shard)
        return shard.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        bumps_epoch: bool,
        done: DoneWithProducer,
    ) -> None:
        """EndTxn. `bumps_epoch`: version 5, whose answer has the id and the epoch of the next transaction."""
        if not transactional_id:
            done(ErrorCode.INVALID_REQUEST, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            return

        def attempt(shard: TransactionShard, new_producer_id: int | None) -> NeedsProducerId | None:
            return shard.end(
                transactional_id, producer_id, producer_epoch, commit, bumps_epoch, new_producer_id, done
            )

        self._attempt(transactional_id, attempt, done)

    def _attempt(
        self,
        transactional_id: str,
        attempt: Attempt,
        done: DoneWithProducer,
        new_producer_id: int | None = None,
    ) -> None:
        shard = self.shards.of(transactional_id)
        if isinstance(shard, ErrorCode):
            done(shard, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            return
        if attempt(shard, new_producer_id) is None:
            return

        def allocated(producer_id: int, error: ErrorCode) -> None:
            if error:  # a retriable one that every client knows
                done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            else:
                self._attempt(transactional_id, attempt, done, producer_id)

        self._producer_ids.next(allocated)

    def _shard_of(self, transactional_id: str) -> TransactionShard | ErrorCode:
        return self.shards.of(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST

    # -- what there is

    def describe(self, transactional_id: str) -> Transaction | ErrorCode:
        """TRANSACTIONAL_ID_NOT_FOUND if the id is not known."""
        shard = self._shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        found = shard.transactions.get(transactional_id)
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if found is None else found

    def transactions(self) -> list[Transaction] | ErrorCode:
        """All that are coordinated here; COORDINATOR_LOAD_IN_PROGRESS while some are not loaded."""
        if self.shards.is_loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return [each for shard in self.shards.loaded() for each in shard.transactions.values()]

    @property
    def completions_to_retry(self) -> int:
        """How many ended transactions could not be written as complete so far."""
        return sum(shard.completions_to_retry for shard in self.shards.loaded())
