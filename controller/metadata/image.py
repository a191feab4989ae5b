"""The metadata image: the state of the cluster that the committed records lead to.

Only `replay` changes it, one record at a time. The same records always lead to the same image: it depends on no clock, random
number or configuration. `records()` returns the shortest list of records that leads to the image; a snapshot has these. States of
partitions and brokers are replaced, never changed in place, so a reference keeps the state of one commit. (TopicImage.partitions
grows in place.) Equal lists of brokers, and equal states of neighbouring partitions, are one object: 10,000 partitions on one node
share a few states.

Record semantics: KRaft's (KIP-631), Kafka's org.apache.kafka.image.*Delta replay the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final, Protocol, TypeVar

import msgspec

from barnabas.controller.metadata.acls import Acl, AclSet
from barnabas.controller.metadata.errors import MetadataError
from barnabas.wire.messages import metadata_records as wire

# Ids of topics that were created, changed or removed, and which of their partitions were created or changed.
TopicChanges = Mapping[bytes, Set[int]]

# ConfigResource.Type
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

NO_LEADER: Final = -1  # the leader of a partition that has none
_LEADER_AS_BEFORE: Final = -2

# Whom a client quota is for: (type, name), sorted by type; the types are user, client-id and ip, the name None is the default.
QuotaEntity = tuple[tuple[str, str | None], ...]
ScramKey = tuple[str, int]  # a user, and the mechanism's number

T = TypeVar("T")

_NOTHING: Final[Mapping[str, str]] = {}


class PartitionState(msgspec.Struct, frozen=True):
    """One partition. `replicas` in order of preference; `directories` are ids of log directories beside them."""

    replicas: list[int]
    isr: list[int]
    leader: int  # -1: none
    leader_epoch: int
    partition_epoch: int
    removing_replicas: list[int] = []
    adding_replicas: list[int] = []
    leader_recovery_state: int = 0
    directories: list[bytes] = []
    eligible_leader_replicas: list[int] = []  # out of sync, with every committed record (KIP-966)
    last_known_elr: list[int] = []  # the last leader, kept while there is none


class TopicImage(msgspec.Struct):
    """A topic and its partitions by index, ascending without gaps."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionState] = msgspec.field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class BrokerEndpoint(msgspec.Struct, frozen=True):
    """Where a broker listens. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str
    host: str
    port: int
    security_protocol: int


class BrokerRegistration(msgspec.Struct, frozen=True):
    """A broker. A fenced one leads nothing and gets no new replicas, and clients do not see it."""

    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    endpoints: list[BrokerEndpoint]
    features: dict[str, tuple[int, int]]  # name -> (lowest, highest) supported level
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool = False
    log_dirs: list[bytes] = []
    cordoned_log_dirs: list[bytes] | None = None

    @property
    def is_active(self) -> bool:
        """Whether it may lead and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def is_leaving(self) -> bool:
        """Whether it is in controlled shutdown: it leads nothing, and waits until the other brokers have applied that."""
        return self.in_controlled_shutdown and not self.fenced


class MetadataDelta:
    """The parts of the image that a group of records changed, for listeners."""

    __slots__ = ("acls", "broker_ids", "client_quotas", "resources", "topics", "unclean_elections")

    def __init__(self) -> None:
        self.topics: dict[bytes, set[int]] = {}  # as TopicChanges
        self.broker_ids: set[int] = set()  # registered, changed or unregistered
        self.resources: set[tuple[int, str]] = set()  # whose configs changed: (ConfigResource.Type, name)
        self.client_quotas = False  # whether any changed
        self.acls = False  # whether any was added or removed
        self.unclean_elections = 0  # of leaders that may miss committed records

    def topic(self, topic_id: bytes) -> set[int]:
        """Note that a topic has changed; add its changed partitions to the returned set."""
        return self.topics.setdefault(topic_id, set())


