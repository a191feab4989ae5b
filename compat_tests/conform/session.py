"""Session of a case: one broker, one API version, and the transcript of its answers.

`ask` records the answer; `quiet` asks without recording, for set-up. Topic and group names are the same on both
brokers: they consist of the case, the version and the run's tag, which the transcript hides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from compat_tests.conform.apis import APIS
from compat_tests.conform.batches import batch
from compat_tests.conform.client import BadAnswer, Connection, ConnectionClosed, NoAnswer, api_key_of
from compat_tests.conform.transcript import Names, Tree
from compat_tests.harness.eventually import eventually


class Target(NamedTuple):
    """A broker to ask."""

    name: str
    host: str
    port: int
    sasl_port: int = 0  # of a listener with PLAIN, where the broker has an authorizer; 0: it has neither


class Topic(NamedTuple):
    """A topic made for a case."""

    name: str
    id: bytes


def made_up_id(number: int) -> bytes:
    """A topic id that neither broker has assigned, the same on both."""
    return bytes(15) + bytes([number])


USER: Final = "user:"


class Session:
    """One run of one case at one version against one broker."""

    def __init__(self, target: Target, names: Names, prefix: str, version: int, run_tag: str) -> None:
        self.target = target
        self.version = version
        self.names = names
        self.steps: list[Tree] = []
        self._prefix = prefix
        self._run_tag = run_tag
        self._connections: dict[str, Connection] = {}

    # names

    def name(self, suffix: str = "a") -> str:
        """A topic or group name of this run, the same on both brokers."""
        return f"{self._prefix}-v{self.version}-{self._run_tag}-{suffix}"

    # connections

    def connection(self, label: str = "main") -> Connection:
        """The connection of that label, made when it is used first. "user:NAME" is authenticated as NAME."""
        if label not in self._connections:
            user = label.removeprefix(USER)
            port = self.target.port if user == label else self.target.sasl_port
            connection = self._connections[label] = Connection(self.target.host, port)
            if user != label:
                connection.log_in(user, user)
        return self._connections[label]

    def drop(self, label: str = "main") -> None:
        if label in self._connections:
            self._connections.pop(label).close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # asking

    def ask(self, request: object, *, version: int | None = None, on: str = "main", note: str = "") -> Any:
        """Ask at the version under test (or `version`), record the answer, and return it (None when there is none)."""
        return self._attempt(
            note or type(request).__name__,
            on,
            lambda: self.connection(on).ask(request, self.version if version is None else version),
        )

    def send(self, request: object, *, version: int | None = None, on: str = "main") -> int:
        """Send without waiting; `await_answer` collects the answer."""
        return self.connection(on).send(request, self.version if version is None else version)

    def await_answer(self, request: object, correlation_id: int, *, on: str = "main", note: str = "") -> Any:
        key = api_key_of(request)
        return self._attempt(
            note or type(request).__name__,
            on,
            lambda: self.connection(on).receive(key, self.version, correlation_id),
        )

    def outcome_of_bytes(self, data: bytes, *, note: str, seconds: float = 10.0) -> None:
        """Send raw bytes on a connection of their own; record whether an answer came (its bytes) or a close."""
        connection = Connection(self.target.host, self.target.port)
        try:
            connection.send_bytes(data)
            self.record(note, connection.receive_frame(seconds).hex())
        except ConnectionClosed:
            self.record(note, "<closed>")
        except NoAnswer:
            self.record(note, "<no answer>")
        finally:
            connection.close()

    def _attempt(self, note: str, on: str, call: Any) -> Any:
        try:
            answer = call()
        except ConnectionClosed:
            self.drop(on)
            self.record(note, "<closed>")
            return None
        except NoAnswer:
            self.drop(on)
            self.record(note, "<no answer>")
            return None
        except BadAnswer as error:
            self.drop(on)
            self.record(note, f"<bad answer: {error}>")
            return None
        self.record(note, self.names.tree(answer))
        return answer

    def record(self, note: str, outcome: Tree) -> None:
        self.steps.append({"step": note, "answer": outcome})

    def quiet(self, request: object, *, version: int | None = None, on: str = "setup") -> Any:
        """Ask without recording, by default at the API's last version."""
        last = APIS[type(request).__name__.removesuffix("Request")].last
        return self.connection(on).ask(request, last if version is None else version)

    # setting up

    def create_topic(
        self, suffix: str = "a", partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic of this run; fails the case when the broker refuses."""
        wanted = CreatableTopic(
            name=self.name(suffix),
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in (configs or {}).items()],
        )
        answer = self.quiet(CreateTopicsRequest(topics=[wanted], timeout_ms=10000), version=7).topics[0]
        if answer.error_code != 0:
            raise SetupFailed(f"CreateTopics: {answer.error_code} {answer.error_message}")
        topic = Topic(wanted.name, bytes(answer.topic_id))
        self.names.learn_topic(topic.id, topic.name)
        self.wait_until(topic.name, partitions, present=True)
        return topic

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and wait until the broker no longer serves it."""
        self.quiet(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic.name)], timeout_ms=5000))
        self.wait_until(topic.name, 1, present=False)

    def wait_until(self, name: str, partitions: int, *, present: bool) -> None:
        """Wait until the partitions exist or are gone: Kafka answers CreateTopics and DeleteTopics earlier."""
        wanted = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=wanted)])

        def is_so() -> bool:
            answers = self.quiet(request, version=5).topics[0].partitions
            return all((answer.error_code == 0) == present for answer in answers)

        eventually(is_so, message=lambda: f"{name} never became {'present' if present else 'absent'}")

    def produce(self, topic: Topic, records: bytes | None = None, partition: int = 0) -> int:
        """Append one batch and return its base offset; fails the case when the broker refuses."""
        data = PartitionProduceData(index=partition, records=batch() if records is None else records)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=10000,
            topic_data=[TopicProduceData(name=topic.name, partition_data=[data])],
        )
        answer = self.quiet(request, version=9).responses[0].partition_responses[0]
        if answer.error_code != 0:
            raise SetupFailed(f"Produce: {answer.error_code} {answer.error_message}")
        return int(answer.base_offset)


class SetupFailed(Exception):
    """A step that only prepares a case was refused."""
