"""Start of a single controller: it is active at once, and registers its own broker without a request."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.operations.brokers import BrokerSettings, register_broker
from barnabas.runtime.interface import Runtime


def start_alone(
    controller: Controller, settings: BrokerSettings, runtime: Runtime, log_dirs: Sequence[bytes] = ()
) -> None:
    """Blocking: replay the committed metadata, then register this broker. `log_dirs`: ids of its log directories that work.
    MetadataError, OSError."""
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
