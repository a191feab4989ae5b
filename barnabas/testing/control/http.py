"""HTTP/1.1 for the controls: JSON in and out, handlers in threads.

Handlers block (they wait for a leader to move, or for a request to come), so each gets a thread; the loop only reads and
writes. Clients are trusted as tests are: sizes are bounded, and pages in a browser are refused, by their Origin and, where
another site's name leads to this machine (DNS rebinding), by Host.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - it is served on the broker's loop
import logging
import threading  # noqa: TID251 - handlers block
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.runtime.http import Head, HttpError, host_of, is_address, is_loopback
from barnabas.runtime.http_server import Bounds, HttpRequest, HttpServer

if TYPE_CHECKING:
    from barnabas.console.console import Console
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.testing")

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
BOUNDS: Final = Bounds(
    connections=256,
    unfinished=64,
    head_bytes=64 * 1024,
    body_bytes=BODY_BYTES_MAX,
    held_bytes=2 * BODY_BYTES_MAX,
    request_s=60.0,
    idle_s=10.0,
    answer_s=60.0,
)
CONSOLE: Final = "/console/"  # the path of the web console
THREADS_MAX: Final = 64  # requests that wait at a time
JSON: Final = "application/json"


class Request(msgspec.Struct, frozen=True):
    """What was asked."""

    method: str
    path: tuple[str, ...]  # decoded, without the empty first part
    query: dict[str, str]
    body: bytes


class Answer(msgspec.Struct, frozen=True):
    """What is sent, as JSON; with status 204 nothing is."""

    status: int
    value: Any = None
    content_type: str = JSON


Handler = Callable[[Request], Answer]  # HttpError
Call = Callable[[Callable[[], Any]], Any]  # runs a function on the loop and waits for it


class ControlServer:
    """Serves on a loop that runs already, on which `call` runs functions. OSError when the port is taken.

    Requests name it by an address or as localhost; where `host` is not this machine's own loopback, by a name without dots as
    well, which containers have for each other."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Call,
        host: str,
        port: int,
        handler: Handler,
        new_console: Callable[[Runtime], Console] | None = None,
    ) -> None:
        """`new_console(runtime)`: called at the first request for it. None: there is no console."""
        self._loop = loop
        self._call = call
        self._new_console = new_console
        self._console: Console | None = None
        self._handler = handler
        self._threads = 0
        self._is_loopback = is_loopback(host)
        self.server: HttpServer = call(
            lambda: HttpServer(AsyncioRuntime(loop=loop), host, port, self, BOUNDS)
        )

    def close(self) -> None:
        """Stop listening. Requests that are being served are cut off."""

        def stop() -> None:
            self.server.close()
            if self._console is not None:
                self._console.close()

        self._call(stop)

    def check(self, head: Head) -> None:
        """Refuse pages in a browser. The page of another site whose name leads here has that name in Host."""
        has_console = self._new_console is not None
        if "origin" in head.headers and not (
            has_console and _is_for_console(head)
        ):  # which has pages of its own
            raise HttpError(403, "a browser's page does not control the broker")
        host = host_of(head.headers.get("host", ""))
        if host and not self.is_own(host):
            raise HttpError(
                403, f"{host[:100]} is not this machine's own name: call it by address, or as localhost"
            )

    def is_own(self, host: str) -> bool:
        """Whether a request may name this server so."""
        return is_loopback(host) or is_address(host) or not (self._is_loopback or "." in host)

    def serve(self, request: HttpRequest) -> None:
        """Have a thread call the handler, which ends with the process, whatever it waits for; or the console serve it."""
        if self._new_console is not None and _is_for_console(request.head):
            if self._console is None:
                self._console = self._new_console(self.server.runtime)
            try:
                self._console.check(request.head)
                self._console.serve(request)
            except HttpError as error:
                self._console.refuse(request, error)
            return
        asked = _request(request.head, request.take_body())
        if self._threads >= THREADS_MAX:
            raise HttpError(503, f"{THREADS_MAX} requests are waited for already")

        def answered(answer: Answer, error: Exception | None) -> None:
            self._threads -= 1
            if isinstance(error, HttpError):
                self.refuse(request, error)
                return
            try:
                if error is not None:
                    raise error
                body = b"" if answer.status == 204 else msgspec.json.encode(answer.value, enc_hook=_encode)
            except Exception as failure:  # the test gets it, and the broker goes on
                log.exception("a control failed")
                self.refuse(request, HttpError(500, f"{type(failure).__name__}: {failure}"))
            else:
                request.respond(answer.status, answer.content_type, body)

        def work() -> None:
            answer, failure = Answer(500), None
            try:
                answer = self._handler(asked)
            except Exception as error:  # noqa: BLE001 - it is answered
                failure = error
            with suppress(RuntimeError):  # the broker has stopped meanwhile
                self._loop.call_soon_threadsafe(answered, answer, failure)

        self._threads += 1
        threading.Thread(target=work, name="barnabas-control", daemon=True).start()

    def refuse(self, request: HttpRequest, error: HttpError) -> None:
        request.respond(error.status, JSON, msgspec.json.encode({"error": str(error)}))


def _is_for_console(head: Head) -> bool:
    return f"{head.target}/".startswith(CONSOLE)


def _request(head: Head, body: bytes) -> Request:
    try:
        url = urlsplit(head.target)
    except ValueError:
        raise HttpError(400, f"{head.target!r} is no address") from None
    path = tuple(unquote(part) for part in url.path.strip("/").split("/") if part)
    return Request(head.method, path, dict(parse_qsl(url.query)), body)


def _encode(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, tuple):
        return b"".join(map(bytes, value))
    raise NotImplementedError(type(value).__name__)  # as msgspec asks of an enc_hook
