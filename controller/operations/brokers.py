"""Brokers and features: this node takes its place in the metadata when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from barnabas.controller.decision import Decision
from barnabas.controller.image import MetadataImage
from barnabas.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    FeatureLevelRecord,
    RegisterBrokerRecord,
)

METADATA_VERSION: Final = "metadata.version"
METADATA_VERSION_LEVEL: Final = 30  # 4.3-IV0

# Levels that this broker can run at, as Kafka 4.3 states them. The finalized ones stand in the image.
SUPPORTED_FEATURES: Final[dict[str, tuple[int, int]]] = {METADATA_VERSION: (7, METADATA_VERSION_LEVEL)}

_SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class ListenerSettings(Protocol):
    """What of a listener goes into the metadata."""

    @property
    def name(self) -> str: ...
    @property
    def security_protocol(self) -> str: ...
    @property
    def advertised_host(self) -> str: ...
    @property
    def advertised_port(self) -> int: ...


class BrokerSettings(Protocol):
    """What of the broker's configuration goes into the metadata."""

    @property
    def node_id(self) -> int: ...
    @property
    def broker_rack(self) -> str | None: ...
    @property
    def listeners(self) -> Sequence[ListenerSettings]: ...


def register_broker(
    image: MetadataImage, settings: BrokerSettings, incarnation_id: bytes, log_dirs: Sequence[bytes] = ()
) -> Decision[int]:
    """This broker, started anew and ready to serve; the response is its broker epoch. `log_dirs` are the ids
    of its log directories that work.

    The epoch is the offset of its registration record, as in Kafka. On empty metadata, the features that new
    clusters run with are finalized first: metadata begins with metadata.version, which says how to read it.
    A port of 0 stands for one that is known only once the listener is open; it is not told to clients from
    here.
    """
    records: list[msgspec.Struct] = []
    if METADATA_VERSION not in image.features:
        records.append(FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL))
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
