"""A node with a console, in virtual time, and requests to it without sockets."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.broker.tests.one_node import OneNode
from barnabas.console.extension import LISTENER, ConsoleExtension, RunningConsole
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Answer:
    """A response, or what has come of a stream."""

    def __init__(self, protocol: Any, transport: Transport) -> None:
        self.protocol = protocol
        self.transport = transport

    @property
    def status(self) -> int:
        """0: none yet."""
        return int(self.transport.written.split(b" ")[1]) if self.transport.written else 0

    @property
    def head(self) -> str:
        return self.transport.written.partition(b"\r\n\r\n")[0].decode()

    @property
    def body(self) -> bytes:
        return self.transport.written.partition(b"\r\n\r\n")[2]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """(id, data) of a stream's events."""
        found = []
        for each in self.body.decode().split("\n\n"):
            if each.startswith("id: "):
                first, second = each.split("\n")
                found.append((first.removeprefix("id: "), json.loads(second.removeprefix("data: "))))
        return found


class Extension(ConsoleExtension):
    """Keeps what it has started."""

    running: RunningConsole | None = None

    def start(self, host: Any) -> RunningConsole | None:
        self.running = super().start(host)
        return self.running


class ConsoleNode(OneNode):
    def __init__(self, *settings: str, address: str = "127.0.0.1:0") -> None:
        super().__init__(*settings, f"{LISTENER}={address}")

    def start(self) -> None:
        self.extension = Extension()
        config = BrokerConfig.load(None, {}, self.settings, [self.extension])
        self.node = Node(config, self.runtime, extensions=[self.extension])
        self.node.start()
        self.runtime.run_until_idle()

    @property
    def port(self) -> int:
        assert self.extension.running is not None
        return self.extension.running.port

    def request(self, target: str, method: str = "GET", **headers: str) -> Answer:
        headers = {"host": f"localhost:{self.port}", **headers}
        transport = Transport()
        protocol = self.runtime.listening[self.port]()
        protocol.connection_made(transport)
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        protocol.data_received(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
        self.runtime.advance(0.01)
        return Answer(protocol, transport)

    def view(self, name: str, **query: object) -> Any:
        """The JSON of a view that there is."""
        answer = self.request(f"/api/{name}?{urlencode(query)}")
        assert answer.status == 200, answer.body
        return answer.json

    def topic_id(self, topic: str) -> bytes:
        return self.node.services.controller.image.topics[topic].topic_id

    def produce(self, topic: str, *values: bytes | Record, partition: int = 0, **batch: Any) -> None:
        """One batch; a value is a record without a key."""
        now = self.runtime.time_ms()
        records = [
            each if isinstance(each, Record) else Record(index, now, None, each)
            for index, each in enumerate(values)
        ]
        self.produce_batch(topic, build_batch(records, **batch), partition)

    def produce_batch(self, topic: str, batch: bytes, partition: int = 0) -> None:
        data = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])
        (answer,) = self.ask(request, 9).responses[0].partition_responses
        assert answer.error_code == 0
