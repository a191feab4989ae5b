"""A simple request of every API, for cases that damage it or need any request."""

from __future__ import annotations

from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.add_raft_voter import AddRaftVoterRequest
from barnabas.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from barnabas.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignableTopic,
)
from barnabas.wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from barnabas.wire.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from barnabas.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from barnabas.wire.messages.delete_share_group_state import DeleteShareGroupStateRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from barnabas.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from barnabas.wire.messages.describe_producers import DescribeProducersRequest
from barnabas.wire.messages.describe_producers import TopicRequest as ProducersTopic
from barnabas.wire.messages.describe_quorum import DescribeQuorumRequest
from barnabas.wire.messages.describe_quorum import TopicData as QuorumTopic
from barnabas.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from barnabas.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from barnabas.wire.messages.end_txn import EndTxnRequest
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from barnabas.wire.messages.fetch import FetchRequest, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from barnabas.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from barnabas.wire.messages.join_group import JoinGroupRequest
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic
from barnabas.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestTopic
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from barnabas.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderTopic
from barnabas.wire.messages.produce import ProduceRequest, TopicProduceData
from barnabas.wire.messages.push_telemetry import PushTelemetryRequest
from barnabas.wire.messages.read_share_group_state import ReadShareGroupStateRequest
from barnabas.wire.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from barnabas.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.messages.share_acknowledge import ShareAcknowledgeRequest
from barnabas.wire.messages.share_fetch import ShareFetchRequest
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from barnabas.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from barnabas.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from barnabas.wire.messages.sync_group import SyncGroupRequest
from barnabas.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest
from barnabas.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from barnabas.wire.messages.write_share_group_state import WriteShareGroupStateRequest
from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest


