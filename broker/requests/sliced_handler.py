"""Handlers that serve a request of many parts in slices, so that other clients are served in between.

A sliced handler is a generator: it yields between two parts and returns the response. It gets TURN_S of each turn of the
loop. Nearly all requests are done within the first turn, and are answered as by any handler. Another one's response may be
large, so a thread encodes it; it must not change after that.

The metadata may change between two parts: a generator copies the names that it iterates over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
T = TypeVar("T")
R = TypeVar("R")

SLICED: Final[
    dict[Handler, Callable[[RequestContext[Any], Any], Steps]]
] = {}  # the generator function of each


def sliced(handler: Callable[[RequestContext[Any], Any], Steps]) -> Handler:
    """Make a handler of a generator function. To be applied under `@api`."""

    @wraps(handler)
    def serve(context: RequestContext[Any], request: Any) -> Answered:
        steps = handler(context, request)
        answered = _run_turn(context, steps)
        if answered is None:
            context.services.runtime.call_soon(lambda: _turn(context, steps, is_first=False))
            return PENDING
        return answered

    SLICED[serve] = handler
    return serve


def answer_in_slices(context: RequestContext[Any], steps: Steps) -> None:
    """Answer a request whose handler has returned PENDING, or is about to, with the result of the generator."""
    _turn(context, steps, is_first=True)


def _run_turn(context: RequestContext[Any], steps: Steps) -> Answered | None:
    """Do the parts of one turn. The result of the generator, or None when there is more to do."""
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
        answered = _run_turn(context, steps)
    except Exception:
        log.exception("%s of %s failed", API_NAMES[context.api_key], context.client_host)
        context.complete(CLOSE_CONNECTION)
        return
    if answered is None:
        context.services.runtime.call_soon(lambda: _turn(context, steps, is_first=False))
    elif answered is PENDING:
        pass  # the generator has made sure that it is answered
    elif is_first or isinstance(answered, Outcome) or isinstance(context.reply, LocalReply):
        context.complete(answered)
    else:
        encode_in_thread(context, answered)


def collect(function: Callable[[T], R], items: Iterable[T]) -> Generator[None, None, list[R]]:
    """The list of function(item), in slices: for `yield from`."""
    results: list[R] = []
    for item in items:
        results.append(function(item))
        yield
    return results


def encode_in_thread(context: RequestContext[Any], response: msgspec.Struct) -> None:
    """Complete with a response that may be large, which a thread encodes."""

    def done(encoded: RawResponse | None, error: BaseException | None) -> None:
        if encoded is None:
            log.error("an answer for %s cannot be sent: %s", context.client_host, error)
            context.complete(CLOSE_CONNECTION)
        else:
            context.complete(encoded)

    context.services.runtime.run_in_thread(lambda: encode_in_one(context, response), done)


def encode_in_one(context: RequestContext[Any], response: msgspec.Struct) -> RawResponse:
    """Encode the response in one piece. In a thread: nothing may change the response any more."""
    write = response_type(context.api_key).writers[context.api_version]
    body = bytearray()  # not a list of parts, which would be many times as large
    try:
        write(response, body.extend)  # type: ignore[arg-type]  # parts are bytes: these hold no records
    except EncodeError:
        return RawResponse(b"".join(encode_or_server_error(context.api_key, write, response)))  # type: ignore[arg-type]
    return RawResponse(bytes(body))
