"""Decodes large requests in a thread, one at a time, so that others are served meanwhile.

A request without records is small: ten thousand partitions take half a megabyte. One of BODY_BYTES_MAX, made of the
smallest elements there are, takes a second to decode and fifty times its size in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.registry import CLOSE_CONNECTION, PENDING
from barnabas.storage.background import StepQueue
from barnabas.storage.repeated_warnings import RepeatedWarnings
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    from barnabas.broker.context import RequestContext
    from barnabas.broker.registry import Handler
    from barnabas.storage.background import Steps
    from barnabas.storage.runtime import Runtime
    from barnabas.wire.message_type import Reader

log = logging.getLogger("barnabas.connection")

LARGE_BODY_BYTES: Final = 64 * 1024
BODY_BYTES_MAX: Final = 8 * 1024 * 1024  # of every API but Produce


class LargeRequests:
    """Those of all connections, and those that other nodes send to this one's controller."""

    def __init__(self, runtime: Runtime) -> None:
        self._queue = StepQueue(runtime)
        self._warnings = RepeatedWarnings(runtime, log)

    def decode(
        self, read: Reader[Any], body: bytes, done: Callable[[Any, BaseException | None], object]
    ) -> None:
        """`done(request, None)`, or `done(None, error)`, which is a DecodeError when the bytes are not a request."""
        self._queue.add(_decode(read, body), done)

    def serve(self, context: RequestContext, read: Reader[Any], handler: Handler, body: bytes) -> None:
        """Decode the body and have the handler answer it."""
        self.decode(read, body, partial(self._decoded, context, handler))

    def _decoded(
        self, context: RequestContext, handler: Handler, request: Any, error: BaseException | None
    ) -> None:
        if context.closed:
            return
        if isinstance(error, DecodeError):
            host, name = context.client_host, API_NAMES[context.api_key]
            line = f"closing a connection of {host}: a {name} that cannot be read: {error}"
            self._warnings.warn(host, str(error), line)
            context.complete(CLOSE_CONNECTION)
            return
        try:
            if error is not None:
                raise error
            response = handler(context, request)
        except Exception:
            log.exception("%s of %s failed", API_NAMES[context.api_key], context.client_host)
            context.complete(CLOSE_CONNECTION)
            return
        if response is not PENDING:
            context.complete(response)


def _decode(read: Reader[Any], body: bytes) -> Steps[Any]:
    request, _ = yield partial(read, body, 0, len(body))
    return request
