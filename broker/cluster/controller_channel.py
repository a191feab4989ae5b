"""The channel to the active controller: requests of this broker, and those of clients that it forwards.

Where this node's controller is the active one, the handler is called directly. Otherwise the request is sent over the link to
the active one, in Kafka's encoding, with the client's name and address. An answer has the metadata offset that it is based on,
and is passed on once this node's image has reached it: a client that has created a topic finds it here.

A request without an answer is sent again, to the controller that is active then, until its timeout, as Kafka's brokers do. So
it may be executed twice; all operations of a controller are safe in that case (KIP-590). Each request has an id, which stays the
same: by it CreateTopics recognizes the topics that it has created itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from barnabas.broker.cluster.controller_server import ControllerAnswer, ControllerRequest
from barnabas.broker.requests.context import LocalReply, Outcome, RawResponse
from barnabas.broker.requests.registry import REGISTRATIONS, call_handler
from barnabas.broker.requests.server_error import encode_or_server_error
from barnabas.broker.security.caller import own_caller
from barnabas.controller.link.messages import MalformedMessage, decode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import DecodeError, EncodeError
from barnabas.wire.registry import request_type, response_type

if TYPE_CHECKING:
    from barnabas.broker.requests.context import NewContext, RequestContext
    from barnabas.broker.security.caller import Caller
    from barnabas.controller.metadata.controller import Controller
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.controller")

TIMEOUT_S = 30.0
ATTEMPT_S = 5.0  # for the answer to one request
RETRY_S = 0.02
CATCH_UP_S = 5.0  # for which an answer waits for this node's image
TICK_S = 0.5

Done = Callable[[Any, ErrorCode], object]


class ControllerLinks(Protocol):
    """The links of this node to the voters, as the channel uses them."""

    def active_controller(self) -> int:
        """Node id of the active controller, -1 while it is not known."""
        ...

    def request(self, node_id: int, payload: bytes, done: Callable[[bytes | None], object]) -> None:
        """`done(answer)`, once; None when there is no link, or it has closed."""
        ...


class _Request(msgspec.Struct, eq=False):
    """A request that has no answer yet. `answered(body, error)` is called once."""

    sent: ControllerRequest
    answered: Callable[[bytes | None, ErrorCode], object]
    deadline: float
    settles: bool
    attempts: int = 0
    sent_to: int = -1  # node id; -1: no attempt is in flight
    attempt_ends_at: float = 0.0
    is_done: bool = False


class ControllerChannel:
    """See the module. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        controller: Controller,
        node_id: int,
        links: ControllerLinks | None,
        new_context: NewContext,
        when_settled: Callable[[Callable[[], object]], object],
    ) -> None:
        """`links`: None where this node's controller is the only one. `when_settled(call)` calls back when the partitions of
        this node are as the metadata has them."""
        self._runtime = runtime
        self._controller = controller
        self._node_id = node_id
        self._links = links
        self._new_context = new_context
        self._when_settled = when_settled
        self._waiting: list[_Request] = []  # without an answer
        self._catching_up: list[tuple[int, float, Callable[[], object]]] = []
        self._timer: Timer | None = None
        self._incarnation = b""  # random, once an id is needed
        self._request_number = 0
        controller.add_image_listener(lambda _: self._caught_up())

    # -- this node's own requests

    def send(
        self,
        api_key: int,
        request: msgspec.Struct,
        done: Done,
        *,
        timeout_s: float = TIMEOUT_S,
        settles: bool = True,
        client: tuple[Caller, str | None] | None = None,
    ) -> None:
        """Send a request to the active controller, in the newest version of the API. `client`: in whose name it is sent, with its
        client id; None: this node's own. `done(response, NONE)`, or `done(None, error)` when there is no answer in time; once,
        perhaps before this returns. `settles`: an answer waits until this node's partitions are as the metadata has them, which
        may take long where many are new."""
        version = REGISTRATIONS[api_key].max_version
        request_id = self.new_request_id()
        caller, client_id = client or (own_caller(self._node_id), None)

        def answered(answer: bytes | None, error: ErrorCode) -> None:
            if answer is None:
                done(None, error)
                return
            try:
                response, _ = response_type(api_key).decode(version, answer, 0)
            except DecodeError as failure:
                log.warning("the controller's answer to API %d can't be read: %s", api_key, failure)
                done(None, ErrorCode.UNKNOWN_SERVER_ERROR)
            else:
                done(response, ErrorCode.NONE)

        def send(after_s: float) -> None:
            body = b"".join(request_type(api_key).encode(version, request))  # type: ignore[arg-type]
            sent = ControllerRequest(api_key, version, client_id, caller, body, False, request_id)
            self._start(sent, answered, timeout_s, after_s, settles)

        if self._controller.is_active:
            self._call_here(
                api_key, version, client_id, caller, request, request_id, done, lambda: send(RETRY_S)
            )
        else:
            send(0)

    def _call_here(
        self,
        api_key: int,
        version: int,
        client_id: str | None,
        caller: Caller,
        request: msgspec.Struct,
        request_id: bytes,
        done: Done,
        lost: Callable[[], object],
    ) -> None:
        """Call the handler. A failure is UNKNOWN_SERVER_ERROR, as from a controller on another node."""
        reply = LocalReply(
            lambda response: done(response, ErrorCode.NONE),
            lambda: done(None, ErrorCode.UNKNOWN_SERVER_ERROR),
            lost,
            request_id,
        )
        call_handler(self._new_context(reply, api_key, version, client_id, caller), request)

    # -- requests of clients

    def forward(
        self, context: RequestContext[Any], buffer: memoryview, start: int, end: int
    ) -> Outcome | None:
        """Forward the request whose body is at buffer[start:end] to the active controller; None when that is this node's."""
        if self._controller.is_active:
            return None
        self._send_for_client(context, buffer[start:end].tobytes(), self.new_request_id(), 0)
        return Outcome.PENDING

    def send_again(self, context: RequestContext[Any], request: msgspec.Struct, request_id: bytes) -> None:
        """Send a request to the next active controller: this node's has lost its term, and it is not known whether it has
        executed the request."""
        if isinstance(context.reply, LocalReply):
            context.complete(Outcome.NOT_CONTROLLER)  # its sender sends it again
            return
        parts = request_type(context.api_key).encode(context.api_version, request)
        self._send_for_client(context, b"".join(parts), request_id, RETRY_S)  # type: ignore[arg-type]

    def request_id_of(self, context: RequestContext[Any]) -> bytes:
        """The id of a request that this node's controller serves: that of the node that has sent it, or a new one."""
        given = context.reply.request_id if isinstance(context.reply, LocalReply) else b""
        return given or self.new_request_id()

    def new_request_id(self) -> bytes:
        self._incarnation = self._incarnation or self._runtime.random_bytes(12)
        self._request_number += 1
        return self._incarnation + self._request_number.to_bytes(8, "big")

    def _send_for_client(
        self, context: RequestContext[Any], body: bytes, request_id: bytes, after_s: float
    ) -> None:
        """Send a client's request, and complete it with the answer."""
        sent = ControllerRequest(
            context.api_key,
            context.api_version,
            context.client_id,
            context.caller,
            body,
            for_client=True,
            request_id=request_id,
        )

        def answered(answer: bytes | None, error: ErrorCode) -> None:
            if answer is None:
                log.warning(
                    "no controller has answered %s of %s: %s",
                    REGISTRATIONS[context.api_key].name,
                    context.client_host,
                    error.name,
                )
                context.complete(Outcome.CLOSE)  # the client tries again, here or with another broker
            else:
                context.complete(RawResponse(answer))

        self._start(sent, answered, TIMEOUT_S, after_s)

    # -- requests in flight

    def _start(
        self,
        sent: ControllerRequest,
        answered: Callable[[bytes | None, ErrorCode], object],
        timeout_s: float,
        after_s: float,
        settles: bool = True,
    ) -> None:
        request = _Request(sent, answered, self._runtime.monotonic() + timeout_s, settles)
        self._waiting.append(request)
        if after_s:
            self._runtime.call_later(after_s, lambda: self._retry(request))
        else:
            self._try(request)
        self._tick_later()

    def _try(self, request: _Request) -> None:
        """Send the request, unless no active controller is known; `_tick` tries again."""
        if request.is_done:
            return
        if self._controller.is_active:
            self._waiting.remove(request)
            request.is_done = True
            self._serve_here(request)
            return
        links = self._links
        node_id = links.active_controller() if links is not None else -1
        if links is None or node_id < 0 or node_id == self._node_id:
            request.sent_to = -1
            return
        request.sent_to = node_id
        request.attempt_ends_at = self._runtime.monotonic() + ATTEMPT_S
        request.attempts += 1
        number = request.attempts
        links.request(
            node_id,
            msgspec.msgpack.encode(request.sent),
            lambda answer: self._answered(request, number, answer),
        )

    def _retry(self, request: _Request) -> None:
        """Send the request again, unless an attempt is in flight."""
        if request.sent_to < 0:
            self._try(request)

    def _serve_here(self, request: _Request) -> None:
        """This node has become the active controller while the request waited."""
        sent = request.sent

        def done(response: Any, error: ErrorCode) -> None:
            if response is None:
                request.answered(None, error)
                return
            write = response_type(sent.api_key).writers[sent.api_version]
            try:
                parts = encode_or_server_error(sent.api_key, write, response)
            except EncodeError as failure:
                log.error("the response to API %d cannot be encoded: %s", sent.api_key, failure)
                request.answered(None, ErrorCode.UNKNOWN_SERVER_ERROR)
            else:
                request.answered(b"".join(parts), ErrorCode.NONE)  # type: ignore[arg-type]

        def lost() -> None:
            """This node's controller has lost its term again."""
            request.is_done, request.sent_to = False, -1
            self._waiting.append(request)
            self._runtime.call_later(RETRY_S, lambda: self._retry(request))
            self._tick_later()

        try:
            message, _ = request_type(sent.api_key).decode(sent.api_version, sent.body, 0)
        except DecodeError:
            request.answered(None, ErrorCode.INVALID_REQUEST)
            return
        self._call_here(
            sent.api_key,
            sent.api_version,
            sent.client_id,
            sent.caller,
            message,
            sent.request_id,
            done,
            lost,
        )

    def _answered(self, request: _Request, number: int, payload: bytes | None) -> None:
        if request.is_done or request.attempts != number:
            return  # another attempt has been made since
        answer = None
        if payload is not None:
            try:
                answer = decode(payload, ControllerAnswer)
            except MalformedMessage as error:
                log.warning("controller %d: %s", request.sent_to, error)
        if answer is None or answer.error == ErrorCode.NOT_CONTROLLER:
            request.sent_to = -1
            self._runtime.call_later(RETRY_S, lambda: self._retry(request))
            return
        request.is_done = True
        self._waiting.remove(request)
        if answer.error:
            request.answered(None, ErrorCode.of(answer.error))
        else:
            body = answer.body
            when = self.when_at if request.settles else self._when_image_at
            when(answer.offset, lambda: request.answered(body, ErrorCode.NONE))

    def controller_changed(self) -> None:
        """There is another active controller: send it the requests that have no answer."""
        for request in tuple(self._waiting):
            self._try(request)

    def _tick_later(self) -> None:
        if self._timer is None and (self._waiting or self._catching_up):
            self._timer = self._runtime.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._runtime.monotonic()
        for request in tuple(self._waiting):
            if now >= request.deadline:
                request.is_done = True
                self._waiting.remove(request)
                request.answered(None, ErrorCode.REQUEST_TIMED_OUT)
            elif request.sent_to < 0 or now >= request.attempt_ends_at:
                self._try(request)
        self._caught_up()
        self._tick_later()

    # -- this node's image

    def when_at(self, offset: int, call: Callable[[], object]) -> None:
        """Call when this node's image has the record of this offset and its partitions follow it, or after CATCH_UP_S."""
        self._when_image_at(offset, lambda: self._when_settled(call))

    def _when_image_at(self, offset: int, call: Callable[[], object]) -> None:
        if self._controller.image.offset >= offset:
            call()
            return
        self._catching_up.append((offset, self._runtime.monotonic() + CATCH_UP_S, call))
        self._tick_later()

    def _caught_up(self) -> None:
        if not self._catching_up:
            return
        reached, now = self._controller.image.offset, self._runtime.monotonic()
        waiting, self._catching_up = self._catching_up, []
        for offset, deadline, call in waiting:
            if reached >= offset or now >= deadline:
                call()
            else:
                self._catching_up.append((offset, deadline, call))
