"""From a frame to its handler and from the response back to bytes.

A route is what one API in one version needs: reader, handler, writer, and which headers frame them. Routes
are made on first use, so that starting loads no message module that nobody asks for.

What a frame cannot be answered for closes its connection, as in Kafka: an API key that is not served, a
version that is not served (except ApiVersions, which answers v0 with UNSUPPORTED_VERSION so that a newer
client can fall back, KIP-511), a header or body that cannot be read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
from barnabas.broker.context import RequestContext
from barnabas.broker.registry import REGISTRATIONS, Handler, Outcome
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.primitives import DecodeError, skip_tagged_fields
from barnabas.wire.registry import request_type, response_type

if TYPE_CHECKING:
    from barnabas.broker.connection import Connection
    from barnabas.broker.services import Services
    from barnabas.wire.message_type import Reader, Writer
    from barnabas.wire.primitives import Part

_HEADER = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
_RESPONSE_HEADER = struct.Struct(">ii")  # frame size, correlation id
_FLEXIBLE_RESPONSE_HEADER = struct.Struct(">iib")  # ... and an empty tagged-field section


class Route(msgspec.Struct, frozen=True):
    """One API in one version."""

    read: Reader[Any]
    write: Writer[Any]
    handler: Handler
    flexible_request: bool
    flexible_response_header: bool


class Dispatcher:
    """Decodes, calls the handler, encodes. Handlers must have been imported before it is used."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._routes: dict[int, Route] = {}

    def dispatch(self, connection: Connection, frame: memoryview) -> list[Part] | Outcome:
        """Serve one request frame (without its size): the encoded response, or what the handler said
        instead. DecodeError when the frame is not a request that is served."""
        if len(frame) < _HEADER.size:
            raise DecodeError(f"a frame of {len(frame)} bytes holds no request header")
        api_key, api_version, correlation_id, client_id_length = _HEADER.unpack_from(frame)
        route = self._routes.get(api_key << 16 | (api_version & 0xFFFF))
        if route is None:
            route = self._make_route(api_key, api_version)
        position = 10
        client_id = None
        if client_id_length >= 0:
            position += client_id_length
            if position > len(frame):
                raise DecodeError("the client id is longer than the frame")
            try:
                client_id = str(frame[10:position], "utf-8")
            except UnicodeDecodeError:
                raise DecodeError("the client id is not UTF-8") from None
        context = RequestContext(
            self._services,
            connection,
            api_key,
            api_version,
            correlation_id,
            client_id,
            connection.listener,
            connection.client_host,
        )
        if route is None:
            return self._unsupported_api_versions(context)
        if route.flexible_request:
            position = _skip_tagged_fields(frame, position)
        request, _ = route.read(frame, position, len(frame))
        response = route.handler(context, request)
        if isinstance(response, Outcome):
            return response
        return _frame(route, correlation_id, response)

    def encode(self, context: RequestContext, response: msgspec.Struct) -> list[Part]:
        """The frame of a response that comes after its handler returned PENDING."""
        route = self._routes[context.api_key << 16 | context.api_version]
        return _frame(route, context.correlation_id, response)

    def _make_route(self, api_key: int, api_version: int) -> Route | None:
        """The route of a served version; None for an ApiVersions request of a version we do not know."""
        registration = REGISTRATIONS.get(api_key)
        if registration is None:
            raise DecodeError(f"API key {api_key} is not served")
        if not registration.min_version <= api_version <= registration.max_version:
            if api_key == API_VERSIONS:
                return None
            raise DecodeError(f"{registration.name} version {api_version} is not served")
        request, response = request_type(api_key), response_type(api_key)
        route = Route(
            read=request.readers[api_version],
            write=response.writers[api_version],
            handler=registration.handler,
            flexible_request=request.flexible(api_version),
            # Clients read the ApiVersions header before they know what the broker speaks (KIP-511).
            flexible_response_header=response.flexible(api_version) and api_key != API_VERSIONS,
        )
        self._routes[api_key << 16 | api_version] = route
        return route

    def _unsupported_api_versions(self, context: RequestContext) -> list[Part] | Outcome:
        registration = REGISTRATIONS[API_VERSIONS]
        response = registration.handler(context, None)
        if isinstance(response, Outcome):
            return response
        route = self._routes.get(API_VERSIONS << 16) or self._make_route(API_VERSIONS, 0)
        assert route is not None
        return _frame(route, context.correlation_id, response)


def _frame(route: Route, correlation_id: int, response: msgspec.Struct) -> list[Part]:
    parts: list[Part] = []
    route.write(response, parts.append)
    size = 4
    for part in parts:
        size += len(part)
    if route.flexible_response_header:
        parts.insert(0, _FLEXIBLE_RESPONSE_HEADER.pack(size + 1, correlation_id, 0))
    else:
        parts.insert(0, _RESPONSE_HEADER.pack(size, correlation_id))
    return parts


def _skip_tagged_fields(frame: memoryview, position: int) -> int:
    """The request header's tagged fields; none are known, so all are skipped (KIP-482)."""
    try:
        return skip_tagged_fields(frame, position + 1, len(frame), frame[position])
    except IndexError:
        raise DecodeError("the request header ends early") from None
