"""HTTP/1.1 for the controls: one request a connection, JSON in and out, handlers in threads.

Handlers block (they wait for a leader to move, or for a request to come), so each gets a thread, which ends with the process
whatever it waits for; the loop only reads and writes. Whoever reaches the port is trusted as far as a test is: sizes are
bounded, and pages in a browser are refused; nothing else.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - it is served on the broker's loop
import logging
import threading  # noqa: TID251 - handlers block
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

log = logging.getLogger("barnabas.testing")

HEAD_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
REQUEST_SECONDS_MAX: Final = 60.0  # to send a request
THREADS_MAX: Final = 64  # requests that may wait at a time
JSON: Final = "application/json"
_REASONS: Final = {
    200: "OK",
    201: "Created",
    204: "No Content",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpError(Exception):
    """An answer other than success: its status, and why, for whoever reads the test's output."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request(msgspec.Struct, frozen=True):
    """What was asked."""

    method: str
    path: tuple[str, ...]  # decoded, without the empty first part
    query: dict[str, str]
    body: bytes


# (request) -> (status, what is sent as JSON); HttpError
Handler = Callable[[Request], tuple[int, Any]]


class HttpServer:
    """Serves on a loop that runs already; made in any thread but the loop's. OSError when the port is taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, handler: Handler) -> None:
        self._loop = loop
        self._handler = handler
        self._threads = 0
        starting = asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        self._server = asyncio.run_coroutine_threadsafe(starting, loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Serve no more. What is being asked is cut off."""

        async def stop() -> None:
            self._server.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            status, answer = await self._answer(reader)
            body = b"" if status == 204 else msgspec.json.encode(answer, enc_hook=_encode)
            head = (
                f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {JSON}\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            log.debug("whoever asked has gone")
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, Any]:
        try:
            request = await asyncio.wait_for(_read(reader), REQUEST_SECONDS_MAX)
            return await self._handle(request)
        except TimeoutError:
            return 408, {"error": f"no whole request within {REQUEST_SECONDS_MAX:g} s"}
        except HttpError as error:
            return error.status, {"error": str(error)}
        except (ConnectionError, asyncio.IncompleteReadError):
            raise
        except Exception as error:  # the test is told, and the broker lives on
            log.exception("a control failed")
            return 500, {"error": f"{type(error).__name__}: {error}"}

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


async def _read(reader: asyncio.StreamReader) -> Request:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise HttpError(400, f"a head of more than {HEAD_BYTES_MAX} bytes") from None
    try:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(headers.get("content-length") or 0)
    except ValueError:
        raise HttpError(400, "this is not HTTP/1.1") from None
    if not version.startswith("HTTP/1.") or "transfer-encoding" in headers:
        raise HttpError(400, "HTTP/1.1 with a Content-Length is understood")
    if not 0 <= length <= BODY_BYTES_MAX:
        raise HttpError(413, f"a body of at most {BODY_BYTES_MAX} bytes is taken")
    if "origin" in headers:
        raise HttpError(403, "a browser's page does not control the broker")
    try:
        url = urlsplit(target)
    except ValueError:
        raise HttpError(400, f"{target!r} is no address") from None
    path = tuple(unquote(part) for part in url.path.strip("/").split("/") if part)
    return Request(method, path, dict(parse_qsl(url.query)), await reader.readexactly(length))


def _encode(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, tuple):
        return b"".join(map(bytes, value))
    raise NotImplementedError(type(value).__name__)  # as msgspec asks of an enc_hook
