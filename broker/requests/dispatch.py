"""Dispatches request frames to handlers, and encodes their responses.

A route holds the reader, handler, writer and header versions of one API in one version. Routes are created on first use, so
that a start loads no message module that is not used.

A frame that cannot be answered closes its connection, as in Kafka: an API key or a version that is not served (except
ApiVersions, which answers v0 with UNSUPPORTED_VERSION so that a newer client can fall back, KIP-511), a header or a body
that cannot be read.
"""

from __future__ import annotations

import logging
import math
import struct
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from barnabas.broker.quotas.client_quotas import NO_LIMITS
from barnabas.broker.requests.context import Outcome, RawResponse, RequestContext
from barnabas.broker.requests.large_requests import BODY_BYTES_MAX, LARGE_BODY_BYTES
from barnabas.broker.requests.registry import (
    AUTHENTICATE_BROKER,
    REGISTRATIONS,
    Handler,
    Large,
    RawHandler,
    call_handler,
)
from barnabas.broker.requests.request_metrics import SHORT_US, RequestMetrics, count_time
from barnabas.broker.requests.server_error import encode_or_server_error
from barnabas.broker.requests.throttling import throttle_time_of, with_throttle_time
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.storage.disk.disk import FileRegion
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.primitives import DecodeError, EncodeError, skip_tagged_fields
from barnabas.wire.registry import API_NAMES, request_type, response_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.quotas.client_quotas import ClientLimits, ClientQuotas
    from barnabas.broker.requests.context import Requester
    from barnabas.broker.requests.large_requests import LargeRequests
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.message_type import Reader, Writer
    from barnabas.wire.primitives import Buffer, Part

log = logging.getLogger("barnabas.requests")

_unpack_header = struct.Struct(">Iih").unpack_from  # API key and version, correlation id, length of client id
_unpack_key = struct.Struct(">hh").unpack
_HEADER_SIZE = 10
PRODUCE = 0  # API keys
FETCH = 1
_pack_response_header = struct.Struct(">ii").pack  # frame size, correlation id
_pack_flexible_response_header = struct.Struct(">iix").pack  # ... and an empty tagged-field section

Answer: TypeAlias = "bytes | list[Part]"  # a whole frame: in pieces when file regions are among them


class Route(msgspec.Struct, frozen=True):
    """One API in one version."""

    api_key: int
    api_version: int
    read: Reader[Any]
    write: Writer[Any]
    handler: Handler
    fast_path: RawHandler | None
    is_forwarded: bool  # to the active controller
    large: Large | None
    flexible_request: bool
    flexible_response_header: bool
    answers_records: bool  # the response may hold file regions, which only the writer can turn into bytes
    metrics: RequestMetrics
    metrics_of_followers: RequestMetrics | None  # None: followers do not send it
    at_once: list[int]  # of `metrics`


class DispatchServices(Protocol):
    """What the dispatcher uses of the broker; handlers get all of it in their contexts."""

    runtime: Runtime
    config: BrokerConfig
    large_requests: LargeRequests
    client_quotas: ClientQuotas | None  # None: no client has a quota

    @property
    def forward(self) -> RawHandler:
        """Forwards a request to the active controller; its result is None when that is this node."""
        ...

    @property
    def authenticate(self) -> Handler | None:
        """Serves AuthenticateBroker; None where there are no other brokers."""
        ...


