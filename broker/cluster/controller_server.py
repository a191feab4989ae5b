"""The controller's side of the channel: serves requests of other nodes' brokers, and those that they forward for clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from barnabas.broker.requests.context import CLOSE_CONNECTION, LocalReply
from barnabas.broker.requests.large_requests import LARGE_BODY_BYTES
from barnabas.broker.requests.registry import REGISTRATIONS, call_handler
from barnabas.broker.requests.server_error import encode_or_server_error
from barnabas.broker.security.caller import Caller
from barnabas.controller.link.messages import MalformedMessage, decode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import DecodeError, EncodeError
from barnabas.wire.registry import request_type, response_type

if TYPE_CHECKING:
    from barnabas.broker.requests.context import NewContext
    from barnabas.broker.requests.large_requests import LargeRequests
    from barnabas.controller.metadata.controller import Controller

log = logging.getLogger("barnabas.controller")


class ControllerRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request, its body in Kafka's encoding. `for_client`: it is forwarded, as the client's; otherwise it is the node's own.
    `request_id` is unique, and the same when the request is sent again."""

    api_key: int
    api_version: int
    client_id: str | None
    caller: Caller
    body: bytes
    for_client: bool
    request_id: bytes = b""


class ControllerAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The response's body or an error, and the metadata offset that it is based on."""

    error: int
    offset: int
    body: bytes


class ControllerRequests:
    """Serves requests of other nodes while this node's controller is the active one."""

    def __init__(
        self, controller: Controller, large_requests: LargeRequests, new_context: NewContext
    ) -> None:
        self._controller = controller
        self._large_requests = large_requests
        self._new_context = new_context

    def serve(self, node_id: int, payload: bytes, reply: Callable[[bytes], object]) -> None:
        """Answer a request of the node; `reply` is called once, now or later. Raises nothing, whatever the payload is."""

        def answer(error: ErrorCode, body: bytes = b"") -> None:
            offset = self._controller.image.offset
            reply(msgspec.msgpack.encode(ControllerAnswer(error, offset, body)))

        try:
            sent = decode(payload, ControllerRequest)
        except MalformedMessage as error:
            log.warning("node %d: %s", node_id, error)
            answer(ErrorCode.INVALID_REQUEST)
            return
        if not self._controller.is_active:
            answer(ErrorCode.NOT_CONTROLLER)
            return
        served = REGISTRATIONS.get(sent.api_key)
        if (
            served is None
            or not (served.controller or served.shared)
            or (served.internal and sent.for_client)
            or not served.min_version <= sent.api_version <= served.max_version
        ):
            log.warning(
                "node %d has sent API %d version %d, which controllers do not serve",
                node_id,
                sent.api_key,
                sent.api_version,
            )
            answer(ErrorCode.UNSUPPORTED_VERSION)
            return
        kind = response_type(sent.api_key)

        def done(response: msgspec.Struct) -> None:
            try:
                parts = encode_or_server_error(sent.api_key, kind.writers[sent.api_version], response)
            except EncodeError as error:
                log.error("the response to %s of node %d cannot be encoded: %s", served.name, node_id, error)
                answer(ErrorCode.UNKNOWN_SERVER_ERROR)
            else:
                answer(ErrorCode.NONE, b"".join(parts))  # type: ignore[arg-type]

        context = self._new_context(
            LocalReply(
                done,
                lambda: answer(ErrorCode.UNKNOWN_SERVER_ERROR),
                lambda: answer(ErrorCode.NOT_CONTROLLER),
                sent.request_id,
            ),
            sent.api_key,
            sent.api_version,
            sent.client_id,
            sent.caller,
        )

        def decoded(request: Any, error: BaseException | None) -> None:
            if isinstance(error, DecodeError):
                log.warning("a %s of node %d can't be read: %s", served.name, node_id, error)
                answer(ErrorCode.INVALID_REQUEST)
                return
            try:
                if error is not None:
                    raise error
                if served.internal and request.broker_id != node_id:
                    log.warning("node %d has sent a %s of broker %d", node_id, served.name, request.broker_id)
                    answer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                    return
            except Exception:
                log.exception("%s of node %d failed", served.name, node_id)
                context.complete(CLOSE_CONNECTION)
                return
            call_handler(context, request)

        read = request_type(sent.api_key).readers[sent.api_version]
        if len(sent.body) > LARGE_BODY_BYTES:
            self._large_requests.decode(read, sent.body, decoded)
            return
        try:
            request, _ = read(sent.body, 0, len(sent.body))
        except DecodeError as error:
            decoded(None, error)
        else:
            decoded(request, None)
