"""The states of a connection to a nats-server, without a connection."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import pytest

from barnabas.nats.client.client import ClientStats
from barnabas.nats.client.connection import NatsConnection
from barnabas.nats.client.connection_settings import ConnectionSettings, parse_server
from barnabas.nats.client.errors import LAME_DUCK, SERVER_GONE, Cause, NatsError, NatsSettingsError
from barnabas.nats.client.protocol import LINE_BYTES_MAX, NatsProtocolError, ServerInfo
from barnabas.nats.client.session import PINGS_MAX, TRANSITIONS, Event, Session, State
from compat_tests.virtual.runtime import VirtualRuntime

INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1000}\r\n'

WAYS = {
    State.NEW: (),
    State.TLS_FIRST: (Event.START_TLS,),
    State.WAITING: (Event.OPEN,),
    State.UPGRADING: (Event.OPEN, Event.START_TLS),
    State.SECURE: (Event.OPEN, Event.START_TLS, Event.END_TLS),
    State.GREETED: (Event.OPEN, Event.GREET),
    State.READY: (Event.OPEN, Event.GREET, Event.ANSWER),
    State.CLOSING: (Event.START_TLS, Event.CLOSE),
    State.CLOSED: (Event.CLOSE,),
}


def session_in(state: State) -> Session:
    session = Session("server:4222")
    for event in WAYS[state]:
        session.apply(event)
    assert session.state is state
    return session


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_a_listed_transition_happens_and_any_other_is_an_error(state: State, event: Event) -> None:
    session = session_in(state)
    following = TRANSITIONS.get((state, event))
    if following is None:
        with pytest.raises(
            RuntimeError, match=f"{event.name} does not occur while a connection is {state.name}"
        ):
            session.apply(event)
        assert session.state is state
    else:
        session.apply(event)
        assert session.state is following


def test_every_state_but_the_last_can_be_closed() -> None:
    closable = {state for state, event in TRANSITIONS if event is Event.CLOSE}
    assert closable == set(State) - {State.CLOSING, State.CLOSED}


def test_tls_before_info_and_behind_it() -> None:
    before = Session("s")
    for event in (Event.START_TLS, Event.END_TLS, Event.GREET, Event.ANSWER):
        before.apply(event)
    behind = Session("s")
    for event in (Event.OPEN, Event.START_TLS, Event.END_TLS, Event.GREET, Event.ANSWER):
        behind.apply(event)
    assert before.state is behind.state is State.READY


@pytest.mark.parametrize("state", State)
def test_properties_of_states(state: State) -> None:
    session = session_in(state)
    assert session.is_closed == (state in {State.CLOSING, State.CLOSED})
    assert session.is_greeted == (state in {State.GREETED, State.READY})
    assert session.is_in_tls_handshake == (state in {State.TLS_FIRST, State.UPGRADING, State.CLOSING})


@pytest.mark.parametrize("cut", range(len(INFO)))
def test_an_info_line_in_two_pieces(cut: int) -> None:
    session = session_in(State.WAITING)
    assert session.receive_info(memoryview(INFO)[:cut]) is None
    assert session.receive_info(INFO[cut:] + b"PING\r\n") == b"PING\r\n"
    assert session.info.max_payload == 1000


def test_a_first_line_that_is_no_info_ends_the_connection() -> None:
    with pytest.raises(NatsProtocolError, match="not the NATS protocol"):
        session_in(State.WAITING).receive_info(b"SSH-2.0-OpenSSH_9.2\r\n")
    session = session_in(State.WAITING)
    assert session.receive_info(b"x" * LINE_BYTES_MAX) is None
    with pytest.raises(NatsProtocolError, match="without end"):
        session.receive_info(b"x")


def test_bytes_before_tls_has_begun_end_the_connection() -> None:
    with pytest.raises(NatsSettingsError, match="handshake_first"):
        session_in(State.TLS_FIRST).receive_info(INFO)
    with pytest.raises(NatsProtocolError, match="between INFO and the beginning of TLS"):
        session_in(State.UPGRADING).receive_info(b"MSG injected 1 1\r\nx\r\n")
    session = session_in(State.WAITING)
    with pytest.raises(NatsProtocolError, match="between INFO and the beginning of TLS"):
        session.start_tls(b"MSG injected 1 1\r\nx\r\n")
    assert session.state is State.WAITING


def test_pongs_answer_pings_in_order_and_the_end_answers_the_rest() -> None:
    session = session_in(State.READY)
    answered: list[str] = []

    def done(name: str) -> Any:
        return lambda error: answered.append(f"{name} {error}")

    session.answer_ping()  # answers nothing
    session.add_ping(done("a"))
    session.add_ping(None)
    session.add_ping(done("b"))
    session.add_ping(done("c"))
    session.answer_ping()
    session.answer_ping()
    session.answer_ping()
    assert answered == ["a None", "b None"]
    unanswered = session.close()
    assert len(unanswered) == 1
    unanswered[0](NatsError("over"))
    assert answered[2:] == ["c over"]
    with pytest.raises(RuntimeError, match="CLOSE does not occur"):
        session.close()


def test_a_connection_is_stale_after_two_pings_without_a_sign_of_life() -> None:
    session = session_in(State.READY)
    for _ in range(PINGS_MAX):
        assert not session.is_stale(is_paused=False)
    session.has_heard = True
    for _ in range(PINGS_MAX):
        assert not session.is_stale(is_paused=False)
    assert not session.is_stale(is_paused=True)  # nothing is read
    assert not session.is_stale(is_paused=False)
    assert session.is_stale(is_paused=False)


def test_a_server_says_once_that_it_shuts_down() -> None:
    session = session_in(State.READY)
    cause = Cause(LAME_DUCK, "it shuts down")
    assert not session.take_info(ServerInfo(version="1"), cause)
    assert session.expected_end is None
    assert session.take_info(ServerInfo(version="2", ldm=True), cause)
    assert not session.take_info(ServerInfo(version="3", ldm=True), Cause(LAME_DUCK, "again"))
    assert session.expected_end is cause
    assert session.info.version == "3"


# -- the connection around it, over a transport that is none


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def abort(self) -> None:
        self.calls.append("abort")

    def get_write_buffer_size(self) -> int:
        return 0


class Runtime(VirtualRuntime):
    """Records TLS handshakes; the test ends them."""

    def __init__(self) -> None:
        super().__init__()
        self.handshakes: list[Any] = []

    def start_tls(self, transport: Any, protocol: Any, tls: Any, server_name: str, done: Any) -> None:
        self.handshakes.append(done)


class Owner:
    """The client's side."""

    name = "client"

    def __init__(self) -> None:
        self.stats = ClientStats()
        self.causes: list[Cause] = []

    def made(self, _connection: NatsConnection) -> bool:
        return True

    def slow(self, _paused_s: float) -> None: ...

    def ended(self, _connection: NatsConnection, cause: Cause) -> None:
        self.causes.append(cause)


