"""Names of confluent-kafka's admin module, whose type annotations do not export them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_admin: Any = import_module("confluent_kafka.admin")

AclBinding = _admin.AclBinding
AclBindingFilter = _admin.AclBindingFilter
AclOperation = _admin.AclOperation
AclPermissionType = _admin.AclPermissionType
AlterConfigOpType = _admin.AlterConfigOpType
ConfigEntry = _admin.ConfigEntry
ConfigResource = _admin.ConfigResource
ConfigSource = _admin.ConfigSource
NewPartitions = _admin.NewPartitions
NewTopic = _admin.NewTopic
OffsetSpec = _admin.OffsetSpec
ResourcePatternType = _admin.ResourcePatternType
ResourceType = _admin.ResourceType
ScramCredentialInfo = _admin.ScramCredentialInfo
ScramMechanism = _admin.ScramMechanism
UserScramCredentialUpsertion = _admin.UserScramCredentialUpsertion
