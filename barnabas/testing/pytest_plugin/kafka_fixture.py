"""The session's broker as one test sees it: topics with a prefix of the test's own, gone when it ends, and ready-made clients."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.testing.pytest_plugin.backends import Backend

_PREFIX_LETTERS = 60  # of the test's name; a topic's name has 249 at most
_CONSUMER_WAIT_MS = 10_000


class Kafka:
    """What the fixtures `kafka` and `kafka_session` give. `broker` is the broker behind it: `barnabas.testing.Broker`, unless --kafka names
    another kind."""

    def __init__(self, backend: Backend, test_name: str, *, is_lasting: bool = False) -> None:
        self._backend = backend
        self._is_lasting = is_lasting  # of the whole session
        self.broker: Any = backend.broker
        letters = re.sub(r"[^a-zA-Z0-9-]+", "-", test_name).strip("-")[:_PREFIX_LETTERS]
        self.prefix = (
            f"{letters}-{os.urandom(4).hex()}-"  # no other test, nor another run on the same broker, has it
        )
        if is_lasting:
            backend.lasting_prefixes.append(self.prefix)
        self._before = set(self.broker.topics())
        self._clients: list[Any] = []
        self._numbers: dict[str, int] = {}
        self._groups = 0  # of consumers that were not given one

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, for any client."""
        return str(self.broker.bootstrap_servers)

    @property
    def schema_registry_url(self) -> str:
        """What serializers take as `schema.registry.url`. What a test registers there is gone when it ends, but for subjects of
        `kafka_session`'s names; schemas keep their ids."""
        return str(self.broker.schema_registry_url)

    def name(self, base: str) -> str:
        """A name that is this test's own: for topics, groups, transactional ids."""
        return self.prefix + base

    def topic(
        self,
        base: str = "topic",
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> str:
        """Make a topic; its name."""
        number = self._numbers[base] = self._numbers.get(base, 0) + 1
        name = self.name(base if number == 1 else f"{base}-{number}")
        self.broker.create_topic(name, partitions, replication_factor=replication_factor, configs=configs)
        return name

    # -- clients

    def producer(self, **config: Any) -> Any:
        """A `kafka.KafkaProducer` (kafka-python), closed at the end of the test."""
        client = _import("kafka", "kafka-python").KafkaProducer(
            **{"bootstrap_servers": self.bootstrap_servers, **config}
        )
        self._clients.append(client)
        return client

    def consumer(self, *topics: str, **config: Any) -> Any:
        """A `kafka.KafkaConsumer` (kafka-python) that begins with the first record, in a group of its own; its iteration
        ends when nothing has come for ten seconds. Closed at the end of the test."""
        client = _import("kafka", "kafka-python").KafkaConsumer(
            *topics,
            **{
                "bootstrap_servers": self.bootstrap_servers,
                "group_id": self._new_group(),
                "auto_offset_reset": "earliest",
                "consumer_timeout_ms": _CONSUMER_WAIT_MS,
                **config,
            },
        )
        self._clients.append(client)
        return client

    def aio_producer(self, **config: Any) -> Any:
        """An `aiokafka.AIOKafkaProducer`, not started: `async with kafka.aio_producer() as producer:`."""
        aiokafka = _import("aiokafka", "aiokafka")
        return aiokafka.AIOKafkaProducer(**{"bootstrap_servers": self.bootstrap_servers, **config})

    def aio_consumer(self, *topics: str, **config: Any) -> Any:
        """An `aiokafka.AIOKafkaConsumer` from the first record on, in a group of its own, not started: `async with` starts it."""
        aiokafka = _import("aiokafka", "aiokafka")
        defaults = {
            "bootstrap_servers": self.bootstrap_servers,
            "group_id": self._new_group(),
            "auto_offset_reset": "earliest",
        }
        return aiokafka.AIOKafkaConsumer(*topics, **{**defaults, **config})

    def _new_group(self) -> str:
        self._groups += 1
        return self.name(f"group-{self._groups}")

    # -- the end

    def finish(self) -> None:
        """No faults any more; close the clients, delete the topics. Whatever goes wrong, the rest is done; the last error is
        raised."""
        with ExitStack() as ending:  # last in, first out
            ending.callback(self._delete_topics)
            for client in self._clients:
                ending.callback(client.close)
            ending.callback(self._backend.end_test)
        self._clients.clear()

    def _delete_topics(self) -> None:
        """All that are new, but for the session's; where others use the broker, too, those with names of this test."""
        lasting = () if self._is_lasting else tuple(self._backend.lasting_prefixes)
        new = [
            name for name in self.broker.topics() if name not in self._before and not name.startswith(lasting)
        ]
        if self._is_lasting or self._backend.is_shared_with_others:
            new = [name for name in new if name.startswith(self.prefix)]
        self.broker.delete_topics(*new)


def _import(module: str, package: str) -> Any:
    """pytest.fail with what to do where it is not installed."""
    try:
        with warnings.catch_warnings():  # kafka-python's own, two hundred of them
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module(module)
    except ImportError as error:
        pytest.fail(
            f"this fixture makes clients of {package}, which is not installed ({error}): pip install {package}, or use "
            f"kafka.bootstrap_servers with the client that you have",
            pytrace=False,
        )
