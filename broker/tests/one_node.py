"""A whole node in the test's process: real controller, partitions and files, a clock that the test moves."""

from __future__ import annotations

from typing import Any

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.requests.context import Outcome, RawResponse
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.security.caller import ANONYMOUS, Principal
from barnabas.broker.tests.reply import as_received, send
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.registry import API_NAMES, request_type, response_type
from compat_tests.virtual.runtime import VirtualRuntime

KEYS = {name: key for key, name in API_NAMES.items()}


class OneNode:
    """Every request and response passes through its wire form. `settings`: name=value."""

    def __init__(self, *settings: str) -> None:
        self.runtime = VirtualRuntime()
        self.settings = ["listeners=PLAINTEXT://127.0.0.1:0", *settings]
        self.start()

    def start(self) -> None:
        self.node = Node(BrokerConfig.load(None, {}, self.settings), self.runtime)
        self.node.start()
        self.runtime.run_until_idle()

    def restart(self) -> None:
        self.node.stop()
        self.start()

    def create(self, topic: str, partitions: int = 1, principal: Principal = ANONYMOUS) -> bytes:
        """The topic's id."""
        new = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        (created,) = self.ask(CreateTopicsRequest(topics=[new], timeout_ms=1000), 7, principal).topics
        assert created.error_code == 0
        return bytes(created.topic_id)

    def ask(
        self,
        request: Any,
        version: int | None = None,
        principal: Principal = ANONYMOUS,
        listener: str = "PLAINTEXT",
    ) -> Any:
        """The response, or the outcome, when all that follows from the request at once has happened. The last version unless
        one is given."""
        key = KEYS[type(request).__name__.removesuffix("Request")]
        registration = REGISTRATIONS[key]
        if version is None:
            version = registration.max_version
        assert registration.min_version <= version <= registration.max_version
        received = as_received(request_type(key), version, request)
        reply = send(self.node.services, key, version, received, principal=principal, listener=listener)
        self.runtime.advance(0)
        (response,) = reply.responses
        if isinstance(response, Outcome):
            return response
        if isinstance(response, RawResponse):
            return response_type(key).decode(version, response.body)[0]
        return as_received(response_type(key), version, response)