class Dispatcher:
    """Decodes, calls the handler, encodes. Handlers must have been imported before it is used."""

    def __init__(self, services: DispatchServices) -> None:
        self._services = services
        self._monotonic = services.runtime.monotonic
        slow_ms = services.config.barnabas_log_slow_request_ms
        self._slow_s = slow_ms / 1000 if slow_ms >= 0 else math.inf
        self._warnings = RepeatedWarnings(services.runtime, log)
        self._routes: dict[int, Route] = {}

    def metrics(self) -> Iterator[RequestMetrics]:
        """Of each API and version that a client has used."""
        for route in self._routes.values():
            yield route.metrics
            if route.metrics_of_followers is not None:
                yield route.metrics_of_followers

    def dispatch(self, connection: Requester, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        """Serve the request frame (without its size) in buffer[start:end]: the encoded response, or the handler's outcome.
        DecodeError when the frame is not a request that is served."""
        position = start + _HEADER_SIZE
        if position > end:
            raise DecodeError(f"a frame of {end - start} bytes holds no request header")
        key, correlation_id, client_id_length = _unpack_header(buffer, start)
        route = self._routes.get(key)
        if route is None:
            route = self._make_route(key)
        client_id = None
        if client_id_length >= 0:
            client_id_start = position
            position += client_id_length
            if position > end:
                raise DecodeError("the client id is longer than the frame")
            try:
                client_id = str(buffer[client_id_start:position], "utf-8")
            except UnicodeDecodeError:
                raise DecodeError("the client id is not UTF-8") from None
        context = RequestContext(
            self._services,
            connection,
            route.api_key,
            route.api_version,
            correlation_id,
            client_id,
            connection.caller,
        )
        if route.flexible_request:
            if position >= end:
                raise DecodeError("the request header ends early")
            count = buffer[position]
            position += 1
            if count:
                position = skip_tagged_fields(buffer, position, end, count)
        if end - position > BODY_BYTES_MAX and route.api_key != PRODUCE:
            raise DecodeError(f"{end - position} bytes without records, more than {BODY_BYTES_MAX}")
        quotas = self._services.client_quotas
        if quotas is not None:
            limits = quotas.of(context.caller, client_id)
            if limits is not NO_LIMITS and not _is_of_a_node(context):
                answer = self._dispatch_metered(
                    limits, quotas.monotonic, route, context, buffer, position, end, end - start
                )
                self._count(route, context, answer, self._monotonic())
                return answer
        response: msgspec.Struct | Outcome | None = None
        fast_path = route.fast_path
        if fast_path is not None:
            body = fast_path(context, buffer, position, end)
            if isinstance(body, bytes):
                now, peer = self._monotonic(), connection.peer
                microseconds = int((now - peer.received_at) * 1e6)
                if microseconds < SHORT_US and (route.metrics_of_followers is None or peer.broker_id < 0):
                    route.at_once[microseconds] += 1  # as `_count`, without calls
                else:
                    self._count(route, context, body, now)
                return _pack_flexible_response_header(len(body) + 5, correlation_id) + body
            if isinstance(body, list):
                size = sum(map(len, body)) + 5
                body[0] = _pack_flexible_response_header(size, correlation_id) + body[0]  # type: ignore[operator]
                self._count(route, context, body, self._monotonic())
                return body
            response = body
        if response is None:
            response = self._serve_generally(route, context, buffer, position, end)
        answer = response if isinstance(response, Outcome) else self._frame(route, context, response)
        self._count(route, context, answer, self._monotonic())
        return answer

    def _serve_generally(
        self, route: Route, context: RequestContext[Any], buffer: memoryview, position: int, end: int
    ) -> msgspec.Struct | Outcome:
        """Serve a request that the fast path does not."""
        response: msgspec.Struct | Outcome | None = None
        if route.is_forwarded:
            response = self._services.forward(context, buffer, position, end)  # type: ignore[assignment]
        if response is None and end - position > LARGE_BODY_BYTES:
            response = self._serve_large(route, context, buffer, position, end)
        if response is None:
            request, _ = route.read(buffer, position, end)
            response = route.handler(context, request)
        return response

    # -- where clients have quotas

    def _dispatch_metered(
        self,
        limits: ClientLimits,
        monotonic: Callable[[], float],
        route: Route,
        context: RequestContext[Any],
        buffer: memoryview,
        position: int,
        end: int,
        frame_bytes: int,
    ) -> Answer | Outcome:
        """As `dispatch`, counting what the client's quotas limit. A Produce is throttled when it comes in, as others behind it may
        be served before it is answered, all other requests when they are answered."""
        began = monotonic()
        key, of_time = route.api_key, limits.request
        throttle_ms = 0
        if key == PRODUCE and limits.produce is not None:
            throttle_ms = limits.produce.record(frame_bytes, began)
        fast_path = route.fast_path
        response = None if fast_path is None else fast_path(context, buffer, position, end)
        if type(response) is bytes and not throttle_ms:  # the usual case
            if of_time is not None:
                now = monotonic()
                throttle_ms = of_time.record_time(began, now)
                began = now
            if not throttle_ms:
                answer = _pack_flexible_response_header(len(response) + 5, context.correlation_id) + response
                if key == FETCH and limits.fetch is not None:
                    limits.fetch.record(len(answer), began)
                return answer
        if response is None:
            response = self._serve_generally(route, context, buffer, position, end)
        if not isinstance(response, Outcome):
            return self._answer_metered(limits, monotonic, route, context, response, began, throttle_ms)
        if of_time is not None:
            throttle_ms = max(throttle_ms, of_time.record_time(began, monotonic()))
        if throttle_ms and key == PRODUCE:
            self._throttle(context, throttle_ms)
        return response

    def _answer_metered(
        self,
        limits: ClientLimits,
        monotonic: Callable[[], float],
        route: Route,
        context: RequestContext[Any],
        response: bytes | list[Part] | msgspec.Struct,
        began: float,
        throttle_ms: int,
        *,
        throttles: bool = True,
    ) -> Answer:
        """Encode the response with the time for which its client is throttled, and throttle it. `began`: since when it has taken
        time. `throttle_ms`: by other quotas than that of time."""
        key, version, correlation_id = route.api_key, route.api_version, context.correlation_id
        now = monotonic()
        given_ms = 0  # by the handler, or by the active controller
        if isinstance(response, RawResponse):
            given_ms = throttle_time_of(key, version, response.body)
            response = response.body
        elif isinstance(response, msgspec.Struct):
            given_ms = getattr(response, "throttle_time_ms", 0)
        throttle_ms = max(throttle_ms, given_ms)
        if limits.request is not None:
            throttle_ms = max(throttle_ms, limits.request.record_time(began, now))
        answer: Answer
        if isinstance(response, msgspec.Struct):
            if throttle_ms != given_ms and hasattr(response, "throttle_time_ms"):
                # A copy: a handler may answer others with the same object.
                response = msgspec.structs.replace(response, throttle_time_ms=throttle_ms)
            answer = self._frame(route, context, response)
        else:
            parts: list[Part] = [response] if isinstance(response, bytes) else response
            if throttle_ms != given_ms:
                parts = with_throttle_time(key, version, parts, throttle_ms)
            size = sum(map(len, parts))
            answer = [_response_header(route, size, correlation_id), *parts]
            if len(parts) == 1 or not route.answers_records:
                answer = _joined(answer)
        if key == FETCH and limits.fetch is not None and not given_ms:
            limits.fetch.record(len(answer) if isinstance(answer, bytes) else sum(map(len, answer)), now)
        if limits.request is not None:
            limits.request.record_time(now, monotonic())
        if throttle_ms and throttles:
            self._throttle(context, throttle_ms)
        return answer

    def _throttle(self, context: RequestContext[Any], throttle_ms: int) -> None:
        context.reply.throttle(throttle_ms / 1000)
        if self._services.client_quotas is not None:
            self._services.client_quotas.count(throttle_ms)

    def call(self, context: RequestContext[Any], request: msgspec.Struct) -> None:
        """Serve a request of this broker to itself; its reply takes the response."""
        call_handler(context, request)

    def _serve_large(
        self, route: Route, context: RequestContext[Any], buffer: memoryview, start: int, end: int
    ) -> Outcome | None:
        """None when the request is to be decoded and handled at once."""
        if route.large is not None:
            return route.large(context, route.read, buffer, start, end)
        body = buffer[start:end].tobytes()
        self._services.large_requests.serve(context, route.read, route.handler, body)
        return Outcome.PENDING

    def encode(self, context: RequestContext[Any], response: msgspec.Struct) -> Answer:
        """The frame of a response that comes after its handler returned PENDING."""
        route = self._routes[context.api_key << 16 | context.api_version]
        now = self._monotonic()
        # Where there is no such time, it is answered before its handler has returned.
        received_at, pending_since = context.waits_since or (context.reply.peer.received_at, now)
        _metrics_of(route, context).waited(now - received_at, pending_since - received_at)
        quotas = self._services.client_quotas
        if quotas is not None:
            limits = quotas.of(context.caller, context.client_id)
            if limits is not NO_LIMITS and not _is_of_a_node(context):
                now, throttle_ms, is_produce = quotas.monotonic(), 0, route.api_key == PRODUCE
                if is_produce and limits.produce is not None:
                    throttle_ms = limits.produce.throttle_ms(now)
                return self._answer_metered(
                    limits,
                    quotas.monotonic,
                    route,
                    context,
                    response,
                    now,
                    throttle_ms,
                    throttles=not is_produce,
                )
        if type(response) is RawResponse:
            return _response_header(route, len(response.body), context.correlation_id) + response.body
        return self._frame(route, context, response)

    def _frame(self, route: Route, context: RequestContext[Any], response: msgspec.Struct) -> Answer:
        _metrics_of(route, context).count_errors(response)
        return _frame(route, context.correlation_id, response)

    def _count(
        self, route: Route, context: RequestContext[Any], answer: Answer | Outcome, now: float
    ) -> None:
        """A request has its answer, or its handler has returned PENDING."""
        received_at = context.reply.peer.received_at
        if answer is Outcome.PENDING:
            context.waits_since = (received_at, now)
        else:
            count_time(_metrics_of(route, context).at_once, now - received_at)
        if now - received_at > self._slow_s:
            self._warn_slow(route, context, now - received_at)

    def _warn_slow(self, route: Route, context: RequestContext[Any], took_s: float) -> None:
        name = API_NAMES.get(route.api_key, str(route.api_key))
        self._warnings.warn(
            context.client_host,
            name,
            f"{name} v{route.api_version} of {context.client_id} at {context.client_host} took {took_s * 1000:.0f} ms since "
            f"the turn of its connection began (barnabas.log.slow.request.ms={self._slow_s * 1000:.0f})",
        )

    def _make_route(self, key: int) -> Route:
        """The route of an API key and version, the first four bytes of a request."""
        api_key, api_version = _unpack_key(key.to_bytes(4, "big"))
        if key == AUTHENTICATE_BROKER << 16 and self._services.authenticate is not None:
            route = self._routes[key] = self._authentication_route(self._services.authenticate)
            return route
        registration = REGISTRATIONS.get(api_key)
        if registration is None or registration.internal:
            raise DecodeError(f"API key {api_key} is not served")
        request, response = request_type(api_key), response_type(api_key)
        metrics = RequestMetrics(api_key, api_version)
        if registration.min_version <= api_version <= registration.max_version:
            route = self._routes[key] = Route(
                api_key,
                api_version,
                read=request.readers[api_version],
                write=response.writers[api_version],
                handler=registration.handler,
                fast_path=registration.fast_path if request.flexible(api_version) else None,
                is_forwarded=registration.controller,
                large=registration.large,
                flexible_request=request.flexible(api_version),
                # Clients read the ApiVersions header before they know what the broker speaks (KIP-511).
                flexible_response_header=response.flexible(api_version) and api_key != API_VERSIONS,
                answers_records=response.has_records,
                metrics=metrics,
                at_once=metrics.at_once,
                metrics_of_followers=RequestMetrics(api_key, api_version, of_follower=True)
                if api_key == FETCH
                else None,
            )
            return route
        if api_key != API_VERSIONS:
            raise DecodeError(f"{registration.name} version {api_version} is not served")
        return Route(  # the handler answers in version 0, without reading the request
            api_key,
            api_version,
            read=_read_nothing,
            write=response.writers[0],
            handler=registration.handler,
            fast_path=None,
            is_forwarded=False,
            large=None,
            flexible_request=False,
            flexible_response_header=False,
            answers_records=False,
            metrics=metrics,
            metrics_of_followers=None,
            at_once=metrics.at_once,
        )

    @staticmethod
    def _authentication_route(authenticate: Handler) -> Route:
        from barnabas.wire.messages.sasl_authenticate import (
            SASL_AUTHENTICATE_REQUEST,
            SASL_AUTHENTICATE_RESPONSE,
        )

        metrics = RequestMetrics(AUTHENTICATE_BROKER, 0)
        return Route(
            AUTHENTICATE_BROKER,
            0,
            read=SASL_AUTHENTICATE_REQUEST.readers[0],
            write=SASL_AUTHENTICATE_RESPONSE.writers[0],
            handler=authenticate,
            fast_path=None,
            is_forwarded=False,
            large=None,
            flexible_request=False,
            flexible_response_header=False,
            answers_records=False,
            metrics=metrics,
            metrics_of_followers=None,
            at_once=metrics.at_once,
        )


def _metrics_of(route: Route, context: RequestContext[Any]) -> RequestMetrics:
    of_followers = route.metrics_of_followers
    return route.metrics if of_followers is None or context.reply.peer.broker_id < 0 else of_followers


def _is_of_a_node(context: RequestContext[Any]) -> bool:
    """Whether it was sent by a broker of this cluster: those have no quotas."""
    return context.caller.is_node or context.reply.peer.broker_id >= 0


def _read_nothing(_buffer: Buffer, position: int, _end: int) -> tuple[None, int]:
    return None, position


def _frame(route: Route, correlation_id: int, response: msgspec.Struct) -> Answer:
    parts: list[Part] = []
    try:
        route.write(response, parts.append)
    except EncodeError:
        parts = encode_or_server_error(route.api_key, route.write, response)
    if route.answers_records:
        kinds = list(map(type, parts))
        others = len(kinds) - kinds.count(bytes)
        if others:
            size = sum(map(len, parts))
            if others == 1 and FileRegion in kinds:  # the usual case: one piece before it and one behind
                at = kinds.index(FileRegion)
                head = _response_header(route, size, correlation_id) + _joined(parts[:at])
                return [head, parts[at], _joined(parts[at + 1 :])]
            parts.insert(0, _response_header(route, size, correlation_id))
            return parts
    body = _joined(parts)
    return _response_header(route, len(body), correlation_id) + body


def _joined(parts: list[Part]) -> bytes:
    """Parts that are all bytes, as one."""
    return b"".join(parts)  # type: ignore[arg-type]


def _response_header(route: Route, size: int, correlation_id: int) -> bytes:
    if route.flexible_response_header:
        return _pack_flexible_response_header(size + 5, correlation_id)
    return _pack_response_header(size + 4, correlation_id)