def sample_requests(name: str) -> dict[str, object]:
    """By API; `name` is the topic, group or resource, which does not exist."""
    return {
        "Produce": ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=name)]),
        "Fetch": FetchRequest(max_wait_ms=0, session_epoch=-1, topics=[FetchTopic(topic=name)]),
        "ListOffsets": ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name)]),
        "Metadata": MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        ),
        "ConsumerGroupHeartbeat": ConsumerGroupHeartbeatRequest(name, name, 1),
        "StreamsGroupHeartbeat": StreamsGroupHeartbeatRequest(name, name, 1, 0),
        "StreamsGroupDescribe": StreamsGroupDescribeRequest([name]),
        "ConsumerGroupDescribe": ConsumerGroupDescribeRequest([name]),
        "OffsetCommit": OffsetCommitRequest(group_id=name, topics=[OffsetCommitRequestTopic(name=name)]),
        "OffsetFetch": OffsetFetchRequest(
            group_id=name,
            topics=[OffsetFetchRequestTopic(name=name)],
            groups=[OffsetFetchRequestGroup(group_id=name)],
        ),
        "FindCoordinator": FindCoordinatorRequest(key=name, coordinator_keys=[name]),
        "JoinGroup": JoinGroupRequest(group_id=name, session_timeout_ms=1, protocol_type="consumer"),
        "Heartbeat": HeartbeatRequest(group_id=name, member_id="m"),
        "LeaveGroup": LeaveGroupRequest(
            group_id=name, member_id="m", members=[MemberIdentity(member_id="m")]
        ),
        "SyncGroup": SyncGroupRequest(group_id=name, member_id="m"),
        "DescribeGroups": DescribeGroupsRequest(groups=[name]),
        "ListGroups": ListGroupsRequest(states_filter=["Dead"]),
        "ApiVersions": ApiVersionsRequest(client_software_name="conform", client_software_version="1"),
        "CreateTopics": CreateTopicsRequest(topics=[CreatableTopic(name=name)], validate_only=True),
        "DeleteTopics": DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name]),
        "DeleteRecords": DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name)]),
        "InitProducerId": InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
        "OffsetForLeaderEpoch": OffsetForLeaderEpochRequest(
            replica_id=-2, topics=[OffsetForLeaderTopic(topic=name)]
        ),
        "AddPartitionsToTxn": AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            transactions=[AddPartitionsToTxnTransaction(transactional_id=name)],
        ),
        "AddOffsetsToTxn": AddOffsetsToTxnRequest(transactional_id=name, group_id=name),
        "EndTxn": EndTxnRequest(transactional_id=name),
        "WriteTxnMarkers": WriteTxnMarkersRequest(),
        "TxnOffsetCommit": TxnOffsetCommitRequest(transactional_id=name, group_id=name),
        "DescribeAcls": DescribeAclsRequest(
            resource_type_filter=2, resource_name_filter=name, operation=1, permission_type=1
        ),
        "CreateAcls": CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=2,
                    resource_name=name,
                    principal="User:a",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        "DeleteAcls": DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=2, resource_name_filter=name, operation=1, permission_type=1
                )
            ]
        ),
        "DescribeConfigs": DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=[])]
        ),
        "AlterConfigs": AlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=2, resource_name=name)], validate_only=True
        ),
        "AlterReplicaLogDirs": AlterReplicaLogDirsRequest(),
        "DescribeLogDirs": DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=name)]),
        "CreatePartitions": CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=1, assignments=None)], validate_only=True
        ),
        "DeleteGroups": DeleteGroupsRequest(groups_names=[name]),
        "ElectLeaders": ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=name)]),
        "AlterPartitionReassignments": AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=name)]
        ),
        "ListPartitionReassignments": ListPartitionReassignmentsRequest(
            topics=[ListPartitionReassignmentsTopics(name=name)]
        ),
        "DescribeClientQuotas": DescribeClientQuotasRequest(strict=True),
        "AlterClientQuotas": AlterClientQuotasRequest(),
        "CreateDelegationToken": CreateDelegationTokenRequest(),
        "RenewDelegationToken": RenewDelegationTokenRequest(),
        "ExpireDelegationToken": ExpireDelegationTokenRequest(),
        "DescribeDelegationToken": DescribeDelegationTokenRequest(),
        "SaslHandshake": SaslHandshakeRequest(mechanism="PLAIN"),
        "SaslAuthenticate": SaslAuthenticateRequest(),
        "DescribeUserScramCredentials": DescribeUserScramCredentialsRequest(),
        "AlterUserScramCredentials": AlterUserScramCredentialsRequest(),
        "DescribeQuorum": DescribeQuorumRequest(topics=[QuorumTopic(topic_name=name)]),
        "UpdateFeatures": UpdateFeaturesRequest(
            feature_updates=[FeatureUpdateKey(feature=name, max_version_level=1)], validate_only=True
        ),
        "DescribeProducers": DescribeProducersRequest(topics=[ProducersTopic(name=name)]),
        "UnregisterBroker": UnregisterBrokerRequest(broker_id=77),
        "AddRaftVoter": AddRaftVoterRequest(None, voter_id=-1),
        "RemoveRaftVoter": RemoveRaftVoterRequest(None, -1),
        "IncrementalAlterConfigs": IncrementalAlterConfigsRequest(
            resources=[IncrementalResource(resource_type=2, resource_name=name)], validate_only=True
        ),
        "OffsetDelete": OffsetDeleteRequest(group_id=name, topics=[OffsetDeleteRequestTopic(name=name)]),
        "DescribeCluster": DescribeClusterRequest(),
        "DescribeTransactions": DescribeTransactionsRequest(transactional_ids=[name]),
        "ListTransactions": ListTransactionsRequest(state_filters=["Dead"]),
        "GetTelemetrySubscriptions": GetTelemetrySubscriptionsRequest(),
        "PushTelemetry": PushTelemetryRequest(),
        "ListConfigResources": ListConfigResourcesRequest(resource_types=[2]),
        "DescribeTopicPartitions": DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name)]),
        "ShareGroupHeartbeat": ShareGroupHeartbeatRequest(name, "m", 1),
        "ShareGroupDescribe": ShareGroupDescribeRequest([name]),
        "DescribeShareGroupOffsets": DescribeShareGroupOffsetsRequest(
            [DescribeShareGroupOffsetsRequestGroup(name, None)]
        ),
        "AlterShareGroupOffsets": AlterShareGroupOffsetsRequest(name),
        "DeleteShareGroupOffsets": DeleteShareGroupOffsetsRequest(name),
        "ShareFetch": ShareFetchRequest(group_id=name, member_id="m"),
        "ShareAcknowledge": ShareAcknowledgeRequest(group_id=name, member_id="m"),
        "InitializeShareGroupState": InitializeShareGroupStateRequest(group_id=name),
        "ReadShareGroupState": ReadShareGroupStateRequest(group_id=name),
        "WriteShareGroupState": WriteShareGroupStateRequest(group_id=name),
        "DeleteShareGroupState": DeleteShareGroupStateRequest(group_id=name),
        "ReadShareGroupStateSummary": ReadShareGroupStateSummaryRequest(group_id=name),
    }
