"""A broker of any make, over its own port: its topics, and with kafka-python its records (remote_records.py). That is what tests
have of one that they can't look into; the rest of what a `Broker` offers says so and skips the test.
"""

from __future__ import annotations

import contextlib
import time  # noqa: TID251 - waits for a broker
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.contents import READ_COMMITTED, StoredRecord, UnknownTopic, is_committed
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.operations import CREATE_TOPICS, DELETE_TOPICS, RequestFailed
from barnabas.testing.pending import Finished
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping, Sequence

    from barnabas.testing.seeding import Seed

# API keys with versions that brokers from 2.4 to today's have
METADATA: Final = (3, 8)
_CREATE_TOPICS: Final = (CREATE_TOPICS, 5)
_DELETE_TOPICS: Final = (DELETE_TOPICS, 4)
WAIT_SECONDS_MAX: Final = 30.0
_POLL_S: Final = 0.02


class RemoteKafka:
    """A broker at `host:port`; of a list of addresses the first one that answers. OSError where none does.

    What only a `Broker` has (`on`, `clock`, `group`, ...) is an AttributeError here, and under pytest skips the test."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._client: RawClient | None = None

    def topics(self) -> dict[str, int]:
        """Topics by name, with the number of their partitions; Kafka's own ones left out."""
        answer = self._ask(*METADATA, MetadataRequest(topics=None))
        return {topic.name: len(topic.partitions) for topic in answer.topics if not topic.is_internal}

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> Awaitable[None]:
        """Ready to be written to on return. RequestFailed; TimeoutError where it gets no leader."""
        topic = CreatableTopic(
            name=name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            configs=[
                CreatableTopicConfig(name=key, value=str(value)) for key, value in (configs or {}).items()
            ],
        )
        answer = self._ask(*_CREATE_TOPICS, CreateTopicsRequest(topics=[topic]))
        check_results(answer.topics)
        self._wait(lambda: self._is_led(name), f"{name} has no leader")
        return Finished()

    def delete_topics(self, *names: str) -> Awaitable[None]:
        """Those that exist. RequestFailed."""
        wanted = sorted(set(names) & set(self.topics()))
        if wanted:
            answer = self._ask(*_DELETE_TOPICS, DeleteTopicsRequest(topic_names=wanted, timeout_ms=30_000))
            check_results(answer.responses, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return Finished()

    def seed(self, topic: str, records: object) -> Awaitable[None]:
        """As `Broker.seed`: append records, committed on return. A topic that does not exist is made. RequestFailed."""
        from barnabas.testing import seeding

        self._append(topic, seeding.read_seeds(records))
        return Finished()

    def produce(self, topic: str, value: object, key: object = None, **fields: object) -> StoredRecord:
        """Append one record and give it back as it is stored; `fields` are headers, timestamp, partition. RequestFailed."""
        from barnabas.testing import seeding

        [stored] = self._append(topic, [seeding.single(value, key, fields)])
        return stored

    def records(
        self, topic: str, partition: int | None = None, *, isolation_level: str = READ_COMMITTED
    ) -> list[StoredRecord]:
        """What consumers of this isolation level may read of one partition or of all, partition by partition. UnknownTopic."""
        from barnabas.testing.external import remote_records

        is_committed(isolation_level)
        count = self.topics().get(topic)
        if count is None:
            raise UnknownTopic(f"there is no topic {topic!r}")
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopic(f"there is no partition {partition} of {topic!r}")
        indexes = range(count) if partition is None else [partition]
        return remote_records.read(self.reachable_servers(topic), topic, indexes, isolation_level)

    def reachable_servers(self, topic: str | None = None) -> str:  # noqa: ARG002 - some have to wait for its leaders
        """Where a client finds the cluster, and this topic."""
        return self.bootstrap_servers

    def _append(self, topic: str, seeds: Sequence[Seed]) -> list[StoredRecord]:
        from barnabas.testing.external import remote_records

        if topic not in self.topics():
            self.create_topic(topic)
        servers = self.reachable_servers(topic)
        return remote_records.append(servers, topic, self.topics()[topic], seeds)

    if not TYPE_CHECKING:  # to mypy they are not there

        def __getattr__(self, name: str) -> Any:
            raise _absent(name, self.__dict__.get("bootstrap_servers", ""))

    def wait_until_it_serves(self, seconds: float = WAIT_SECONDS_MAX) -> None:
        """TimeoutError."""

        def serves() -> bool:
            try:
                answer = self._ask(*METADATA, MetadataRequest(topics=[]))
            except (OSError, EOFError):
                self.disconnect()
                return False
            return bool(answer.brokers)

        self._wait(serves, f"{self.bootstrap_servers} does not answer", seconds)

    def stop(self) -> None:
        """Close the connection; the broker goes on."""
        self.disconnect()

    def disconnect(self) -> None:
        """The next request has a connection of its own."""
        client, self._client = self._client, None
        if client is not None:
            client.socket.close()

    def _is_led(self, name: str) -> bool:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        topic = self._ask(*METADATA, request).topics[0]
        return not topic.error_code and all(not each.error_code for each in topic.partitions)

    @staticmethod
    def _wait(is_so: Any, why: str, seconds: float = WAIT_SECONDS_MAX) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{why} after {seconds:g} s")
            time.sleep(_POLL_S)

    def _ask(self, key: int, version: int, request: Any) -> Any:
        if self._client is not None:
            with contextlib.suppress(OSError, EOFError):  # it may have been restarted since
                return self._client.ask(key, version, request)
            self.disconnect()
        self._client = self._connect()
        return self._client.ask(key, version, request)

    def _connect(self) -> RawClient:
        failure: OSError | None = None
        for address in self.reachable_servers().split(","):
            host, _, port = address.strip().rpartition(":")
            try:
                return RawClient(int(port), host.strip("[]"))
            except OSError as error:
                failure = error
        raise ConnectionError(f"no broker answers at {self.bootstrap_servers}: {failure}") from failure


def check_results(results: Iterable[Any], *harmless: ErrorCode) -> None:
    """RequestFailed for the first of them that has an error."""
    for result in results:
        error = ErrorCode.of(result.error_code)
        if error and error not in harmless:
            why = getattr(result, "error_message", None) or getattr(result, "name", None)
            raise RequestFailed(error, why or "")


def _absent(name: str, address: str) -> AttributeError:
    """Of something that a RemoteKafka has not."""
    from barnabas.testing.broker import Broker

    if name.startswith("_") or name not in dir(Broker()):
        return AttributeError(f"a Kafka outside this process has no {name!r}", name=name)
    return _only_of_broker()(
        f"{name!r} takes Barnabas in this process, and this is another broker ({address})"
    )


def _only_of_broker() -> type[AttributeError]:
    """An AttributeError, for `hasattr`, that pytest and unittest take for the wish to skip."""
    from unittest import SkipTest

    class OnlyOfBroker(AttributeError, SkipTest):
        """What tests with this broker can't have."""

    return OnlyOfBroker
