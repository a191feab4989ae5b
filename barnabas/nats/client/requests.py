"""Requests and their replies: one subscription to a wildcard inbox takes the replies to all requests of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.errors import NatsError, NoResponders, RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime, Timer

NO_RESPONDERS: Final = b"NATS/1.0 503"


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as it came; `header_block` is b"" when it has no headers."""

    subject: bytes
    reply: bytes
    header_block: bytes
    payload: bytes


class _Request(msgspec.Struct):
    done: Callable[[Message | None, NatsError | None], object]
    timer: Timer


class Requests:
    """The requests that wait for their reply. `prefix` is that of the replies' subjects, with its last dot."""

    def __init__(self, runtime: Runtime, prefix: bytes) -> None:
        self.prefix = prefix
        self._runtime = runtime
        self._waiting: dict[bytes, _Request] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, timeout_s: float, done: Callable[[Message | None, NatsError | None], object]) -> bytes:
        """The reply subject of a request; `done` gets its reply, or the error."""
        self._count += 1
        subject = b"%b%d" % (self.prefix, self._count)
        timer = self._runtime.call_later(timeout_s, lambda: self._too_late(subject, timeout_s))
        self._waiting[subject] = _Request(done, timer)
        return subject

    def take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        """The sink of the inbox. What nobody waits for (any more) is dropped."""
        request = self._waiting.pop(subject, None)
        if request is None:
            return
        request.timer.cancel()
        if not payload and header_block.startswith(NO_RESPONDERS):
            request.done(None, NoResponders("nobody is subscribed to the subject of the request"))
        else:
            request.done(Message(subject, reply, header_block, payload), None)

    def fail(self, subject: bytes, error: NatsError) -> None:
        request = self._waiting.pop(subject, None)
        if request is not None:
            request.timer.cancel()
            request.done(None, error)

    def fail_all(self, error: NatsError) -> None:
        """There will be no replies: the connection has ended."""
        for subject in tuple(self._waiting):
            self.fail(subject, error)

    def _too_late(self, subject: bytes, timeout_s: float) -> None:
        self.fail(subject, RequestTimedOut(f"no reply within {timeout_s:g} s"))
