"""Features (KIP-584): the levels that this release supports, those of a new cluster, and changing them.

Only features that work here are supported (FEATURES). The image has the finalized levels (FeatureLevelRecord). Other features that Kafka has
finalized are kept for Kafka and can't be changed here. Texts are Kafka's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import BROKER_RESOURCE, MetadataImage
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ClearElrRecord, ConfigRecord, FeatureLevelRecord

METADATA_VERSION: Final = "metadata.version"
METADATA_VERSION_MIN: Final = 7  # 3.3-IV3
METADATA_VERSION_LEVEL: Final = 30  # 4.3-IV0
KRAFT_VERSION: Final = "kraft.version"  # 1: the metadata log names the voters (KIP-853)
ELR_VERSION: Final = "eligible.leader.replicas.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
STREAMS_VERSION: Final = "streams.version"
SHARE_VERSION: Final = "share.version"
MIN_ISR: Final = "min.insync.replicas"


class Feature(NamedTuple):
    """A feature with the levels of Kafka 4.3.1. `served`: the highest one that works here, 0 for none; brokers support the levels
    up to it, and new metadata begins with it."""

    name: str
    lowest: int
    highest: int
    served: int


# A new Kafka 4.3.1 begins with the highest level of each. kraft.version is not here: it depends on how the voters are configured.
FEATURES: Final = (
    Feature(METADATA_VERSION, METADATA_VERSION_MIN, METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL),
    Feature(
        TRANSACTION_VERSION, 0, 2, 2
    ),  # 2: each end of a transaction raises its producer's epoch (KIP-890)
    Feature(ELR_VERSION, 0, 1, 1),  # KIP-966
    Feature(GROUP_VERSION, 0, 1, 1),  # 1: consumer groups (KIP-848)
    Feature(SHARE_VERSION, 0, 1, 1),  # 1: share groups (KIP-932)
    Feature(STREAMS_VERSION, 0, 1, 1),  # 1: streams groups (KIP-1071)
)
# name -> (lowest, highest) level
SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = {
    **{each.name: (each.lowest, each.served) for each in FEATURES if each.served},
    KRAFT_VERSION: (0, 1),
}

# node id -> levels by feature, as SUPPORTED_FEATURES; None for a voter that is not linked
ControllerFeatures = dict[int, Mapping[str, tuple[int, int]] | None]

UPGRADE: Final = 1  # FeatureUpdate.UpgradeType
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3


class FeatureUpdate(msgspec.Struct, frozen=True):
    """A feature and its wanted level. `upgrade_type`: UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE."""

    name: str
    level: int
    upgrade_type: int


def with_elr(image: MetadataImage) -> bool:
    """Whether eligible leader replicas are in use (KIP-966)."""
    return image.features.get(ELR_VERSION, 0) > 0


def first_features(image: MetadataImage, settings: ControllerSettings) -> list[msgspec.Struct]:
    """The features of new metadata, metadata.version first, which defines how to read the rest; none when it has begun
    already. As in Kafka older metadata stays as it is until UpdateFeatures raises it."""
    if METADATA_VERSION in image.features:
        return []
    return [
        *(FeatureLevelRecord(name=each.name, feature_level=each.served) for each in FEATURES if each.served),
        *_common_min_isr(image, settings),
    ]


def begin_cluster(
    image: MetadataImage, settings: ControllerSettings, *, dynamic: bool = False
) -> Decision[None]:
    """The first records of a cluster of several nodes; none when it has begun already. Metadata of a single node from before
    those used eligible leader replicas gets that feature now. `dynamic`: the configuration does not name the voters, so the log
    does."""
    records = first_features(image, settings)
    if dynamic and records:
        records.append(FeatureLevelRecord(name=KRAFT_VERSION, feature_level=1))
    if not records and ELR_VERSION not in image.features and len(image.brokers) <= 1:
        records.append(FeatureLevelRecord(name=ELR_VERSION, feature_level=1))
        records += _common_min_isr(image, settings)
    return Decision(records, None)


def _common_min_isr(image: MetadataImage, settings: ControllerSettings) -> list[ConfigRecord]:
    """Eligible leader replicas need the same min.insync.replicas on all brokers from now on."""
    records: list[ConfigRecord] = []
    for kind, name in sorted(image.configs):
        if kind == BROKER_RESOURCE and name and MIN_ISR in image.configs[kind, name]:
            records.append(ConfigRecord(resource_type=kind, resource_name=name, name=MIN_ISR, value=None))
    if MIN_ISR not in image.configs.get((BROKER_RESOURCE, ""), {}):
        value = settings.value(MIN_ISR) or "1"
        records.append(
            ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=MIN_ISR, value=value)
        )
    return records


def update_features(
    image: MetadataImage,
    settings: ControllerSettings,
    updates: Sequence[FeatureUpdate],
    *,
    validate_only: bool = False,
    controllers: ControllerFeatures | None = None,
    is_alone: bool = False,
) -> Decision[ApiError | None]:
    """Make all updates, or none and return the error of the first that is not allowed. `controllers`: the others. `is_alone`: there is no
    quorum whose log could name the voters."""
    records: list[msgspec.Struct] = []
    try:
        for update in updates:
            if update.name == KRAFT_VERSION and update.level > 0 and is_alone:
                raise _invalid(
                    update, "A single node has no quorum; its configuration makes one of several nodes."
                )
            records += _update(image, settings, controllers or {}, update)
    except ApiError as api_error:
        return Decision([], api_error)
    if validate_only:
        return Decision([], None)
    elr_levels = [update.level for update in updates if update.name == ELR_VERSION]
    if any(elr_levels):
        records += _common_min_isr(image, settings)
    if any(bool(level) != with_elr(image) for level in elr_levels):
        # While the feature is off, min.insync.replicas may change, on which the eligibility of those depends that there are.
        records.append(ClearElrRecord())
    return Decision(records, None)


def _update(
    image: MetadataImage,
    settings: ControllerSettings,
    controllers: ControllerFeatures,
    update: FeatureUpdate,
) -> list[msgspec.Struct]:
    current = image.features.get(update.name, 0)
    reason = ""
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        reason = "The controller does not support the given upgrade type."
    elif update.level < 0:
        reason = "A feature version cannot be less than 0."
    else:
        reason = _not_supported(image, settings.node_id, controllers, update)
    if not reason and update.level < current and update.upgrade_type == UPGRADE:
        reason = (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if not reason and update.level > current and update.upgrade_type != UPGRADE:
        reason = "Can't downgrade to a newer version."
    if reason:
        raise _invalid(update, reason)
    if update.name == METADATA_VERSION and update.level < current:
        _check_metadata_downgrade(current, update)
    if update.name == KRAFT_VERSION and update.level < current:
        raise _invalid(update, "Can't downgrade the version of this feature.")
    return [FeatureLevelRecord(name=update.name, feature_level=update.level)]


def _invalid(update: FeatureUpdate, reason: str) -> ApiError:
    text = f"Invalid update version {update.level} for feature {update.name}. {reason}"
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, text)


def _not_supported(
    image: MetadataImage, node_id: int, controllers: ControllerFeatures, update: FeatureUpdate
) -> str:
    """The reason why a node of the cluster can't run at this level; empty when all can. Kafka's controllers register in the metadata,
    and are asked for what they registered last. Here they are asked by their links, so a voter that is down and no broker has to come
    back first."""
    name, level = update.name, update.level
    nodes = [(f"Local controller {node_id}", SUPPORTED_FEATURES.get(name, (0, 0)))]
    nodes += [
        (f"Broker {broker_id}", image.brokers[broker_id].features.get(name, (0, 0)))
        for broker_id in sorted(image.brokers)
    ]
    nodes += [
        (f"Controller {controller_id}", features.get(name, (0, 0)))
        for controller_id, features in sorted(controllers.items())
        if features is not None
    ]
    for node, (low, high) in nodes:
        if level and (low, high) == (0, 0):
            return f"{node} does not support this feature."
        if level and not low <= level <= high:
            return f"{node} only supports versions {low}-{high}"
    for controller_id, features in sorted(controllers.items()):
        if level and features is None and controller_id not in image.brokers:
            return f"controller {controller_id} has not registered, and may not support this feature"
    return "" if name in SUPPORTED_FEATURES else f"Feature {name} not found."


def _check_metadata_downgrade(current: int, update: FeatureUpdate) -> None:
    """Always an error: records are written in the newest version, and a downgrade would lose some."""
    reason = (
        "Unsafe metadata downgrade is not supported in this version."
        if update.upgrade_type == UNSAFE_DOWNGRADE
        else "Refusing to perform the requested downgrade because it might delete metadata information."
    )
    raise ApiError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Unsupported metadata.version downgrade from {current} to {update.level}. {reason}",
    )
