"""Brokers: registration, fencing, controlled shutdown, unregistration (KIP-631).

A registration begins a broker epoch, which is the offset of its record, so epochs grow. A broker that registers is fenced until
it has applied the metadata up to that record: before, it may not know its partitions. The sessions of the active controller
(broker_sessions.py), not the metadata, say whether the previous incarnation is alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from barnabas.controller.metadata.decision import ApiError, Decision, Steps
from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage
from barnabas.controller.operations.features import (
    METADATA_VERSION,
    METADATA_VERSION_MIN,
    SUPPORTED_FEATURES,
    begin_cluster,
    first_features,
)
from barnabas.controller.operations.leadership import (
    broker_fenced,
    broker_unclean_shutdown,
    broker_unfenced,
    broker_unregistered,
)
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_registration import BrokerRegistrationRequest
from barnabas.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from barnabas.wire.uuids import uuid_to_string

FENCE: Final = 1  # BrokerRegistrationChangeRecord.fenced
UNFENCE: Final = -1
LEAVING: Final = 1  # BrokerRegistrationChangeRecord.in_controlled_shutdown

_RESERVED_DIRECTORIES: Final = 100  # ids below this one have a meaning of their own
_SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class ListenerSettings(Protocol):
    """The parts of a listener that the metadata has."""

    @property
    def name(self) -> str: ...
    @property
    def security_protocol(self) -> str: ...
    @property
    def advertised_host(self) -> str: ...
    @property
    def advertised_port(self) -> int: ...


class BrokerSettings(ControllerSettings, Protocol):
    """The parts of the broker's configuration that the metadata has."""

    @property
    def broker_rack(self) -> str | None: ...
    @property
    def listeners(self) -> Sequence[ListenerSettings]: ...


def register_broker(
    image: MetadataImage, settings: BrokerSettings, incarnation_id: bytes, log_dirs: Sequence[bytes] = ()
) -> Decision[int]:
    """Registers this broker, unfenced, in a cluster of one node; the response is its broker epoch. `log_dirs`: ids of its log
    directories that work.

    On empty metadata its features are finalized first. A port of 0 stands for one that is known once the listener is open;
    clients do not get it from here.
    """
    records = first_features(image, settings)
    broker_epoch = image.offset + 1 + len(records)
    records.append(
        RegisterBrokerRecord(
            broker_id=settings.node_id,
            incarnation_id=incarnation_id,
            broker_epoch=broker_epoch,
            end_points=[
                BrokerEndpoint(
                    name=listener.name,
                    host=listener.advertised_host,
                    port=listener.advertised_port,
                    security_protocol=_SECURITY_PROTOCOLS[listener.security_protocol],
                )
                for listener in settings.listeners
            ],
            features=[
                BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ],
            rack=settings.broker_rack,
            fenced=False,
            log_dirs=sorted(log_dirs),
        )
    )
    return Decision(records, broker_epoch)


def register(
    image: MetadataImage,
    settings: ControllerSettings,
    request: BrokerRegistrationRequest,
    cluster_id: str,
    *,
    is_alive: bool,
) -> Steps[int | ApiError]:
    """BrokerRegistration; the response is the broker epoch. `is_alive`: a registered broker of this id is known to be alive.

    The same incarnation may change its registration, and keeps its epoch. A new incarnation is fenced; it leads nothing and is in
    no ISR. When the previous one did not stop cleanly, it is not eligible either. Where not all of this is committed, the broker
    asks again.
    """
    try:
        _check_registration(image, request, cluster_id, is_alive=is_alive)
    except ApiError as api_error:
        return api_error
    former = image.brokers.get(request.broker_id)
    record = _registration_record(request)
    if former is not None and former.incarnation_id == request.incarnation_id:
        record.fenced = former.fenced
        record.in_controlled_shutdown = former.in_controlled_shutdown
        record.broker_epoch = former.broker_epoch
        yield record
        return record.broker_epoch
    has_stopped_cleanly = former is not None and former.broker_epoch == request.previous_broker_epoch
    shut_down = broker_fenced if has_stopped_cleanly else broker_unclean_shutdown
    record.broker_epoch = image.offset + 1
    for change in shut_down(image, settings, request.broker_id):
        record.broker_epoch += 1
        yield change
    if former is None and len(image.brokers) == 1:  # a single node becomes a cluster
        first = begin_cluster(image, settings).records
        record.broker_epoch += len(first)
        yield from first
    yield record
    return record.broker_epoch


