"""The start of a controller that is alone: it decides at once, and takes its own broker in without being asked."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.operations.brokers import BrokerSettings, register_broker
from barnabas.runtime.interface import Runtime


def start_alone(
    controller: Controller, settings: BrokerSettings, runtime: Runtime, log_dirs: Sequence[bytes] = ()
) -> None:
    """Blocking: replay what was committed before, then register this broker, whose log directories that work have
    the ids `log_dirs`. MetadataError, OSError."""
    controller.open()
    failures: list[str] = []
    incarnation_id = runtime.random_bytes(16)
    controller.run(
        lambda image: register_broker(image, settings, incarnation_id, log_dirs),
        lambda _: None,
        lambda _, message: failures.append(message),
    )
    if failures:
        raise MetadataError(f"this broker could not be registered in its own metadata: {failures[0]}")
    controller.serve()
