"""Marks: places among a topic's messages that several brokers agree on.

A mark is a message on a subject of the topic's own, published and received on the connection that carries the topic's
messages, so it has a place among them. nats-server fans a mark out within tens of microseconds, or some milliseconds where
it waits for a processor; messages that are published at exactly that time may come before the mark to one broker and after it
to another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.nats.client.errors import NatsError

if TYPE_CHECKING:
    from barnabas.nats.client.client import NatsClient, Subscription

log = logging.getLogger("barnabas.nats")


class MarkSubjects:
    """The subjects `_BARNABAS.<cluster>.<topic>.<name>`, on the connection that the topic's messages come in on."""

    def __init__(self, client: NatsClient, cluster_id: str, topic: str) -> None:
        self._client = client
        self._prefix = f"_BARNABAS.{cluster_id}.{topic}"
        self._subscriptions: list[Subscription] = []

    def subscribe(self, name: str, received: Callable[[bytes], object]) -> None:
        """`received(payload)`; any account may publish there."""

        def take(_subject: bytes, _reply: bytes, _header_block: bytes, payload: bytes) -> None:
            received(payload)

        self._subscriptions.append(self._client.subscribe(f"{self._prefix}.{name}", take))

    def publish(self, name: str, payload: bytes) -> None:
        try:
            self._client.publish(f"{self._prefix}.{name}".encode(), payload)
        except (NatsError, ValueError) as error:
            log.debug("no mark on %s.%s: %s", self._prefix, name, error)

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.unsubscribe()
        self._subscriptions = []