def _registration_record(request: BrokerRegistrationRequest) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            BrokerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ],
        features=[
            BrokerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ],
        rack=request.rack,
        fenced=True,
        log_dirs=sorted(request.log_dirs),
    )


def _check_registration(
    image: MetadataImage, request: BrokerRegistrationRequest, cluster_id: str, *, is_alive: bool
) -> None:
    if request.cluster_id != cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}",
        )
    former = image.brokers.get(request.broker_id)
    if (
        former is not None
        and is_alive
        and former.incarnation_id != request.incarnation_id
        and not former.in_controlled_shutdown
    ):
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session.",
        )
    _check_directories(image, request.broker_id, request.log_dirs)
    supported = {
        feature.name: (feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    supported.setdefault(METADATA_VERSION, (METADATA_VERSION_MIN, METADATA_VERSION_MIN))
    for name, level in sorted(image.features.items()):
        if name not in SUPPORTED_FEATURES:
            continue  # finalized by Kafka, and kept for Kafka
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. The "
                f"broker wants a version between {low} and {high}, inclusive.",
            )


def _check_directories(image: MetadataImage, broker_id: int, log_dirs: Sequence[bytes]) -> None:
    problem = ""
    if not log_dirs:
        problem = "No directories specified in request"
    elif any(int.from_bytes(each, "big") < _RESERVED_DIRECTORIES for each in log_dirs):
        problem = "Reserved directory ID in request"
    elif len(set(log_dirs)) != len(log_dirs):
        problem = "Duplicate directory ID in request"
    else:
        for other in image.brokers.values():
            shared = sorted(set(other.log_dirs) & set(log_dirs)) if other.broker_id != broker_id else []
            if shared:
                problem = f"Broker {other.broker_id} is already registered with directory {uuid_to_string(shared[0])}"
    if problem:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, problem)


def fence(
    image: MetadataImage, settings: ControllerSettings, broker_id: int, broker_epoch: int
) -> Steps[bool]:
    """A broker whose session has ended leads nothing and is in no ISR. The response is whether this changes anything: not when
    it is fenced already, or registered in another epoch. It is fenced last: until then the sessions see to it."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch or broker.fenced:
        return False
    yield from broker_fenced(image, settings, broker_id)
    yield _change(broker, fenced=FENCE)
    return True


def unfence(
    image: MetadataImage, settings: ControllerSettings, broker: BrokerRegistration
) -> Iterator[msgspec.Struct]:
    """A broker that has caught up is unfenced, and may lead partitions without a leader. It is unfenced first, so that no leader is
    fenced; partitions that are not reached get their leaders from `elect_missing_leaders`."""
    there = msgspec.structs.replace(broker, fenced=False)
    yield _change(broker, fenced=UNFENCE)
    yield from broker_unfenced(image, settings, there)


def leave(
    image: MetadataImage, settings: ControllerSettings, broker: BrokerRegistration
) -> Iterator[msgspec.Struct]:
    """A broker is about to stop: it leaves every ISR, and others lead. That it leaves is recorded last: until then its heartbeats ask
    for all of this."""
    yield from broker_fenced(image, settings, broker.broker_id)
    yield _change(broker, leaving=LEAVING)


def unregister(
    image: MetadataImage, settings: ControllerSettings, broker_id: int, *, dead_epoch: int
) -> Steps[ApiError | None]:
    """Remove a broker's registration (KIP-500); its replicas stay assigned to it. One that is unfenced, or registered in another
    epoch than `dead_epoch` (the last one in which it is not known to be alive), is refused: Kafka 4.3.1 accepts it, and the broker
    is gone until it restarts."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        text = f"Broker ID {broker_id} is not currently registered"
        return ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
    if broker.broker_epoch != dead_epoch or not broker.fenced:
        text = (
            f"Broker {broker_id} is running and can't be unregistered: stop it first. (One that was killed counts as "
            f"running until broker.session.timeout.ms is over.)"
        )
        return ApiError(ErrorCode.INVALID_REQUEST, text)
    yield from broker_unregistered(image, settings, broker_id)
    yield UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    return None


def _change(
    broker: BrokerRegistration, *, fenced: int = 0, leaving: int = 0
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_controlled_shutdown=leaving,
    )
