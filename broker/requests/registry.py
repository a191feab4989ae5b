"""Registrations of handlers: the function that serves an API, and its versions.

A handler registers itself with `@api(...)`; ApiVersions, the routes of the dispatcher and the table in docs/compatibility.md
are derived from the registrations. A start loads no handler: api_index.py, generated from the registrations, lists them, and
the module of an API is loaded when it is looked up.

A handler is a function `(context, request) -> response`. One that has to wait returns `PENDING` and calls
`context.complete(response)` later, exactly once; where there is no response (Produce with acks=0) it returns `NO_RESPONSE`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from barnabas.broker.requests.api_index import SERVED
from barnabas.broker.requests.context import CLOSE_CONNECTION, PENDING, Outcome, RequestContext
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    from barnabas.wire.message_type import Reader
    from barnabas.wire.primitives import Part


log = logging.getLogger("barnabas.controller")

Handler = Callable[[RequestContext[Any], Any], "msgspec.Struct | Outcome"]
# Serves the request body at (buffer, start, end) without decoding it, if it has the usual form (broker/fastpath). Returns the
# response's body, in pieces where there are records; what a handler would return; or None, without any effect, when the
# request has another form.
RawHandler = Callable[
    [RequestContext[Any], memoryview, int, int], "bytes | list[Part] | msgspec.Struct | Outcome | None"
]
# Serves a large request body with its reader; None, without any effect, when it is to be decoded and handled at once.
Large = Callable[[RequestContext[Any], "Reader[Any]", memoryview, int, int], "Outcome | None"]
H = TypeVar("H", bound=Callable[..., "msgspec.Struct | Outcome"])


class Registration(msgspec.Struct, frozen=True):
    """One served API. `advertised_min` may lie below `min_version`: Kafka itself advertises Produce 0-2,
    which it refuses, because librdkafka reads the minimum (KAFKA-18659). See `api` for the flags."""

    key: int
    name: str
    min_version: int
    max_version: int
    advertised_min: int
    handler: Handler
    fast_path: RawHandler | None = None
    large: Large | None = None
    controller: bool = False
    internal: bool = False
    shared: bool = False


class Registrations(Mapping[int, Registration]):
    """All APIs that are served, by key. A look-up loads the handler; iteration does not."""

    def __init__(self) -> None:
        self._loaded: dict[int, Registration] = {}

    def __getitem__(self, key: int) -> Registration:
        registration = self._loaded.get(key)
        if registration is None:
            import_module(f"barnabas.broker.api.{SERVED[key].module}")
            registration = self._loaded[key]
        return registration

    def __iter__(self) -> Iterator[int]:
        return iter(SERVED)

    def __len__(self) -> int:
        return len(SERVED)

    def loaded(self) -> list[Registration]:
        """The registrations whose handlers are loaded, in the order of keys."""
        return [self._loaded[key] for key in sorted(self._loaded)]

    def add(self, registration: Registration) -> None:
        """Add one; called by `api`."""
        assert registration.key not in self._loaded, f"API {registration.key} is registered twice"
        self._loaded[registration.key] = registration


REGISTRATIONS: Final = Registrations()
# The one API that is not Kafka's: between brokers, neither advertised nor registered (inter_broker_authentication.py).
AUTHENTICATE_BROKER: Final = 0x4241
# Those of SASL, which are served before all others (sasl_authenticator.py).
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36


def api(
    key: int,
    min_version: int,
    max_version: int,
    *,
    advertised_min: int | None = None,
    fast_path: RawHandler | None = None,
    large: Large | None = None,
    controller: bool = False,
    internal: bool = False,
    shared: bool = False,
) -> Callable[[H], H]:
    """Register the decorated function as the handler of API `key`, for min_version to max_version inclusive.

    `fast_path` is tried first, in flexible versions (broker/fastpath).
    `large` is asked before a body of LARGE_BODY_BYTES or more is decoded, instead of large_requests.py.
    `controller`: requests are forwarded to the active controller; the handler may run on a node that is no broker, and uses only
    the controller, the configuration and the runtime of the services.
    `internal`: between nodes only; neither advertised to clients nor served to them. `shared`: the broker does its own part,
    and may send the rest to the active controller.
    """

    def register(handler: H) -> H:
        REGISTRATIONS.add(
            Registration(
                key=key,
                name=API_NAMES[key],
                min_version=min_version,
                max_version=max_version,
                advertised_min=min_version if advertised_min is None else advertised_min,
                handler=handler,
                fast_path=fast_path,
                large=large,
                controller=controller,
                internal=internal,
                shared=shared,
            )
        )
        return handler

    return register


def call_handler(context: RequestContext[Any], request: msgspec.Struct) -> None:
    """Serve a request that came over no connection. One whose handler fails is completed with CLOSE_CONNECTION."""
    registration = REGISTRATIONS[context.api_key]
    try:
        response = registration.handler(context, request)
    except Exception:
        log.exception("%s of %s failed", registration.name, context.client_host)
        context.complete(CLOSE_CONNECTION)
        return
    if response is not PENDING:
        context.complete(response)