class MetadataImage:
    """See the module. `offset`: of the last record replayed, -1 before the first; the image's owner advances it."""

    def __init__(self) -> None:
        self.offset = -1
        self.topics: dict[str, TopicImage] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.features: dict[str, int] = {}
        self.controllers: dict[int, wire.RegisterControllerRecord] = {}
        self.client_quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.next_producer_id = 0
        self.acls = AclSet()
        self.delegation_tokens: dict[str, wire.DelegationTokenRecord] = {}  # by token id
        self.scram_credentials: dict[ScramKey, wire.UserScramCredentialRecord] = {}
        self._topics_by_id: dict[bytes, TopicImage] = {}
        self._producer_id_block = (-1, -1)  # broker id and epoch that took the last block
        self._broker_lists: dict[tuple[int, ...], list[int]] = {}
        self._directory_lists: dict[tuple[bytes, ...], list[bytes]] = {}

    def copy(self) -> MetadataImage:
        """An independent copy; it shares objects that are never changed in place."""
        copy = MetadataImage()
        copy.offset = self.offset
        for topic in self.topics.values():
            copied = TopicImage(topic.name, topic.topic_id, topic.partitions.copy())
            copy.topics[topic.name] = copy._topics_by_id[topic.topic_id] = copied
        copy.configs = {resource: values.copy() for resource, values in self.configs.items()}
        copy.brokers = self.brokers.copy()
        copy.features = self.features.copy()
        copy.controllers = self.controllers.copy()
        copy.client_quotas = {entity: values.copy() for entity, values in self.client_quotas.items()}
        copy.next_producer_id = self.next_producer_id
        copy.acls = self.acls.copy()
        copy.delegation_tokens = self.delegation_tokens.copy()
        copy.scram_credentials = self.scram_credentials.copy()
        copy._producer_id_block = self._producer_id_block
        copy._broker_lists = self._broker_lists
        copy._directory_lists = self._directory_lists
        return copy

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self._topics_by_id.get(topic_id)

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """The configs set on the topic itself."""
        return self.configs.get((TOPIC_RESOURCE, topic), _NOTHING)

    def usable_brokers(self) -> list[int]:
        """Ids of brokers that are registered and not fenced, ascending."""
        return sorted(broker.broker_id for broker in self.brokers.values() if not broker.fenced)

    def replay(self, record: msgspec.Struct, delta: MetadataDelta) -> None:
        """Apply one record. MetadataError when it does not fit the image: the log is damaged, or of another release."""
        replayer = _REPLAYERS.get(type(record))
        if replayer is None:
            raise MetadataError(
                f"this version does not understand metadata records of type {type(record).__name__}: they come from "
                f"a later or another release, which has to be run again"
            )
        replayer(self, record, delta)

    def records(self) -> Iterator[msgspec.Struct]:
        """Records that lead from nothing to this image, in Kafka's order of a snapshot."""
        for name in sorted(self.features, key=lambda name: (name != "metadata.version", name)):
            yield wire.FeatureLevelRecord(name=name, feature_level=self.features[name])
        for broker in self.brokers.values():
            yield _registration_record(broker)
        yield from self.controllers.values()
        for topic in self.topics.values():
            yield wire.TopicRecord(name=topic.name, topic_id=topic.topic_id)
            for index, state in topic.partitions.items():
                yield partition_record(topic.topic_id, index, state)
        for (kind, name), values in self.configs.items():
            for key, value in values.items():
                yield wire.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        for entity, quotas in self.client_quotas.items():
            for key, quota in quotas.items():
                yield quota_record(entity, key, quota)
        if self._producer_id_block != (-1, -1):
            broker_id, broker_epoch = self._producer_id_block
            yield wire.ProducerIdsRecord(
                broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=self.next_producer_id
            )
        for acl_id, acl in self.acls.by_id.items():
            yield acl.record(acl_id)
        yield from self.delegation_tokens.values()
        yield from self.scram_credentials.values()

    # Replaying

    def _topic(self, topic_id: bytes, record: msgspec.Struct) -> TopicImage:
        topic = self._topics_by_id.get(topic_id)
        if topic is None:
            raise MetadataError(
                f"a {type(record).__name__} names topic id {topic_id.hex()}, which does not exist"
            )
        return topic

    def _replay_topic(self, record: wire.TopicRecord, delta: MetadataDelta) -> None:
        if record.name in self.topics:
            raise MetadataError(f"topic {record.name} is created a second time")
        if record.topic_id in self._topics_by_id:
            raise MetadataError(f"topic {record.name} is created with an id that another topic has")
        topic = TopicImage(record.name, record.topic_id)
        self.topics[record.name] = topic
        self._topics_by_id[record.topic_id] = topic
        delta.topic(record.topic_id)

    def _replay_remove_topic(self, record: wire.RemoveTopicRecord, delta: MetadataDelta) -> None:
        topic = self._topic(record.topic_id, record)
        del self.topics[topic.name], self._topics_by_id[topic.topic_id]
        self.configs.pop((TOPIC_RESOURCE, topic.name), None)
        delta.topic(topic.topic_id)

    def _replay_partition(self, record: wire.PartitionRecord, delta: MetadataDelta) -> None:
        topic = self._topic(record.topic_id, record)
        state = PartitionState(
            replicas=self._brokers(record.replicas),
            isr=self._brokers(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            removing_replicas=self._brokers(record.removing_replicas),
            adding_replicas=self._brokers(record.adding_replicas),
            leader_recovery_state=record.leader_recovery_state,
            directories=self._directories(record.directories),
            eligible_leader_replicas=self._brokers(record.eligible_leader_replicas or []),
            last_known_elr=self._brokers(record.last_known_elr or []),
        )
        neighbour = topic.partitions.get(record.partition_id - 1)
        topic.partitions[record.partition_id] = neighbour if state == neighbour else state
        delta.topic(record.topic_id).add(record.partition_id)

    def _replay_partition_change(self, record: wire.PartitionChangeRecord, delta: MetadataDelta) -> None:
        topic = self._topic(record.topic_id, record)
        old = topic.partitions.get(record.partition_id)
        if old is None:
            raise MetadataError(
                f"partition {record.partition_id} of {topic.name} changes, but does not exist"
            )
        state = changed_state(old, record)
        topic.partitions[record.partition_id] = msgspec.structs.replace(
            state,
            replicas=self._brokers(state.replicas),
            isr=self._brokers(state.isr),
            removing_replicas=self._brokers(state.removing_replicas),
            adding_replicas=self._brokers(state.adding_replicas),
            directories=self._directories(state.directories),
            eligible_leader_replicas=self._brokers(state.eligible_leader_replicas),
            last_known_elr=self._brokers(state.last_known_elr),
        )
        delta.topic(record.topic_id).add(record.partition_id)
        delta.unclean_elections += _is_unclean(old, state)

    def _brokers(self, ids: list[int]) -> list[int]:
        return self._broker_lists.setdefault(tuple(ids), ids)

    def _directories(self, ids: list[bytes]) -> list[bytes]:
        return self._directory_lists.setdefault(tuple(ids), ids)

    def _replay_config(self, record: wire.ConfigRecord, delta: MetadataDelta) -> None:
        resource = (record.resource_type, record.resource_name)
        delta.resources.add(resource)
        if record.value is not None:
            self.configs.setdefault(resource, {})[record.name] = record.value
            return
        values = self.configs.get(resource)
        if values is not None:
            values.pop(record.name, None)
            if not values:
                del self.configs[resource]

    def _replay_register_broker(self, record: wire.RegisterBrokerRecord, delta: MetadataDelta) -> None:
        delta.broker_ids.add(record.broker_id)
        self.brokers[record.broker_id] = BrokerRegistration(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=[
                BrokerEndpoint(point.name, point.host, point.port, point.security_protocol)
                for point in record.end_points
            ],
            features={
                feature.name: (feature.min_supported_version, feature.max_supported_version)
                for feature in record.features
            },
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=record.log_dirs,
            cordoned_log_dirs=record.cordoned_log_dirs,
        )

    def _replay_broker_change(
        self, record: wire.BrokerRegistrationChangeRecord, delta: MetadataDelta
    ) -> None:
        old = self.brokers.get(record.broker_id)
        if old is None or old.broker_epoch != record.broker_epoch:
            raise MetadataError(f"broker {record.broker_id} changes in an epoch it is not registered in")
        delta.broker_ids.add(record.broker_id)
        self.brokers[record.broker_id] = msgspec.structs.replace(
            old,
            fenced=old.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=old.in_controlled_shutdown or record.in_controlled_shutdown == 1,
            log_dirs=record.log_dirs or old.log_dirs,
            cordoned_log_dirs=_changed(record.cordoned_log_dirs, old.cordoned_log_dirs),
        )

    def _replay_fence(
        self, record: wire.FenceBrokerRecord | wire.UnfenceBrokerRecord, delta: MetadataDelta
    ) -> None:
        """Records that Kafka wrote before 3.3."""
        change = wire.BrokerRegistrationChangeRecord(broker_id=record.id, broker_epoch=record.epoch)
        change.fenced = 1 if isinstance(record, wire.FenceBrokerRecord) else -1
        self._replay_broker_change(change, delta)

    def _replay_register_controller(
        self, record: wire.RegisterControllerRecord, _delta: MetadataDelta
    ) -> None:
        self.controllers[record.controller_id] = record

    def _replay_clear_elr(self, record: wire.ClearElrRecord, delta: MetadataDelta) -> None:
        """For one topic, or for all where none is named."""
        for topic in self.topics.values():
            if record.topic_name not in ("", topic.name):
                continue
            for index, state in topic.partitions.items():
                if state.eligible_leader_replicas or state.last_known_elr:
                    # A new partition epoch, as for any change: compare-and-set depends on it.
                    topic.partitions[index] = msgspec.structs.replace(
                        state,
                        partition_epoch=state.partition_epoch + 1,
                        eligible_leader_replicas=[],
                        last_known_elr=[],
                    )
                    delta.topic(topic.topic_id).add(index)

    def _replay_unregister_broker(self, record: wire.UnregisterBrokerRecord, delta: MetadataDelta) -> None:
        if self.brokers.pop(record.broker_id, None) is None:
            raise MetadataError(f"broker {record.broker_id} is unregistered, but is not registered")
        delta.broker_ids.add(record.broker_id)

    def _replay_feature(self, record: wire.FeatureLevelRecord, _delta: MetadataDelta) -> None:
        if record.feature_level == 0:
            self.features.pop(record.name, None)
        else:
            self.features[record.name] = record.feature_level

    def _replay_producer_ids(self, record: wire.ProducerIdsRecord, _delta: MetadataDelta) -> None:
        if record.next_producer_id < self.next_producer_id:
            raise MetadataError(
                f"producer ids go back from {self.next_producer_id} to {record.next_producer_id}: two producers "
                f"would get the same one"
            )
        self.next_producer_id = record.next_producer_id
        self._producer_id_block = (record.broker_id, record.broker_epoch)

    def _replay_client_quota(self, record: wire.ClientQuotaRecord, delta: MetadataDelta) -> None:
        delta.client_quotas = True
        entity = quota_entity(record.entity)
        if not record.remove:
            self.client_quotas.setdefault(entity, {})[record.key] = record.value
            return
        values = self.client_quotas.get(entity)
        if values is not None:
            values.pop(record.key, None)
            if not values:
                del self.client_quotas[entity]

    def _replay_acl(self, record: wire.AccessControlEntryRecord, delta: MetadataDelta) -> None:
        self.acls.add(record.id, Acl.of(record))
        delta.acls = True

    def _replay_remove_acl(self, record: wire.RemoveAccessControlEntryRecord, delta: MetadataDelta) -> None:
        if record.id not in self.acls.by_id:
            raise MetadataError(f"ACL {record.id.hex()} is removed, but does not exist")
        self.acls.remove(record.id)
        delta.acls = True

    def _replay_delegation_token(self, record: wire.DelegationTokenRecord, _delta: MetadataDelta) -> None:
        self.delegation_tokens[record.token_id] = record

    def _replay_remove_delegation_token(
        self, record: wire.RemoveDelegationTokenRecord, _delta: MetadataDelta
    ) -> None:
        self.delegation_tokens.pop(record.token_id, None)

    def _replay_scram_credential(self, record: wire.UserScramCredentialRecord, _delta: MetadataDelta) -> None:
        self.scram_credentials[record.name, record.mechanism] = record

    def _replay_remove_scram_credential(
        self, record: wire.RemoveUserScramCredentialRecord, _delta: MetadataDelta
    ) -> None:
        self.scram_credentials.pop((record.name, record.mechanism), None)

    def _replay_nothing(self, record: wire.NoOpRecord, _delta: MetadataDelta) -> None:
        """NoOpRecord: Kafka writes it periodically."""


def _is_unclean(old: PartitionState, new: PartitionState) -> bool:
    return (
        new.leader not in (NO_LEADER, old.leader)
        and new.leader not in old.isr
        and new.leader not in old.eligible_leader_replicas
    )


def changed_state(old: PartitionState, record: wire.PartitionChangeRecord) -> PartitionState:
    """The partition after the change."""
    recovery = record.leader_recovery_state
    return PartitionState(
        replicas=_changed(record.replicas, old.replicas),
        isr=_changed(record.isr, old.isr),
        leader=old.leader if record.leader == _LEADER_AS_BEFORE else record.leader,
        leader_epoch=old.leader_epoch + (record.leader != _LEADER_AS_BEFORE),
        partition_epoch=old.partition_epoch + 1,
        removing_replicas=_changed(record.removing_replicas, old.removing_replicas),
        adding_replicas=_changed(record.adding_replicas, old.adding_replicas),
        leader_recovery_state=old.leader_recovery_state if recovery == -1 else recovery,
        directories=_changed(record.directories, old.directories),
        eligible_leader_replicas=_changed(record.eligible_leader_replicas, old.eligible_leader_replicas),
        last_known_elr=_changed(record.last_known_elr, old.last_known_elr),
    )


def _changed(new: T | None, old: T) -> T:
    return old if new is None else new


def partition_record(topic_id: bytes, index: int, state: PartitionState) -> wire.PartitionRecord:
    """The record that creates this partition in this state."""
    return wire.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=state.replicas,
        isr=state.isr,
        removing_replicas=state.removing_replicas,
        adding_replicas=state.adding_replicas,
        leader=state.leader,
        leader_recovery_state=state.leader_recovery_state,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        directories=state.directories,
        eligible_leader_replicas=state.eligible_leader_replicas or None,
        last_known_elr=state.last_known_elr or None,
    )


