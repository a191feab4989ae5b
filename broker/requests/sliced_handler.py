"""Handlers that serve a request of many parts in slices, so that other clients are served in between.

A sliced handler is a generator: it yields between two parts and returns the response. Its parts get TURN_S of each turn of
the loop. A request that is done within the first turn, as nearly all are, is answered as by any handler. The answer to
one that is not may be large, so a thread encodes it; it must not change after that.

The metadata may change between two parts: a generator copies the names that it goes through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.requests.context import CLOSE_CONNECTION, PENDING, LocalReply, Outcome, RawResponse
from barnabas.broker.requests.server_error import encode_or_server_error
from barnabas.runtime.slices import TURN_S
from barnabas.wire.primitives import EncodeError
from barnabas.wire.registry import API_NAMES, response_type

if TYPE_CHECKING:
    import msgspec

    from barnabas.broker.requests.context import RequestContext
    from barnabas.broker.requests.registry import Handler

    Answered = msgspec.Struct | Outcome
    Steps = Generator[None, None, Answered]

log = logging.getLogger("barnabas.connection")


SLICED: Final[
    dict[Handler, Callable[[RequestContext[Any], Any], Steps]]
] = {}  # the generator function of each


def sliced(handler: Callable[[RequestContext[Any], Any], Steps]) -> Handler:
    """The generator function as a handler. To be applied under `@api`."""

    @wraps(handler)
    def serve(context: RequestContext[Any], request: Any) -> Answered:
        steps = handler(context, request)
        answered = _go_on(context, steps)
        if answered is None:
            context.services.runtime.call_soon(lambda: _turn(context, steps, is_first=False))
            return PENDING
        return answered

    SLICED[serve] = handler
    return serve


def answer_in_slices(context: RequestContext[Any], steps: Steps) -> None:
    """Answer a request whose handler has returned PENDING, or is about to, with what the generator returns."""
    _turn(context, steps, is_first=True)


def _go_on(context: RequestContext[Any], steps: Steps) -> Answered | None:
    """One turn's parts; what the generator has returned, or None when there is more to do."""
    now = context.services.runtime.monotonic
    deadline = now() + TURN_S
    try:
        while True:
            next(steps)
            if now() >= deadline:
                return None
    except StopIteration as end:
        answered: Answered = end.value
        return answered


def _turn(context: RequestContext[Any], steps: Steps, *, is_first: bool) -> None:
    if context.closed:
        steps.close()
        return
    try:
        answered = _go_on(context, steps)
    except Exception:
        log.exception("%s of %s failed", API_NAMES[context.api_key], context.client_host)
        context.complete(CLOSE_CONNECTION)
        return
    if answered is None:
        context.services.runtime.call_soon(lambda: _turn(context, steps, is_first=False))
    elif answered is PENDING:
        pass  # it will be answered by other means
    elif is_first or isinstance(answered, Outcome) or isinstance(context.reply, LocalReply):
        context.complete(answered)
    else:
        encode_in_thread(context, answered)


def encode_in_thread(context: RequestContext[Any], response: msgspec.Struct) -> None:
    """Complete with an answer that may be large."""

    def done(encoded: RawResponse | None, error: BaseException | None) -> None:
        if encoded is None:
            log.error("an answer for %s cannot be sent: %s", context.client_host, error)
            context.complete(CLOSE_CONNECTION)
        else:
            context.complete(encoded)

    context.services.runtime.run_in_thread(lambda: encode_in_one(context, response), done)


def encode_in_one(context: RequestContext[Any], response: msgspec.Struct) -> RawResponse:
    """The response, encoded. In a thread: nothing may change it any more."""
    write = response_type(context.api_key).writers[context.api_version]
    body = bytearray()  # takes the parts as they come: a list of them would be many times as large
    try:
        write(response, body.extend)  # type: ignore[arg-type]  # parts are bytes: these hold no records
    except EncodeError:
        return RawResponse(b"".join(encode_or_server_error(context.api_key, write, response)))  # type: ignore[arg-type]
    return RawResponse(bytes(body))
