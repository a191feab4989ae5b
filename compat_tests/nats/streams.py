"""A stock nats-py client for tests that are not asynchronous: streams, messages, consumers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, TypeVar

import nats

from compat_tests.harness.nats_server import NatsServer

T = TypeVar("T")


class Streams:
    """`with Streams(server) as streams:` connects; its loop runs in a thread of its own."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Streams:
        self._thread.start()
        self.client = self.run(nats.connect(self._server.url))
        self.jetstream = self.client.jetstream(timeout=15)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def add(self, name: str, *subjects: str, **options: Any) -> None:
        """A stream with file store."""
        self.run(self.jetstream.add_stream(name=name, subjects=list(subjects), **options))

    def publish(self, messages: Iterable[tuple[str, bytes]], headers: dict[str, str] | None = None) -> None:
        """Store these in their order; all are stored when it returns."""

        async def run() -> None:
            waiting = []
            for subject, payload in messages:
                waiting.append(
                    await self.jetstream.publish_async(subject, payload, headers=headers, wait_stall=30)
                )
            for acknowledged in waiting:
                await acknowledged

        self.run(run())

    def stored_times(self, stream: str, sequences: Iterable[int]) -> list[int]:
        """Nanoseconds since the epoch, as the stream has them."""
        consumer = self.run(self._ordered(stream))
        times = {}
        for message in consumer:
            times[message.metadata.sequence.stream] = message.reply.split(".")[7]
        return [int(times[sequence]) for sequence in sequences]

    async def _ordered(self, stream: str) -> list[Any]:
        count = (await self.jetstream.stream_info(stream)).state.messages
        subscription = await self.jetstream.subscribe("", stream=stream, ordered_consumer=True)
        found = [await subscription.next_msg(timeout=15) for _ in range(count)]
        await subscription.unsubscribe()
        return found
