"""Requests to the active controller, over links whose other ends are scripted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from barnabas.broker.cluster.controller_channel import ControllerChannel
from barnabas.broker.cluster.controller_server import ControllerAnswer, ControllerRequest, ControllerRequests
from barnabas.broker.requests.api_index import SERVED
from barnabas.broker.requests.context import LocalReply, Outcome, Reply, RequestContext
from barnabas.broker.requests.large_requests import LargeRequests
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.security.caller import ANONYMOUS, Caller, Principal, own_caller
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from barnabas.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest
from barnabas.wire.registry import request_type, response_type
from compat_tests.virtual.runtime import VirtualRuntime

HEARTBEAT, REGISTRATION, ELECT_LEADERS = 63, 62, 43


class Links:
    """A node's links, as far as requests go over them."""

    def __init__(self) -> None:
        self.active = 2
        self.asked: list[tuple[int, Callable[[bytes | None], object]]] = []

    def active_controller(self) -> int:
        return self.active

    def request(self, node_id: int, payload: bytes, done: Callable[[bytes | None], object]) -> None:
        self.asked.append((node_id, done))


def answer(error: int = ErrorCode.NONE) -> bytes:
    kind: Any = response_type(HEARTBEAT)
    body = b"" if error else b"".join(kind.encode(kind.max_version, BrokerHeartbeatResponse(is_fenced=True)))
    return msgspec.msgpack.encode(ControllerAnswer(error, -1, body))


class SilentSessions:
    """A controller's part that ends a request without a response."""

    def heartbeat(self, _request: object, done: Callable[[Outcome], object]) -> None:
        done(Outcome.CLOSE)


class BrokenSessions:
    """A controller's part that fails."""

    def heartbeat(self, *_: object) -> None:
        raise ValueError("a defect")


def made(links: Links | None = None, **fields: Any) -> tuple[ControllerChannel, VirtualRuntime]:
    runtime = VirtualRuntime()
    controller: Any = SimpleNamespace(
        is_active="broker_sessions" in fields,
        image=SimpleNamespace(offset=-1),
        add_image_listener=lambda _: None,
    )
    services = SimpleNamespace(runtime=runtime, controller=controller, **fields)
    channel = ControllerChannel(
        runtime, controller, 1, links, partial(new_context, services), lambda call: call()
    )
    return channel, runtime


def new_context(
    services: object, reply: Reply, key: int, version: int, client_id: str | None, caller: Caller
) -> RequestContext[Any]:
    return RequestContext(services, reply, key, version, 0, client_id, caller)


def requests_of(services: Any) -> ControllerRequests:
    return ControllerRequests(
        services.controller, LargeRequests(VirtualRuntime()), partial(new_context, services)
    )


def test_a_handler_that_fails_here_is_answered_for(caplog: pytest.LogCaptureFixture) -> None:
    controller_channel, _ = made(broker_sessions=BrokenSessions())
    answers: list[tuple[Any, ErrorCode]] = []
    controller_channel.send(HEARTBEAT, BrokerHeartbeatRequest(), lambda *told: answers.append(told))
    assert answers == [(None, ErrorCode.UNKNOWN_SERVER_ERROR)]
    assert "a defect" in caplog.text


def test_a_handler_that_has_no_response_is_answered_for() -> None:
    controller_channel, _ = made(broker_sessions=SilentSessions())
    answers: list[tuple[Any, ErrorCode]] = []
    controller_channel.send(HEARTBEAT, BrokerHeartbeatRequest(), lambda *told: answers.append(told))
    assert answers == [(None, ErrorCode.UNKNOWN_SERVER_ERROR)]


@pytest.mark.parametrize("sessions", [SilentSessions(), BrokenSessions()])
def test_a_request_without_a_response_is_answered_to_another_node(sessions: object) -> None:
    image = SimpleNamespace(offset=7)
    services: Any = SimpleNamespace(
        controller=SimpleNamespace(is_active=True, image=image), broker_sessions=sessions
    )
    version = REGISTRATIONS[HEARTBEAT].max_version
    kind: Any = request_type(HEARTBEAT)
    body = b"".join(kind.encode(version, BrokerHeartbeatRequest(broker_id=2)))
    asked = ControllerRequest(HEARTBEAT, version, None, own_caller(2), body, for_client=False)
    replies: list[bytes] = []
    requests_of(services).serve(2, msgspec.msgpack.encode(asked), replies.append)
    (reply,) = replies
    answered = msgspec.msgpack.decode(reply, type=ControllerAnswer)
    assert (answered.error, answered.offset, answered.body) == (ErrorCode.UNKNOWN_SERVER_ERROR, 7, b"")


@pytest.mark.parametrize("key", [key for key, served in SERVED.items() if served.is_internal])
def test_a_node_sends_requests_of_its_own_broker_only(key: int) -> None:
    services: Any = SimpleNamespace(
        controller=SimpleNamespace(is_active=True, image=SimpleNamespace(offset=7))
    )
    kind: Any = request_type(key)
    version = REGISTRATIONS[key].max_version
    body = b"".join(kind.encode(version, kind.message_class(broker_id=3)))
    asked = ControllerRequest(key, version, None, own_caller(2), body, for_client=False)
    replies: list[bytes] = []
    requests_of(services).serve(2, msgspec.msgpack.encode(asked), replies.append)
    answered = msgspec.msgpack.decode(replies[0], type=ControllerAnswer)
    assert answered.error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class UnencodableSessions:
    """A controller's part that answers what has no encoding: a text beside the code, where a number belongs."""

    def __init__(self, epoch: Any) -> None:
        self.epoch = epoch

    def register(self, _request: object, done: Callable[[object], object]) -> None:
        done(BrokerRegistrationResponse(broker_epoch=self.epoch))


