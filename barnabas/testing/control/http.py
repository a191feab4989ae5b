"""HTTP/1.1 for the controls: one request a connection, JSON in and out, handlers in threads.

Handlers block (they wait for a leader to move, or for a request to come), so each gets a thread, which ends with the process
whatever it waits for; the loop only reads and writes. Clients are trusted as tests are: sizes are bounded, and pages in a
browser are refused, by their Origin and, where another site's name leads to this machine (DNS rebinding), by Host.

What unfinished requests hold is bounded over all connections: the oldest of them makes room.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - it is served on the broker's loop
import logging
import threading  # noqa: TID251 - handlers block
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from barnabas.wire.http import Head, HttpError, RequestParser, encode_response

log = logging.getLogger("barnabas.testing")

HEAD_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
HELD_BYTES_MAX: Final = 2 * BODY_BYTES_MAX  # bodies of all requests that are not answered yet
READING_MAX: Final = 64  # requests that have not arrived in full
PIECE_BYTES: Final = 64 * 1024
IDLE_SECONDS_MAX: Final = 10.0  # without a byte of a request
REQUEST_SECONDS_MAX: Final = 60.0  # to send a request, and to read its answer
THREADS_MAX: Final = 64  # requests that may wait at a time
JSON: Final = "application/json"


class Request(msgspec.Struct, frozen=True):
    """What was asked."""

    method: str
    path: tuple[str, ...]  # decoded, without the empty first part
    query: dict[str, str]
    body: bytes
    host: str = ""  # as in its header


# (request) -> (status, what is sent as JSON); HttpError
Handler = Callable[[Request], tuple[int, Any]]


class HttpServer:
    """Serves on a loop that runs already; made in any thread but the loop's. OSError when the port is taken.

    Requests name it by an address or as localhost; where `host` is not this machine's own loopback, by a name without dots as
    well, which containers have for each other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, handler: Handler) -> None:
        self._loop = loop
        self._handler = handler
        self._threads = 0
        self._reading: dict[_Incoming, None] = {}  # in the order in which they came
        self._held_bytes = 0
        self._is_loopback = _is_loopback(host)
        starting = asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        self._server = asyncio.run_coroutine_threadsafe(starting, loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Serve no more. What is being asked is cut off."""

        async def stop() -> None:
            self._server.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming = _Incoming(self, reader, writer)
        try:
            status, answer = await self._answer(incoming)
            body = b"" if status == 204 else msgspec.json.encode(answer, enc_hook=_encode)
            writer.write(encode_response(status, JSON, body))
        except (ConnectionError, asyncio.IncompleteReadError):
            log.debug("the client has gone")
        finally:
            self._reading.pop(incoming, None)
            self._held_bytes -= incoming.body_bytes
            await _close(writer)

    async def _answer(self, incoming: _Incoming) -> tuple[int, Any]:
        self._reading[incoming] = None
        if len(self._reading) > READING_MAX:
            self._drop(next(iter(self._reading)))
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                request = await incoming.read()
            self._reading.pop(incoming, None)
            return await self._handle(request)
        except TimeoutError:
            return 408, {"error": f"a request must come without pauses, within {REQUEST_SECONDS_MAX:g} s"}
        except HttpError as error:
            return error.status, {"error": str(error)}
        except (ConnectionError, asyncio.IncompleteReadError):
            raise
        except Exception as error:  # the test is told, and the broker lives on
            log.exception("a control failed")
            return 500, {"error": f"{type(error).__name__}: {error}"}

    def check_host(self, request: Request) -> None:
        """A page of another site whose name leads here has that name in Host."""
        host = _host_of(request.host)
        is_known = not host or host == "localhost" or host.endswith(".localhost") or _is_address(host)
        if not is_known and (self._is_loopback or "." in host):
            raise HttpError(
                403, f"{host[:100]} is not this machine's own name: call it by address, or as localhost"
            )

    def hold(self, incoming: _Incoming, count: int) -> None:
        """More of a body has come. The oldest unfinished request makes room, else this one is refused."""
        incoming.body_bytes += count
        self._held_bytes += count
        for other in tuple(self._reading):
            if self._held_bytes <= HELD_BYTES_MAX:
                return
            if other is not incoming:
                self._drop(other)
        if self._held_bytes > HELD_BYTES_MAX:
            raise HttpError(503, f"requests hold {HELD_BYTES_MAX} bytes already")

    def _drop(self, incoming: _Incoming) -> None:
        del self._reading[incoming]
        self._held_bytes -= incoming.body_bytes
        incoming.drop()

    async def _handle(self, request: Request) -> tuple[int, Any]:
        """What the handler says, in a thread that nobody waits for at the end of the process."""
        if self._threads >= THREADS_MAX:
            raise HttpError(503, f"{THREADS_MAX} requests are waited for already")
        told: asyncio.Future[tuple[int, Any]] = self._loop.create_future()

        def tell(answer: tuple[int, Any] | None, error: Exception | None) -> None:
            self._threads -= 1
            if told.done():
                return
            if error is not None:
                told.set_exception(error)
            elif answer is not None:
                told.set_result(answer)

        def work() -> None:
            answer: tuple[int, Any] | None = None
            failure: Exception | None = None
            try:
                answer = self._handler(request)
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                failure = error
            with suppress(RuntimeError):  # the broker has stopped meanwhile
                self._loop.call_soon_threadsafe(tell, answer, failure)

        self._threads += 1
        threading.Thread(target=work, name="barnabas-control", daemon=True).start()
        return await told


class _Incoming:
    """A request while it arrives, and its body until it is answered."""

    def __init__(
        self, server: HttpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.body_bytes = 0
        self._server = server
        self._reader = reader
        self._writer = writer
        self._parser = RequestParser(HEAD_BYTES_MAX, BODY_BYTES_MAX)

    async def read(self) -> Request:
        """HttpError, TimeoutError, ConnectionError, IncompleteReadError."""
        parser = self._parser
        request: Request | None = None
        is_whole = False
        while not is_whole:
            async with asyncio.timeout(IDLE_SECONDS_MAX):
                piece = await self._reader.read(PIECE_BYTES)
            if not piece:
                raise asyncio.IncompleteReadError(b"", None)
            is_whole = parser.feed(piece)
            if request is None and parser.head is not None:
                request = _request(parser.head)
                self._server.check_host(request)
            self._server.hold(self, len(parser.body) - self.body_bytes)
        assert request is not None
        body, parser.body = bytes(parser.body), bytearray()
        return msgspec.structs.replace(request, body=body)

    def drop(self) -> None:
        """Others need the room."""
        self.body_bytes = 0
        self._parser.body = bytearray()
        self._writer.transport.abort()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Once the client has read its answer, or has had the time to."""
    writer.close()
    try:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            await writer.wait_closed()
    except (TimeoutError, OSError):
        writer.transport.abort()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _host_of(header: str) -> str:
    """The name in `name`, `name:port` or `[address]:port`."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    name, _, port = header.rpartition(":")
    return (name if name and port.isdigit() else header).rstrip(".").lower()


def _request(head: Head) -> Request:
    """A request without its body. HttpError."""
    if "origin" in head.headers:
        raise HttpError(403, "a browser's page does not control the broker")
    try:
        url = urlsplit(head.target)
    except ValueError:
        raise HttpError(400, f"{head.target!r} is no address") from None
    path = tuple(unquote(part) for part in url.path.strip("/").split("/") if part)
    return Request(head.method, path, dict(parse_qsl(url.query)), b"", head.headers.get("host", ""))


def _encode(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, tuple):
        return b"".join(map(bytes, value))
    raise NotImplementedError(type(value).__name__)  # as msgspec asks of an enc_hook