def connection_in_tls_handshake() -> tuple[NatsConnection, Owner, Transport, Any]:
    runtime, owner, transport = Runtime(), Owner(), Transport()
    server = parse_server("tls://server:4222")
    settings = ConnectionSettings(servers=(server,), tls_first=True)
    connection = NatsConnection(cast("Any", owner), runtime, settings, server)
    connection.connection_made(transport)
    return connection, owner, transport, runtime.handshakes[0]


def test_a_connection_that_ends_during_a_tls_handshake_leaves_the_transport_alone_until_then() -> None:
    connection, owner, transport, ended = connection_in_tls_handshake()
    connection.end(Cause(SERVER_GONE, "too late"))
    assert (connection.session.state, transport.calls) == (State.CLOSING, [])
    connection.end(Cause(SERVER_GONE, "again"))
    secured = Transport()
    ended(secured, None)
    assert (connection.session.state, secured.calls) == (State.CLOSED, ["abort"])
    assert [cause.detail for cause in owner.causes] == ["too late"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_tls_handshake_that_fails_ends_the_connection_once(is_lost: bool) -> None:
    connection, owner, _, ended = connection_in_tls_handshake()
    if is_lost:
        connection.connection_lost(None)
    ended(None, OSError("no certificate"))
    assert connection.session.state is State.CLOSED
    (cause,) = owner.causes
    assert cause.kind == SERVER_GONE
    assert ("closed by the server" if is_lost else "no TLS with server:4222: no certificate") in cause.detail