def test_an_answer_that_has_no_encoding_is_an_error_for_the_node_that_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = SimpleNamespace(offset=7)
    services: Any = SimpleNamespace(
        controller=SimpleNamespace(is_active=True, image=image), broker_sessions=UnencodableSessions("none")
    )
    version = REGISTRATIONS[REGISTRATION].max_version
    body = b"".join(request_type(REGISTRATION).encode(version, BrokerRegistrationRequest(broker_id=2)))  # type: ignore[arg-type]
    asked = ControllerRequest(REGISTRATION, version, None, own_caller(2), body, for_client=False)
    replies: list[bytes] = []
    requests_of(services).serve(2, msgspec.msgpack.encode(asked), replies.append)
    (reply,) = replies
    answered = msgspec.msgpack.decode(reply, type=ControllerAnswer)
    assert answered.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert [record.exc_info for record in caplog.records] == [None, None], "said, without a traceback"


@pytest.mark.parametrize(
    "payload",
    [answer(31_999), msgspec.msgpack.encode(ControllerAnswer(ErrorCode.NONE, -1, b"cut"))],
    ids=["an error of a later release", "a response that is cut"],
)
def test_an_answer_that_cannot_be_decoded_is_an_error(payload: bytes) -> None:
    links = Links()
    controller_channel, _ = made(links)
    answers: list[tuple[Any, ErrorCode]] = []
    controller_channel.send(HEARTBEAT, BrokerHeartbeatRequest(), lambda *told: answers.append(told))
    links.asked[0][1](payload)
    assert answers == [(None, ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_a_late_answer_of_the_last_controller_sends_nothing_again() -> None:
    links = Links()
    controller_channel, runtime = made(links)
    answers: list[tuple[Any, ErrorCode]] = []
    controller_channel.send(HEARTBEAT, BrokerHeartbeatRequest(), lambda *told: answers.append(told))
    links.asked[0][1](answer(ErrorCode.NOT_CONTROLLER))
    links.active = 3
    controller_channel.controller_changed()
    runtime.advance(0.1)
    assert [node_id for node_id, _ in links.asked] == [2, 3], "or it would be done twice"
    links.asked[1][1](answer())
    ((response, error),) = answers
    assert (response.is_fenced, error) == (True, ErrorCode.NONE)


def test_a_malformed_request_is_refused_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Text that is not UTF-8 is no DecodeError of msgspec's."""
    requests = requests_of(SimpleNamespace(controller=SimpleNamespace(image=SimpleNamespace(offset=7))))
    answers: list[ControllerAnswer] = []
    good = msgspec.msgpack.encode(
        ControllerRequest(63, 1, "client", Caller(ANONYMOUS, "", "host"), b"", for_client=False)
    )
    for payload in (b"", good[:-1], good.replace(b"host", b"\xc6ost")):
        requests.serve(
            3, payload, lambda each: answers.append(msgspec.msgpack.decode(each, type=ControllerAnswer))
        )
    assert [each.error for each in answers] == [ErrorCode.INVALID_REQUEST] * 3
    assert [record.message[:8] for record in caplog.records] == ["node 3: "] * 3
    assert not any(record.exc_info for record in caplog.records)


class RecordingReply(LocalReply):
    """Takes the answer to a client's request."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        super().__init__(self.answers.append, lambda: None)


def test_a_clients_request_that_waits_is_served_here_as_the_clients() -> None:
    """This node becomes the active controller before another has answered: the request gets no rights of the node's."""
    callers: list[tuple[Caller, str | None]] = []

    def new_context_seen(services: object, reply: Reply, *rest: Any) -> RequestContext[Any]:
        callers.append((rest[3], rest[2]))
        return new_context(services, reply, *rest)

    links = Links()
    runtime = VirtualRuntime()
    controller: Any = SimpleNamespace(
        is_active=False, image=SimpleNamespace(offset=-1), add_image_listener=lambda _: None
    )
    services = SimpleNamespace(
        runtime=runtime, controller=controller, authorizer=SimpleNamespace(allows=lambda *_, **__: False)
    )
    channel = ControllerChannel(
        runtime, controller, 1, links, partial(new_context_seen, services), lambda call: call()
    )
    alice = Caller(Principal("User", "alice"), "EXTERNAL", "10.0.0.1")
    body = b"".join(request_type(ELECT_LEADERS).encode(2, ElectLeadersRequest(timeout_ms=1)))  # type: ignore[arg-type]
    reply = RecordingReply()
    context = new_context(services, reply, ELECT_LEADERS, 2, "her client", alice)
    assert channel.forward(context, memoryview(body), 0, len(body)) is Outcome.PENDING
    controller.is_active = True
    channel.controller_changed()
    assert callers == [(alice, "her client")]
    (answer,) = reply.answers
    refused, _ = response_type(ELECT_LEADERS).decode(2, answer.body, 0)
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
