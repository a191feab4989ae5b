"""The APIs that this broker serves, by key.

Generated from the handlers' registrations by `python -m barnabas.api_table`, and compared with them by a test; do not edit.
A start reads this instead of loading all handlers with their messages.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Served(msgspec.Struct, frozen=True):
    """An API: the module of broker/api that serves it, and the versions that clients see."""

    module: str
    advertised_min: int
    max_version: int
    is_internal: bool


SERVED: Final[dict[int, Served]] = {
    # begin
    0: Served("produce", 0, 13, False),
    1: Served("fetch", 4, 18, False),
    2: Served("list_offsets", 1, 11, False),
    3: Served("metadata", 0, 13, False),
    8: Served("offset_commit", 2, 10, False),
    9: Served("offset_fetch", 1, 10, False),
    10: Served("find_coordinator", 0, 6, False),
    11: Served("group_membership", 0, 9, False),
    12: Served("group_membership", 0, 4, False),
    13: Served("group_membership", 0, 5, False),
    14: Served("group_membership", 0, 5, False),
    15: Served("describe_groups", 0, 6, False),
    16: Served("list_groups", 0, 5, False),
    17: Served("sasl_handshake", 0, 1, False),
    18: Served("api_versions", 0, 4, False),
    19: Served("create_topics", 2, 7, False),
    20: Served("delete_topics", 1, 6, False),
    21: Served("delete_records", 0, 2, False),
    22: Served("init_producer_id", 0, 5, False),
    23: Served("offset_for_leader_epoch", 2, 4, False),
    24: Served("add_partitions_to_txn", 0, 5, False),
    25: Served("add_offsets_to_txn", 0, 4, False),
    26: Served("end_txn", 0, 5, False),
    27: Served("write_txn_markers", 1, 2, False),
    28: Served("txn_offset_commit", 0, 5, False),
    29: Served("acls", 1, 3, False),
    30: Served("acls", 1, 3, False),
    31: Served("acls", 1, 3, False),
    32: Served("describe_configs", 1, 4, False),
    33: Served("alter_configs", 0, 2, False),
    34: Served("alter_replica_log_dirs", 1, 2, False),
    35: Served("describe_log_dirs", 1, 5, False),
    36: Served("sasl_authenticate", 0, 2, False),
    37: Served("create_partitions", 0, 3, False),
    38: Served("delegation_tokens", 1, 3, False),
    39: Served("delegation_tokens", 1, 2, False),
    40: Served("delegation_tokens", 1, 2, False),
    41: Served("delegation_tokens", 1, 3, False),
    42: Served("delete_groups", 0, 2, False),
    43: Served("elect_leaders", 0, 2, False),
    44: Served("alter_configs", 0, 1, False),
    45: Served("reassignments", 0, 1, False),
    46: Served("reassignments", 0, 0, False),
    47: Served("offset_delete", 0, 0, False),
    48: Served("client_quotas", 0, 1, False),
    49: Served("client_quotas", 0, 1, False),
    50: Served("user_scram_credentials", 0, 0, False),
    51: Served("user_scram_credentials", 0, 0, False),
    55: Served("describe_quorum", 0, 2, False),
    56: Served("broker_to_controller", 2, 3, True),
    57: Served("update_features", 0, 2, False),
    60: Served("describe_cluster", 0, 2, False),
    61: Served("describe_producers", 0, 0, False),
    62: Served("broker_lifecycle", 0, 4, True),
    63: Served("broker_lifecycle", 0, 2, True),
    64: Served("broker_lifecycle", 0, 0, False),
    65: Served("describe_transactions", 0, 0, False),
    66: Served("list_transactions", 0, 2, False),
    67: Served("broker_to_controller", 0, 0, True),
    68: Served("consumer_group_heartbeat", 0, 1, False),
    69: Served("modern_group_describe", 0, 1, False),
    71: Served("client_telemetry", 0, 0, False),
    72: Served("client_telemetry", 0, 0, False),
    73: Served("broker_to_controller", 0, 0, True),
    74: Served("list_config_resources", 0, 1, False),
    75: Served("describe_topic_partitions", 0, 0, False),
    76: Served("share_group_heartbeat", 1, 1, False),
    77: Served("modern_group_describe", 1, 1, False),
    78: Served("share_fetch", 1, 2, False),
    79: Served("share_fetch", 1, 2, False),
    80: Served("add_raft_voter", 0, 1, False),
    81: Served("remove_raft_voter", 0, 0, False),
    83: Served("share_group_state", 0, 0, False),
    84: Served("share_group_state", 0, 0, False),
    85: Served("share_group_state", 0, 1, False),
    86: Served("share_group_state", 0, 0, False),
    87: Served("share_group_state", 0, 1, False),
    88: Served("streams_group_heartbeat", 0, 0, False),
    89: Served("modern_group_describe", 0, 0, False),
    90: Served("share_group_offsets", 0, 1, False),
    91: Served("share_group_offsets", 0, 0, False),
    92: Served("share_group_offsets", 0, 0, False),
    # end
}
