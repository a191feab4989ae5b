"""Serves large requests one at a time, so that others are served meanwhile and one at a time takes memory.

A request without records is small: ten thousand partitions take half a megabyte. One of BODY_BYTES_MAX with the smallest
elements takes a second to decode and fifty times its size in memory. So a thread decodes it, a sliced handler serves it in
slices, and a thread encodes the response; then the next request is served. A handler that is not sliced is called at once,
and may respond later. A Produce is as large as its records; api/produce.py says which are decoded here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.requests.context import CLOSE_CONNECTION, PENDING, Outcome
from barnabas.broker.requests.sliced_handler import SLICED, encode_in_one
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.runtime.slices import StepQueue
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    import msgspec

    from barnabas.broker.requests.context import RawResponse, RequestContext
    from barnabas.broker.requests.registry import Handler
    from barnabas.runtime.interface import Runtime
    from barnabas.runtime.slices import Steps
    from barnabas.wire.message_type import Reader
    from barnabas.wire.primitives import Buffer

log = logging.getLogger("barnabas.connection")

LARGE_BODY_BYTES: Final = 64 * 1024  # a request with a larger body is served here
BODY_BYTES_MAX: Final = 8 * 1024 * 1024  # of every API but Produce


class LargeRequests:
    """The queue of large requests, from all connections and from other nodes."""

    def __init__(self, runtime: Runtime) -> None:
        self._queue = StepQueue(runtime)
        self._warnings = RepeatedWarnings(runtime, log)

    def decode(
        self, read: Reader[Any], body: Buffer, done: Callable[[Any, BaseException | None], object]
    ) -> None:
        """`done(request, None)`, or `done(None, error)`, which is a DecodeError when the bytes are not a request."""
        self._queue.add(_decode(read, body), done)

    def serve(self, context: RequestContext[Any], read: Reader[Any], handler: Handler, body: bytes) -> None:
        """Decode the body and have the handler answer it."""
        self._queue.add(_serve(context, read, handler, body), partial(self._served, context))

    def _served(
        self,
        context: RequestContext[Any],
        response: msgspec.Struct | Outcome | None,
        error: BaseException | None,
    ) -> None:
        if context.closed:
            return
        if response is None:
            self.fail(context, error)
        elif response is not PENDING:
            context.complete(response)

    def fail(self, context: RequestContext[Any], error: BaseException | None) -> None:
        """Close the connection of a request that could not be decoded or served."""
        host = context.client_host
        name = API_NAMES.get(context.api_key, f"request of API {context.api_key}")  # not all are Kafka's
        if isinstance(error, DecodeError):
            line = f"closing a connection of {host}: a {name} that cannot be read: {error}"
            self._warnings.warn(host, str(error), line)
        else:
            log.error("%s of %s failed", name, host, exc_info=error)
        context.complete(CLOSE_CONNECTION)


def _decode(read: Reader[Any], body: Buffer) -> Steps[Any]:
    request, _ = yield partial(read, body, 0, len(body))
    return request


def _serve(
    context: RequestContext[Any], read: Reader[Any], handler: Handler, body: bytes
) -> Steps[msgspec.Struct | Outcome]:
    request = yield from _decode(read, body)
    if context.closed:
        return PENDING
    generator = SLICED.get(handler)
    if generator is None:
        return handler(context, request)
    steps = generator(context, request)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            response: msgspec.Struct | Outcome = end.value
            break
        if context.closed:
            steps.close()
            return PENDING
        yield None
    if isinstance(response, Outcome):
        return response
    encoded: RawResponse = yield partial(encode_in_one, context, response)
    return encoded
