"""The APIs under comparison: key and version range as Apache Kafka 4.3 advertises them.

The table does not come from this broker's registrations, so an API that is registered with a wrong range is a
difference in the ApiVersions case.
"""

from __future__ import annotations

from typing import NamedTuple


class Api(NamedTuple):
    """One API: its key and the first and last version that both brokers answer."""

    key: int
    first: int
    last: int


APIS: dict[str, Api] = {
    "Produce": Api(0, 3, 13),  # 0-2 are advertised and refused: cases/produce_refused.py
    "Fetch": Api(1, 4, 18),
    "ListOffsets": Api(2, 1, 11),
    "Metadata": Api(3, 0, 13),
    "OffsetCommit": Api(8, 2, 10),
    "OffsetFetch": Api(9, 1, 10),
    "FindCoordinator": Api(10, 0, 6),
    "JoinGroup": Api(11, 0, 9),
    "Heartbeat": Api(12, 0, 4),
    "LeaveGroup": Api(13, 0, 5),
    "SyncGroup": Api(14, 0, 5),
    "DescribeGroups": Api(15, 0, 6),
    "ListGroups": Api(16, 0, 5),
    "SaslHandshake": Api(17, 0, 1),
    "ApiVersions": Api(18, 0, 4),
    "CreateTopics": Api(19, 2, 7),
    "DeleteTopics": Api(20, 1, 6),
    "DeleteRecords": Api(21, 0, 2),
    "InitProducerId": Api(22, 0, 5),
    "OffsetForLeaderEpoch": Api(23, 2, 4),
    "AddPartitionsToTxn": Api(24, 0, 5),
    "AddOffsetsToTxn": Api(25, 0, 4),
    "EndTxn": Api(26, 0, 5),
    "WriteTxnMarkers": Api(27, 1, 2),
    "TxnOffsetCommit": Api(28, 0, 5),
    "DescribeAcls": Api(29, 1, 3),
    "CreateAcls": Api(30, 1, 3),
    "DeleteAcls": Api(31, 1, 3),
    "DescribeConfigs": Api(32, 1, 4),
    "AlterConfigs": Api(33, 0, 2),
    "AlterReplicaLogDirs": Api(34, 1, 2),
    "DescribeLogDirs": Api(35, 1, 5),
    "SaslAuthenticate": Api(36, 0, 2),
    "CreatePartitions": Api(37, 0, 3),
    "CreateDelegationToken": Api(38, 1, 3),
    "RenewDelegationToken": Api(39, 1, 2),
    "ExpireDelegationToken": Api(40, 1, 2),
    "DescribeDelegationToken": Api(41, 1, 3),
    "DeleteGroups": Api(42, 0, 2),
    "ElectLeaders": Api(43, 0, 2),
    "IncrementalAlterConfigs": Api(44, 0, 1),
    "AlterPartitionReassignments": Api(45, 0, 1),
    "ListPartitionReassignments": Api(46, 0, 0),
    "OffsetDelete": Api(47, 0, 0),
    "DescribeClientQuotas": Api(48, 0, 1),
    "AlterClientQuotas": Api(49, 0, 1),
    "DescribeUserScramCredentials": Api(50, 0, 0),
    "AlterUserScramCredentials": Api(51, 0, 0),
    "DescribeQuorum": Api(55, 0, 2),
    "UpdateFeatures": Api(57, 0, 2),
    "DescribeCluster": Api(60, 0, 2),
    "DescribeProducers": Api(61, 0, 0),
    "UnregisterBroker": Api(64, 0, 0),
    "DescribeTransactions": Api(65, 0, 0),
    "ListTransactions": Api(66, 0, 2),
    "StreamsGroupHeartbeat": Api(88, 0, 0),
    "StreamsGroupDescribe": Api(89, 0, 0),
    "ConsumerGroupHeartbeat": Api(68, 0, 1),
    "ConsumerGroupDescribe": Api(69, 0, 1),
    "GetTelemetrySubscriptions": Api(71, 0, 0),
    "PushTelemetry": Api(72, 0, 0),
    "ListConfigResources": Api(74, 0, 1),
    "DescribeTopicPartitions": Api(75, 0, 0),
    "ShareGroupHeartbeat": Api(76, 1, 1),
    "ShareGroupDescribe": Api(77, 1, 1),
    "ShareFetch": Api(78, 1, 2),
    "ShareAcknowledge": Api(79, 1, 2),
    "AddRaftVoter": Api(80, 0, 1),
    "RemoveRaftVoter": Api(81, 0, 0),
    "InitializeShareGroupState": Api(83, 0, 0),
    "ReadShareGroupState": Api(84, 0, 0),
    "WriteShareGroupState": Api(85, 0, 1),
    "DeleteShareGroupState": Api(86, 0, 0),
    "ReadShareGroupStateSummary": Api(87, 0, 1),
    "DescribeShareGroupOffsets": Api(90, 0, 1),
    "AlterShareGroupOffsets": Api(91, 0, 0),
    "DeleteShareGroupOffsets": Api(92, 0, 0),
}
