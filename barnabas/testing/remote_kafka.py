"""Topics of a broker of any make, made and deleted over its own port: what the fixtures need of one that they can't look into."""

from __future__ import annotations

import contextlib
import time  # noqa: TID251 - waits for a broker
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.operations import CREATE_TOPICS, DELETE_TOPICS, RequestFailed
from barnabas.testing.raw_client import RawClient
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA: Final = 3
# Versions that brokers from 2.4 to today's have
_METADATA_VERSION: Final = 8
_CREATE_VERSION: Final = 5
_DELETE_VERSION: Final = 4
WAIT_SECONDS_MAX: Final = 30.0
_POLL_S: Final = 0.02


class RemoteKafka:
    """A broker at `host:port`; of a list of addresses the first one that answers. OSError where none does."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._client: RawClient | None = None

    def topics(self) -> dict[str, int]:
        """Topics by name, with the number of their partitions; Kafka's own ones left out."""
        answer = self._ask(METADATA, _METADATA_VERSION, MetadataRequest(topics=None))
        return {topic.name: len(topic.partitions) for topic in answer.topics if not topic.is_internal}

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        """Ready to be written to on return. RequestFailed; TimeoutError where it gets no leader."""
        topic = CreatableTopic(
            name=name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            configs=[
                CreatableTopicConfig(name=key, value=str(value)) for key, value in (configs or {}).items()
            ],
        )
        answer = self._ask(CREATE_TOPICS, _CREATE_VERSION, CreateTopicsRequest(topics=[topic]))
        self._check(answer.topics)
        self._wait(lambda: self._is_led(name), f"{name} has no leader")

    def delete_topics(self, *names: str) -> None:
        """Those that exist. RequestFailed."""
        wanted = sorted(set(names) & set(self.topics()))
        if wanted:
            answer = self._ask(
                DELETE_TOPICS, _DELETE_VERSION, DeleteTopicsRequest(topic_names=wanted, timeout_ms=30_000)
            )
            self._check(answer.responses, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def wait_until_it_serves(self, seconds: float = WAIT_SECONDS_MAX) -> None:
        """TimeoutError."""

        def serves() -> bool:
            try:
                answer = self._ask(METADATA, _METADATA_VERSION, MetadataRequest(topics=[]))
            except (OSError, EOFError):
                self.stop()
                return False
            return bool(answer.brokers)

        self._wait(serves, f"{self.bootstrap_servers} does not answer", seconds)

    def stop(self) -> None:
        """Close the connection; the broker goes on."""
        client, self._client = self._client, None
        if client is not None:
            client.socket.close()

    def _is_led(self, name: str) -> bool:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        topic = self._ask(METADATA, _METADATA_VERSION, request).topics[0]
        return not topic.error_code and all(not each.error_code for each in topic.partitions)

    @staticmethod
    def _check(results: list[Any], *harmless: ErrorCode) -> None:
        for result in results:
            error = ErrorCode.of(result.error_code)
            if error and error not in harmless:
                raise RequestFailed(error, getattr(result, "error_message", None) or result.name)

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
            self.stop()
        self._client = self._connect()
        return self._client.ask(key, version, request)

    def _connect(self) -> RawClient:
        failure: OSError = ConnectionRefusedError(self.bootstrap_servers)
        for address in self.bootstrap_servers.split(","):
            host, _, port = address.strip().rpartition(":")
            try:
                return RawClient(int(port), host.strip("[]"))
            except OSError as error:
                failure = error
        raise failure