class _EntityPart(Protocol):
    """A part of an entity in a record or a request."""

    entity_type: str
    entity_name: str | None


def quota_entity(parts: Iterable[_EntityPart]) -> QuotaEntity:
    """Of parts with the same type the last counts, as in Kafka."""
    return tuple(sorted({part.entity_type: part.entity_name for part in parts}.items()))


def quota_record(entity: QuotaEntity, key: str, value: float | None) -> wire.ClientQuotaRecord:
    """The record that sets a quota; that removes it, where `value` is None."""
    return wire.ClientQuotaRecord(
        entity=[wire.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        key=key,
        value=0.0 if value is None else value,
        remove=value is None,
    )


def _registration_record(broker: BrokerRegistration) -> wire.RegisterBrokerRecord:
    return wire.RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=[
            wire.BrokerEndpoint(
                name=point.name, host=point.host, port=point.port, security_protocol=point.security_protocol
            )
            for point in broker.endpoints
        ],
        features=[
            wire.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
        cordoned_log_dirs=broker.cordoned_log_dirs,
    )


_REPLAYERS: Final[dict[type, Callable[..., None]]] = {
    wire.TopicRecord: MetadataImage._replay_topic,
    wire.RemoveTopicRecord: MetadataImage._replay_remove_topic,
    wire.PartitionRecord: MetadataImage._replay_partition,
    wire.PartitionChangeRecord: MetadataImage._replay_partition_change,
    wire.ConfigRecord: MetadataImage._replay_config,
    wire.RegisterBrokerRecord: MetadataImage._replay_register_broker,
    wire.BrokerRegistrationChangeRecord: MetadataImage._replay_broker_change,
    wire.UnregisterBrokerRecord: MetadataImage._replay_unregister_broker,
    wire.FenceBrokerRecord: MetadataImage._replay_fence,
    wire.UnfenceBrokerRecord: MetadataImage._replay_fence,
    wire.RegisterControllerRecord: MetadataImage._replay_register_controller,
    wire.ClearElrRecord: MetadataImage._replay_clear_elr,
    wire.FeatureLevelRecord: MetadataImage._replay_feature,
    wire.ProducerIdsRecord: MetadataImage._replay_producer_ids,
    wire.ClientQuotaRecord: MetadataImage._replay_client_quota,
    wire.AccessControlEntryRecord: MetadataImage._replay_acl,
    wire.RemoveAccessControlEntryRecord: MetadataImage._replay_remove_acl,
    wire.DelegationTokenRecord: MetadataImage._replay_delegation_token,
    wire.RemoveDelegationTokenRecord: MetadataImage._replay_remove_delegation_token,
    wire.NoOpRecord: MetadataImage._replay_nothing,
    wire.UserScramCredentialRecord: MetadataImage._replay_scram_credential,
    wire.RemoveUserScramCredentialRecord: MetadataImage._replay_remove_scram_credential,
}
