"""A simulated client's connections, its view of the cluster, and the routing of its requests.

As real clients do, it knows some bootstrap addresses, learns the brokers and the leaders from Metadata, keeps one
connection to each broker, and closes the connection when a request takes longer than `request_timeout_s`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponseTopic
from barnabas.wire.registry import request_type, response_type
from compat_tests.simulation.tasks import Result, sleep, within
from compat_tests.virtual.runtime import VirtualRuntime

METADATA, METADATA_VERSION = 3, 13
Address = tuple[str, int]
REQUEST_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 2.0
BACKOFF_S = 0.05


class NoResponse(Exception):
    """A request has no response: the connection failed, was lost, or timed out. The broker may have executed the
    request."""

    def __init__(self, what: str, *, was_sent: bool) -> None:
        super().__init__(what)
        self.was_sent = was_sent


class Wire:
    """One connection. Requests may be pipelined."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.made: Result[None] = Result()
        self.is_lost = False
        self._asked: dict[int, tuple[int, int, Result[Any]]] = {}
        self._correlation_id = 0
        self._received = bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.made.set(None)

    def failed(self, error: OSError) -> None:
        self.is_lost = True
        self.made.fail(NoResponse(str(error), was_sent=False))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= 4:
            size = int.from_bytes(received[:4], "big")
            if len(received) < 4 + size:
                return
            frame = bytes(received[4 : 4 + size])
            del received[: 4 + size]
            key, version, result = self._asked.pop(int.from_bytes(frame[:4], "big"))
            kind = response_type(key)
            start = 5 if kind.flexible(version) and key != API_VERSIONS else 4
            response, end = kind.decode(version, frame, start)
            assert end == len(frame), f"{kind.name} v{version}: {len(frame) - end} bytes too many"
            result.set(response)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        asked, self._asked = self._asked, {}
        for _, _, result in asked.values():
            result.fail(NoResponse(f"connection lost: {error}", was_sent=True))

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def close(self) -> None:
        if self.transport is not None and not self.is_lost:
            self.transport.abort()

    def send(self, key: int, version: int, message: Any, *, is_answered: bool = True) -> Result[Any]:
        self._correlation_id += 1
        kind = request_type(key)
        parts: list[Any] = []
        kind.writers[version](message, parts.append)
        header = struct.pack(">hhih", key, version, self._correlation_id, 1) + b"c"
        header += b"\0" if kind.flexible(version) else b""
        body = b"".join(parts)
        result: Result[Any] = Result()
        if is_answered:
            self._asked[self._correlation_id] = key, version, result
        else:
            result.set(None)
        self.transport.write(struct.pack(">i", len(header) + len(body)) + header + body)
        return result


class Client:
    """See the module. `random` is the client's own, so its behaviour depends on its seed and on answers only."""

    def __init__(self, runtime: VirtualRuntime, bootstrap: Sequence[Address], name: str) -> None:
        self.runtime = runtime
        self.name = name
        self.random = random.Random(f"{runtime.random.random()} {name}")
        self._bootstrap = list(bootstrap)
        self._wires: dict[Address, Wire] = {}
        self.brokers: dict[int, Address] = {}
        self.topics: dict[str, MetadataResponseTopic] = {}
        self.epochs: dict[tuple[bytes, int], tuple[int, int]] = {}  # partition -> (leader epoch, leader)
        self.lost_answers = (
            0.0  # the share of requests that are executed and whose connection is lost before the answer
        )

    def now(self) -> float:
        return self.runtime.monotonic()

    async def pause(self, seconds: float = BACKOFF_S) -> None:
        await sleep(self.runtime, seconds * self.random.uniform(0.8, 1.2))

    async def ask(
        self,
        address: Address,
        key: int,
        version: int,
        message: Any,
        *,
        is_answered: bool = True,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """The response; raises NoResponse."""
        wire = await self._connected(address)
        result = wire.send(key, version, message, is_answered=is_answered)
        if not is_answered:
            return None
        within(self.runtime, result, timeout_s, NoResponse("no answer in time", was_sent=True))
        try:
            answer = await result
            if self.lost_answers and self.random.random() < self.lost_answers:
                raise NoResponse("connection lost: the answer, too", was_sent=True)
        except NoResponse:
            wire.close()
            raise
        return answer

    async def ask_all(self, address: Address, key: int, version: int, messages: Sequence[Any]) -> list[Any]:
        """The responses to pipelined requests; None for each without a response. NoResponse when no request was
        sent."""
        wire = await self._connected(address)
        results = [wire.send(key, version, message) for message in messages]
        for result in results:
            within(self.runtime, result, REQUEST_TIMEOUT_S, NoResponse("no answer in time", was_sent=True))
        answers: list[Any] = []
        for result in results:
            try:
                answers.append(await result)
            except NoResponse:
                wire.close()
                answers.append(None)
        return answers

    async def _connected(self, address: Address) -> Wire:
        wire = self._wires.get(address)
        if wire is None or wire.is_lost:
            wire = self._wires[address] = Wire()
            made = wire
            connecting = self.runtime.connect(*address, lambda: made, wire.failed)
            within(
                self.runtime,
                wire.made,
                CONNECT_TIMEOUT_S,
                NoResponse("no connection in time", was_sent=False),
            )
            try:
                await wire.made
            except NoResponse:
                wire.is_lost = True
                connecting.cancel()
                raise
        elif not wire.made.is_done:
            await wire.made
        if wire.is_lost:
            raise NoResponse("lost meanwhile", was_sent=False)
        return wire

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()

    def disconnect(self, address: Address) -> None:
        """Close the connection to one broker."""
        wire = self._wires.get(address)
        if wire is not None:
            wire.close()

    async def refresh(self) -> bool:
        """Requests Metadata of all topics from any broker."""
        known = [*self.brokers.values(), *self._bootstrap]
        address = self.random.choice(known)
        try:
            answer = await self.ask(address, METADATA, METADATA_VERSION, MetadataRequest(None, False))
        except NoResponse:
            self.brokers.clear()
            return False
        self.brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self.topics = {topic.name: topic for topic in answer.topics if not topic.error_code}
        for topic in answer.topics:
            for partition in topic.partitions:
                key = topic.topic_id, partition.partition_index
                if partition.leader_epoch >= self.epochs.get(key, (-1, -1))[0]:
                    self.epochs[key] = partition.leader_epoch, partition.leader_id
        return bool(self.brokers)

    def leader(self, topic_id: bytes, partition: int) -> tuple[Address | None, int]:
        """(address of the leader, its epoch), as far as known; never goes back to an older epoch."""
        epoch, leader = self.epochs.get((topic_id, partition), (-1, -1))
        return self.brokers.get(leader), epoch

    def any_address(self) -> Address:
        return self.random.choice([*self.brokers.values()] or self._bootstrap)


def error_name(code: int) -> str:
    return ErrorCode(code).name
