"""What each API needs of an authorizer: a request, the rights without which it is refused, and the error then.

One table for the unit test of every API and version, and for the comparison with Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from barnabas.controller.metadata.acls import CLUSTER_NAME, Operation, ResourceType
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import (
    alter_configs,
    delete_share_group_state,
    incremental_alter_configs,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.add_raft_voter import AddRaftVoterRequest
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from barnabas.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from barnabas.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from barnabas.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from barnabas.wire.messages.describe_producers import DescribeProducersRequest
from barnabas.wire.messages.describe_producers import TopicRequest as ProducersTopic
from barnabas.wire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from barnabas.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from barnabas.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from barnabas.wire.messages.share_acknowledge import ShareAcknowledgeRequest
from barnabas.wire.messages.share_fetch import FetchPartition as ShareFetchPartition
from barnabas.wire.messages.share_fetch import FetchTopic as ShareFetchTopic
from barnabas.wire.messages.share_fetch import ShareFetchRequest
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from barnabas.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from barnabas.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from barnabas.wire.messages.sync_group import SyncGroupRequest
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest
from barnabas.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from compat_tests.conform.batches import TRANSACTIONAL, batch

_MEMBER_ID: Final = "AAAAAAAAAAAAAAAAAAAHAQ"
Op, Kind = Operation, ResourceType
Right = tuple[ResourceType, str, Operation]
# APIs that need no right: they show what the sender may see, or are for every client.
WITHOUT_RIGHTS: Final = frozenset(
    {
        "ApiVersions", "SaslHandshake", "SaslAuthenticate", "ListGroups", "ListTransactions", "DescribeCluster",
        "CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken",
        "GetTelemetrySubscriptions", "PushTelemetry",
    }
)  # fmt: skip


AUTHORIZATION_ERRORS: Final = {
    E.TOPIC_AUTHORIZATION_FAILED,
    E.GROUP_AUTHORIZATION_FAILED,
    E.CLUSTER_AUTHORIZATION_FAILED,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    E.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


class Names(NamedTuple):
    """What the requests name. `topic` exists, `absent` does not."""

    topic: str
    topic_id: bytes
    absent: str
    group: str
    transactional_id: str


class AuthorizedRequest(NamedTuple):
    """A request that is refused with `error` to who has the rights `given`, and served to who has `needed` as well."""

    title: str  # the API, and what is special
    request: Callable[[int], object]  # at a version
    error: E | Mapping[range, E]
    needed: Sequence[Right]
    given: Sequence[Right] = ()
    versions: range = range(100)

    @property
    def api(self) -> str:
        return self.title.partition(":")[0]

    def error_at(self, version: int) -> E:
        if isinstance(self.error, E):
            return self.error
        return next(error for versions, error in self.error.items() if version in versions)


TAF, GAF, CAF = E.TOPIC_AUTHORIZATION_FAILED, E.GROUP_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED
XAF = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TOPIC_TYPE, BROKER_TYPE, LOGGER_TYPE, GROUP_TYPE = 2, 4, 8, 32  # of ConfigResource


def cluster(operation: Operation) -> Right:
    return Kind.CLUSTER, CLUSTER_NAME, operation


def error_codes(message: Any) -> set[int]:
    """The error codes anywhere in a response."""
    found: set[int] = set()
    if isinstance(message, msgspec.Struct):
        for name in message.__struct_fields__:
            value = getattr(message, name)
            if name.endswith("error_code"):
                found.add(value)
            else:
                found |= error_codes(value)
    elif isinstance(message, list):
        for each in message:
            found |= error_codes(each)
    return found - {0}


def authorized_requests(names: Names) -> list[AuthorizedRequest]:
    """The requests of all APIs, in the order of their keys."""
    name, topic_id, absent, group, txn = names

    def topic(operation: Operation, of: str = name) -> Right:
        return Kind.TOPIC, of, operation

    def of_group(operation: Operation) -> Right:
        return Kind.GROUP, group, operation

    def of_txn(operation: Operation) -> Right:
        return Kind.TRANSACTIONAL_ID, txn, operation

    return [
        AuthorizedRequest("Produce", lambda _: _produce(names, batch()), TAF, [topic(Op.WRITE)]),
        AuthorizedRequest(
            "Produce: in a transaction",
            lambda _: _produce(
                names, batch(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)
            ),
            XAF,
            [of_txn(Op.WRITE)],
            given=[topic(Op.WRITE)],
        ),
        AuthorizedRequest("Fetch", lambda _: _fetch(names), TAF, [topic(Op.READ)]),
        AuthorizedRequest("ListOffsets", lambda _: _list_offsets(name), TAF, [topic(Op.DESCRIBE)]),
        AuthorizedRequest(
            "ListOffsets: of an absent topic", lambda _: _list_offsets(absent), TAF, [topic(Op.READ, absent)]
        ),
        AuthorizedRequest("Metadata", lambda _: _metadata(name), TAF, [topic(Op.DESCRIBE)]),
        AuthorizedRequest(
            "Metadata: by id",
            lambda _: MetadataRequest(topics=[MetadataRequestTopic(topic_id, None)]),
            TAF,
            [topic(Op.ALTER)],
            versions=range(12, 100),
        ),
        AuthorizedRequest(
            "Metadata: of an absent topic",
            lambda _: _metadata(absent),
            TAF,
            [topic(Op.DESCRIBE, absent)],
            versions=range(4, 100),
        ),
        AuthorizedRequest(
            "Metadata: creates a topic",
            lambda version: _metadata(f"{absent}-{version}", create=True),
            TAF,
            [topic(Op.CREATE, f"{absent}-{version}") for version in range(20)],
            given=[topic(Op.DESCRIBE, f"{absent}-{version}") for version in range(20)],
            versions=range(4, 100),
        ),
        AuthorizedRequest(
            "OffsetCommit", lambda _: _offset_commit(names), GAF, [of_group(Op.READ)], given=[topic(Op.READ)]
        ),
        AuthorizedRequest(
            "OffsetCommit: of a topic",
            lambda _: _offset_commit(names),
            TAF,
            [topic(Op.READ)],
            given=[of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "OffsetFetch",
            lambda version: _offset_fetch(names, version),
            GAF,
            [of_group(Op.DESCRIBE)],
            given=[topic(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "OffsetFetch: of a topic",
            lambda version: _offset_fetch(names, version),
            TAF,
            [topic(Op.DESCRIBE)],
            given=[of_group(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "FindCoordinator",
            lambda _: FindCoordinatorRequest(group, 0, [group]),
            GAF,
            [of_group(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "FindCoordinator: of a transactional id",
            lambda _: FindCoordinatorRequest(txn, 1, [txn]),
            XAF,
            [of_txn(Op.DESCRIBE)],
            versions=range(1, 100),
        ),
        AuthorizedRequest(
            "FindCoordinator: of a share partition",
            lambda _: FindCoordinatorRequest(txn, 2, [f"{group}:j3Yd0UjwS2e2zx27nxTmTQ:0"]),
            CAF,
            [cluster(Op.CLUSTER_ACTION)],
            versions=range(6, 100),
        ),
        AuthorizedRequest(
            "StreamsGroupHeartbeat",
            lambda _: StreamsGroupHeartbeatRequest(group, "m", 1, 0),
            GAF,
            [of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "StreamsGroupDescribe",
            lambda _: StreamsGroupDescribeRequest([group]),
            GAF,
            [of_group(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "ConsumerGroupHeartbeat",
            lambda _: ConsumerGroupHeartbeatRequest(group, "m", 1),
            GAF,
            [of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "ConsumerGroupDescribe",
            lambda _: ConsumerGroupDescribeRequest([group]),
            GAF,
            [of_group(Op.DESCRIBE)],
        ),
        *(
            AuthorizedRequest(api, partial(_made, made), CAF, [cluster(Op.CLUSTER_ACTION)])
            for api, made in _share_state_requests(names).items()
        ),
        AuthorizedRequest(
            "ShareFetch",
            lambda _: _share_fetch(names),
            GAF,
            [of_group(Op.READ)],
            given=[topic(Op.READ)],
        ),
        AuthorizedRequest(
            "ShareFetch: of a topic",
            lambda _: _share_fetch(names),
            TAF,
            [topic(Op.READ)],
            given=[of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "ShareAcknowledge",
            lambda _: ShareAcknowledgeRequest(group, _MEMBER_ID, 1),
            GAF,
            [of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "ShareGroupHeartbeat",
            lambda _: ShareGroupHeartbeatRequest(group, _MEMBER_ID, 1),
            GAF,
            [of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "ShareGroupHeartbeat: of a topic",
            lambda _: ShareGroupHeartbeatRequest(group, _MEMBER_ID, 1, subscribed_topic_names=[name]),
            TAF,
            [topic(Op.DESCRIBE)],
            given=[of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "ShareGroupDescribe", lambda _: ShareGroupDescribeRequest([group]), GAF, [of_group(Op.DESCRIBE)]
        ),
        AuthorizedRequest(
            "DescribeShareGroupOffsets",
            lambda _: _describe_share_offsets(names),
            GAF,
            [of_group(Op.DESCRIBE)],
            given=[topic(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "DescribeShareGroupOffsets: of a topic",
            lambda _: _describe_share_offsets(names),
            TAF,
            [topic(Op.DESCRIBE)],
            given=[of_group(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "AlterShareGroupOffsets",
            lambda _: _alter_share_offsets(names),
            GAF,
            [(Kind.GROUP, f"{group}-shared", Op.READ)],
            given=[topic(Op.READ)],
        ),
        AuthorizedRequest(
            "AlterShareGroupOffsets: of a topic",
            lambda _: _alter_share_offsets(names),
            TAF,
            [topic(Op.READ)],
            given=[(Kind.GROUP, f"{group}-shared", Op.READ)],
        ),
        AuthorizedRequest(
            "DeleteShareGroupOffsets",
            lambda _: _delete_share_offsets(names),
            GAF,
            [of_group(Op.DELETE)],
            given=[topic(Op.READ)],
        ),
        AuthorizedRequest("JoinGroup", lambda _: _join(group), GAF, [of_group(Op.READ)]),
        AuthorizedRequest("Heartbeat", lambda _: HeartbeatRequest(group, 1, "m"), GAF, [of_group(Op.READ)]),
        AuthorizedRequest(
            "LeaveGroup",
            lambda _: LeaveGroupRequest(group, "m", [MemberIdentity("m")]),
            GAF,
            [of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "SyncGroup",
            lambda _: SyncGroupRequest(group, 1, "m", None, "consumer", "range"),
            GAF,
            [of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "DescribeGroups", lambda _: DescribeGroupsRequest([group]), GAF, [of_group(Op.DESCRIBE)]
        ),
        AuthorizedRequest(
            "CreateTopics",
            lambda _: _create_topic(f"{absent}-created"),
            TAF,
            [topic(Op.CREATE, f"{absent}-created"), topic(Op.DESCRIBE_CONFIGS, f"{absent}-created")],
        ),
        AuthorizedRequest(
            "CreateTopics: in a cluster",
            lambda _: _create_topic(f"{absent}-created"),
            TAF,
            [cluster(Op.CREATE)],
            given=[topic(Op.DESCRIBE_CONFIGS, f"{absent}-created")],
        ),
        AuthorizedRequest(
            "CreateTopics: shows configs",
            lambda _: _create_topic(f"{absent}-created"),
            TAF,
            [topic(Op.ALTER_CONFIGS, f"{absent}-created")],
            given=[cluster(Op.CREATE)],
            versions=range(5, 100),
        ),
        AuthorizedRequest("DeleteTopics", lambda _: _delete_topic(absent), TAF, [topic(Op.DELETE, absent)]),
        AuthorizedRequest(
            "DeleteTopics: in a cluster", lambda _: _delete_topic(absent), TAF, [cluster(Op.DELETE)]
        ),
        AuthorizedRequest(
            "DeleteRecords",
            lambda _: DeleteRecordsRequest([DeleteRecordsTopic(name, [DeleteRecordsPartition(0, 0)])], 1000),
            TAF,
            [topic(Op.DELETE)],
        ),
        AuthorizedRequest(
            "InitProducerId",
            lambda _: InitProducerIdRequest(None, 1000),
            CAF,
            [cluster(Op.IDEMPOTENT_WRITE)],
        ),
        AuthorizedRequest(
            "InitProducerId: who writes to a topic",
            lambda _: InitProducerIdRequest(None, 1000),
            CAF,
            [topic(Op.WRITE)],
        ),
        AuthorizedRequest(
            "InitProducerId: with a transactional id",
            lambda _: InitProducerIdRequest(txn, 1000),
            XAF,
            [of_txn(Op.WRITE)],
            given=[cluster(Op.IDEMPOTENT_WRITE)],
        ),
        AuthorizedRequest("OffsetForLeaderEpoch", lambda _: _epochs(name), TAF, [topic(Op.DESCRIBE)]),
        AuthorizedRequest(
            "OffsetForLeaderEpoch: of a broker", lambda _: _epochs(name), TAF, [cluster(Op.CLUSTER_ACTION)]
        ),
        AuthorizedRequest(
            "AddPartitionsToTxn",
            lambda _: _add_partitions(names),
            XAF,
            [of_txn(Op.WRITE)],
            given=[topic(Op.WRITE)],
            versions=range(4),
        ),
        AuthorizedRequest(
            "AddPartitionsToTxn: of a topic",
            lambda _: _add_partitions(names),
            TAF,
            [topic(Op.WRITE)],
            given=[of_txn(Op.WRITE)],
            versions=range(4),
        ),
        AuthorizedRequest(
            "AddPartitionsToTxn: of a broker",
            lambda _: _add_partitions(names),
            CAF,
            [cluster(Op.CLUSTER_ACTION)],
            given=[topic(Op.WRITE), of_txn(Op.WRITE)],
            versions=range(4, 100),
        ),
        AuthorizedRequest(
            "AddOffsetsToTxn",
            lambda _: AddOffsetsToTxnRequest(txn, 1, 0, group),
            XAF,
            [of_txn(Op.WRITE)],
            given=[of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "AddOffsetsToTxn: of a group",
            lambda _: AddOffsetsToTxnRequest(txn, 1, 0, group),
            GAF,
            [of_group(Op.READ)],
            given=[of_txn(Op.WRITE)],
        ),
        AuthorizedRequest("EndTxn", lambda _: EndTxnRequest(txn, 1, 0, True), XAF, [of_txn(Op.WRITE)]),
        AuthorizedRequest("WriteTxnMarkers", lambda _: _markers(name), CAF, [cluster(Op.CLUSTER_ACTION)]),
        AuthorizedRequest("WriteTxnMarkers: of an admin", lambda _: _markers(name), CAF, [cluster(Op.ALTER)]),
        AuthorizedRequest(
            "TxnOffsetCommit",
            lambda _: _txn_offset_commit(names),
            XAF,
            [of_txn(Op.WRITE)],
            given=[of_group(Op.READ), topic(Op.READ)],
        ),
        AuthorizedRequest(
            "TxnOffsetCommit: of a group",
            lambda _: _txn_offset_commit(names),
            GAF,
            [of_group(Op.READ)],
            given=[of_txn(Op.WRITE), topic(Op.READ)],
        ),
        AuthorizedRequest(
            "TxnOffsetCommit: of a topic",
            lambda _: _txn_offset_commit(names),
            TAF,
            [topic(Op.READ)],
            given=[of_txn(Op.WRITE), of_group(Op.READ)],
        ),
        AuthorizedRequest(
            "DescribeAcls",
            lambda _: DescribeAclsRequest(1, "x", 3, None, None, 1, 1),
            CAF,
            [cluster(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "CreateAcls",
            lambda _: CreateAclsRequest([AclCreation(Kind.TOPIC, "x", 3, "User:zoe", "*", Op.READ, 3)]),
            CAF,
            [cluster(Op.ALTER)],
        ),
        AuthorizedRequest(
            "DeleteAcls",
            lambda _: DeleteAclsRequest([DeleteAclsFilter(Kind.TOPIC, "nothing", 3, None, None, 1, 1)]),
            CAF,
            [cluster(Op.ALTER)],
        ),
        AuthorizedRequest(
            "DescribeConfigs", lambda _: _configs(TOPIC_TYPE, name), TAF, [topic(Op.DESCRIBE_CONFIGS)]
        ),
        AuthorizedRequest(
            "DescribeConfigs: of a group",
            lambda _: _configs(GROUP_TYPE, group),
            GAF,
            [of_group(Op.ALTER_CONFIGS)],
        ),
        AuthorizedRequest(
            "DescribeConfigs: of a broker",
            lambda _: _configs(BROKER_TYPE, "1"),
            CAF,
            [cluster(Op.DESCRIBE_CONFIGS)],
        ),
        AuthorizedRequest(
            "DescribeConfigs: of loggers",
            lambda _: _configs(LOGGER_TYPE, "1"),
            CAF,
            [cluster(Op.DESCRIBE_CONFIGS)],
        ),
        AuthorizedRequest(
            "AlterConfigs",
            lambda _: alter_configs.AlterConfigsRequest(
                [alter_configs.AlterConfigsResource(TOPIC_TYPE, name)], True
            ),
            TAF,
            [topic(Op.ALTER_CONFIGS)],
        ),
        AuthorizedRequest(
            "AlterConfigs: of a broker",
            lambda _: alter_configs.AlterConfigsRequest(
                [alter_configs.AlterConfigsResource(BROKER_TYPE, "1")], True
            ),
            CAF,
            [cluster(Op.ALTER_CONFIGS)],
        ),
        AuthorizedRequest(
            "AlterReplicaLogDirs",
            lambda _: AlterReplicaLogDirsRequest(
                [AlterReplicaLogDir("/none", [AlterReplicaLogDirTopic(name, [0])])]
            ),
            CAF,
            [cluster(Op.ALTER)],
        ),
        AuthorizedRequest(
            "DescribeLogDirs",
            lambda _: DescribeLogDirsRequest(None),
            CAF,
            [cluster(Op.DESCRIBE)],
            versions=range(3, 100),
        ),
        AuthorizedRequest(
            "CreatePartitions",
            lambda _: CreatePartitionsRequest(
                [CreatePartitionsTopic(name, 2, None)], 1000, validate_only=True
            ),
            TAF,
            [topic(Op.ALTER)],
        ),
        AuthorizedRequest(
            "DeleteGroups", lambda _: DeleteGroupsRequest([absent]), GAF, [(Kind.GROUP, absent, Op.DELETE)]
        ),
        AuthorizedRequest(
            "ElectLeaders",
            lambda _: ElectLeadersRequest(0, [TopicPartitions(name, [0])], 1000),
            CAF,
            [cluster(Op.ALTER)],
            versions=range(1, 100),
        ),
        AuthorizedRequest(
            "IncrementalAlterConfigs", lambda _: _increment(TOPIC_TYPE, name), TAF, [topic(Op.ALTER_CONFIGS)]
        ),
        AuthorizedRequest(
            "IncrementalAlterConfigs: of a group",
            lambda _: _increment(GROUP_TYPE, group),
            GAF,
            [of_group(Op.ALTER_CONFIGS)],
        ),
        AuthorizedRequest(
            "IncrementalAlterConfigs: of loggers",
            lambda _: _increment(LOGGER_TYPE, "1"),
            CAF,
            [cluster(Op.ALTER_CONFIGS)],
        ),
        AuthorizedRequest(
            "AlterPartitionReassignments",
            lambda _: AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic(name, [ReassignablePartition(0, [1])])]
            ),
            CAF,
            [cluster(Op.ALTER)],
        ),
        AuthorizedRequest(
            "ListPartitionReassignments",
            lambda _: ListPartitionReassignmentsRequest(),
            CAF,
            [cluster(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "OffsetDelete",
            lambda _: _offset_delete(names),
            GAF,
            [of_group(Op.DELETE)],
            given=[topic(Op.READ)],
        ),
        AuthorizedRequest(
            "OffsetDelete: of a topic",
            lambda _: _offset_delete(names),
            TAF,
            [topic(Op.READ)],
            given=[of_group(Op.DELETE)],
        ),
        AuthorizedRequest(
            "DescribeClientQuotas",
            lambda _: DescribeClientQuotasRequest(),
            CAF,
            [cluster(Op.DESCRIBE_CONFIGS)],
        ),
        AuthorizedRequest(
            "AlterClientQuotas",
            lambda _: AlterClientQuotasRequest(
                [EntryData([EntityData("user", "x")], [OpData("producer_byte_rate", 1.0)])], True
            ),
            CAF,
            [cluster(Op.ALTER_CONFIGS)],
        ),
        AuthorizedRequest(
            "DescribeUserScramCredentials",
            lambda _: DescribeUserScramCredentialsRequest([UserName(absent)]),
            CAF,
            [cluster(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "AlterUserScramCredentials",
            lambda _: AlterUserScramCredentialsRequest([ScramCredentialDeletion(absent, 1)]),
            CAF,
            [cluster(Op.ALTER)],
        ),
        AuthorizedRequest(
            "DescribeQuorum",
            lambda _: DescribeQuorumRequest([TopicData("__cluster_metadata", [PartitionData(0)])]),
            CAF,
            [cluster(Op.DESCRIBE)],
        ),
        AuthorizedRequest(
            "UpdateFeatures",
            lambda _: UpdateFeaturesRequest(1000, [FeatureUpdateKey("none", 1)]),
            CAF,
            [cluster(Op.ALTER)],
        ),
        AuthorizedRequest(
            "AddRaftVoter", lambda _: AddRaftVoterRequest(None, voter_id=-1), CAF, [cluster(Op.ALTER)]
        ),
        AuthorizedRequest(
            "RemoveRaftVoter", lambda _: RemoveRaftVoterRequest(None, -1), CAF, [cluster(Op.ALTER)]
        ),
        AuthorizedRequest(
            "DescribeProducers",
            lambda _: DescribeProducersRequest([ProducersTopic(name, [0])]),
            TAF,
            [topic(Op.READ)],
        ),
        AuthorizedRequest(
            "UnregisterBroker", lambda _: UnregisterBrokerRequest(77), CAF, [cluster(Op.ALTER)]
        ),
        AuthorizedRequest(
            "DescribeTransactions", lambda _: DescribeTransactionsRequest([txn]), XAF, [of_txn(Op.DESCRIBE)]
        ),
        AuthorizedRequest(
            "ListConfigResources", lambda _: ListConfigResourcesRequest(), CAF, [cluster(Op.DESCRIBE_CONFIGS)]
        ),
        AuthorizedRequest(
            "DescribeTopicPartitions",
            lambda _: DescribeTopicPartitionsRequest([TopicRequest(name)]),
            TAF,
            [topic(Op.DESCRIBE)],
        ),
    ]


def _produce(names: Names, records: bytes) -> ProduceRequest:
    data = TopicProduceData(names.topic, names.topic_id, [PartitionProduceData(0, records)])
    return ProduceRequest(names.transactional_id, -1, 1000, [data])


def _fetch(names: Names) -> FetchRequest:
    wanted = FetchTopic(names.topic, names.topic_id, [FetchPartition(0, partition_max_bytes=1000)])
    return FetchRequest(max_wait_ms=0, topics=[wanted])


def _list_offsets(name: str) -> ListOffsetsRequest:
    return ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, -1)])])


def _metadata(name: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name)], create, False, True)


def _offset_commit(names: Names) -> OffsetCommitRequest:
    topic = OffsetCommitRequestTopic(names.topic, names.topic_id, [OffsetCommitRequestPartition(0, 1)])
    return OffsetCommitRequest(names.group, topics=[topic])


def _offset_fetch(names: Names, version: int) -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest(names.group, [OffsetFetchRequestTopic(names.topic, [0])])
    topic = OffsetFetchRequestTopics(names.topic, names.topic_id, [0])
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(names.group, topics=[topic])])


def _join(group: str) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol("range", b"")]
    return JoinGroupRequest(group, 6000, 6000, "unknown", None, "consumer", protocols)


def _create_topic(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, 1, 1)], 1000, validate_only=True)


def _delete_topic(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest([DeleteTopicState(name)], [name], 1000)


def _describe_share_offsets(names: Names) -> DescribeShareGroupOffsetsRequest:
    wanted = DescribeShareGroupOffsetsRequestTopic(names.topic, [0])
    return DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(names.group, [wanted])])


def _alter_share_offsets(names: Names) -> AlterShareGroupOffsetsRequest:
    wanted = AlterShareGroupOffsetsRequestTopic(names.topic, [AlterShareGroupOffsetsRequestPartition(0, 0)])
    return AlterShareGroupOffsetsRequest(f"{names.group}-shared", [wanted])


def _delete_share_offsets(names: Names) -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(names.group, [DeleteShareGroupOffsetsRequestTopic(names.topic)])


def _share_fetch(names: Names) -> ShareFetchRequest:
    wanted = ShareFetchTopic(names.topic_id, [ShareFetchPartition(0)])
    return ShareFetchRequest(
        names.group, _MEMBER_ID, 0, 0, 1, 1 << 20, max_records=1, batch_size=1, topics=[wanted]
    )


def _made(request: object, _version: int) -> object:
    return request


def _share_state_requests(names: Names) -> dict[str, object]:
    group, topic_id = names.group, names.topic_id
    return {
        "InitializeShareGroupState": initialize_share_group_state.InitializeShareGroupStateRequest(
            group,
            [
                initialize_share_group_state.InitializeStateData(
                    topic_id, [initialize_share_group_state.PartitionData()]
                )
            ],
        ),
        "ReadShareGroupState": read_share_group_state.ReadShareGroupStateRequest(
            group,
            [read_share_group_state.ReadStateData(topic_id, [read_share_group_state.PartitionData()])],
        ),
        "WriteShareGroupState": write_share_group_state.WriteShareGroupStateRequest(
            group,
            [write_share_group_state.WriteStateData(topic_id, [write_share_group_state.PartitionData()])],
        ),
        "DeleteShareGroupState": delete_share_group_state.DeleteShareGroupStateRequest(
            group,
            [delete_share_group_state.DeleteStateData(topic_id, [delete_share_group_state.PartitionData()])],
        ),
        "ReadShareGroupStateSummary": read_share_group_state_summary.ReadShareGroupStateSummaryRequest(
            group,
            [
                read_share_group_state_summary.ReadStateSummaryData(
                    topic_id, [read_share_group_state_summary.PartitionData()]
                )
            ],
        ),
    }


def _epochs(name: str) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(name, [OffsetForLeaderPartition(0, -1, 0)])])


def _add_partitions(names: Names) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(names.topic, [0])]
    txn = names.transactional_id
    return AddPartitionsToTxnRequest(
        [AddPartitionsToTxnTransaction(txn, 1, 0, True, topics)], txn, 1, 0, topics
    )


def _markers(name: str) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest([WritableTxnMarker(1, 0, True, [WritableTxnMarkerTopic(name, [9])], 0)])


def _txn_offset_commit(names: Names) -> TxnOffsetCommitRequest:
    topic = TxnOffsetCommitRequestTopic(names.topic, [TxnOffsetCommitRequestPartition(0, 1)])
    return TxnOffsetCommitRequest(names.transactional_id, names.group, 1, 0, topics=[topic])


def _configs(kind: int, name: str) -> DescribeConfigsRequest:
    return DescribeConfigsRequest([DescribeConfigsResource(kind, name, ["retention.ms"])])


def _increment(kind: int, name: str) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    resource = incremental_alter_configs.AlterConfigsResource(kind, name)
    return incremental_alter_configs.IncrementalAlterConfigsRequest([resource], True)


def _offset_delete(names: Names) -> OffsetDeleteRequest:
    topic = OffsetDeleteRequestTopic(names.topic, [OffsetDeleteRequestPartition(0)])
    return OffsetDeleteRequest(names.group, [topic])
