"""The states before a client is authenticated, and those of a session with a lifetime, on a clock of the test's."""

from __future__ import annotations

import struct
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.network.connection import Connection
from barnabas.broker.network.sasl_authenticator import authenticator
from barnabas.broker.network.tests.doubles import PRODUCE, Socket, Transport, answer
from barnabas.broker.network.tests.doubles import World as PlaintextWorld
from barnabas.broker.network.tests.doubles import request as other_request
from barnabas.broker.requests.context import PENDING
from barnabas.broker.security.caller import ANONYMOUS, Principal
from barnabas.broker.security.sasl import Identity, Mechanism, SaslFailure, SaslListener, ThreadNeeded

DELAY_S = 0.1


class Server:
    """A mechanism: `user` or `user until <ms>`; `more` asks for another token, `bad` and `secret` fail, `slow` and `slow bad` need a
    thread first, `broken` needs one that fails."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.has_worked = False

    def _work(self) -> None:
        self.has_worked = True

    def _fail(self) -> None:
        raise OSError("broken")

    def evaluate(self, token: bytes) -> bytes:
        text = token.decode(errors="replace")
        if text.startswith("slow") and not self.has_worked:
            raise ThreadNeeded(self._work)
        if text == "broken":
            raise ThreadNeeded(self._fail)
        if text in ("bad", "slow bad"):
            raise SaslFailure
        if text == "worse":
            raise SaslFailure("worse")
        if text == "more":
            return b"challenge"
        user, _, until = text.partition(" until ")
        self.identity = Identity(Principal("User", user), int(until) if until else None)
        return b"welcome"


class World(PlaintextWorld):
    def __init__(self, max_reauth_ms: int = 0) -> None:
        mechanisms = {"PLAIN": Mechanism(Server, max_reauth_ms), "OTHER": Mechanism(Server, 0)}
        self.listener = SaslListener(mechanisms, 1000, DELAY_S)
        super().__init__(listeners="SASL://:0", **{"listener.security.protocol.map": "SASL:PLAINTEXT"})
        self.timers: list[tuple[float, Any]] = []
        self.loop.call_later = self._call_later  # type: ignore[method-assign]

    def _call_later(self, delay_s: float, callback: Any) -> Any:
        timer = _Timer(callback)
        self.timers.append((delay_s, timer))
        return timer

    def _connect(self) -> tuple[Socket, Transport, Connection]:
        socket = Socket()
        transport = Transport(socket)
        connection = Connection(self.shared, "SASL", authenticator(self.listener))
        connection.connection_made(transport)
        return socket, transport, connection

    def ask(self, frame: bytes) -> bytes:
        """Send a frame; what is answered in this turn and the next."""
        before = len(self.socket.sent)
        self.receive(frame)
        self.turns()
        return bytes(self.socket.sent[before:])

    def log_in(self, token: str = "alice") -> bytes:
        self.ask(handshake())
        return self.ask(authenticate(token))


class _Timer:
    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def _framed(key: int, version: int, body: bytes, number: int = 5) -> bytes:
    return struct.pack(">ihhih", 10 + len(body), key, version, number, -1) + body


def handshake(mechanism: str = "PLAIN", version: int = 1) -> bytes:
    return _framed(17, version, struct.pack(">h", len(mechanism)) + mechanism.encode())


def authenticate(token: str, version: int = 1) -> bytes:
    return _framed(36, version, struct.pack(">i", len(token)) + token.encode())


def refusal(text: str) -> bytes:
    body = struct.pack(">ihh", 5, 58, len(text)) + text.encode() + struct.pack(">iq", 0, 0)
    return struct.pack(">i", len(body)) + body


def success(token: bytes = b"welcome", lifetime_ms: int = 0) -> bytes:
    body = struct.pack(">ihhi", 5, 0, -1, len(token)) + token + struct.pack(">q", lifetime_ms)
    return struct.pack(">i", len(body)) + body


def test_the_dispatcher_serves_once_the_client_is_authenticated() -> None:
    world = World()
    assert world.connection.caller.principal == ANONYMOUS
    world.ask(handshake())
    assert world.ask(authenticate("more")) == success(b"challenge")
    assert world.connection.caller.principal == ANONYMOUS
    assert world.ask(authenticate("alice")) == success()
    assert world.connection.caller.principal == Principal("User", "alice")
    assert world.ask(other_request(7, PRODUCE)) == answer(7)


def test_requests_behind_the_last_token_are_served_as_the_client_s() -> None:
    world = World()
    callers: list[Any] = []

    def note(connection: Any) -> bytes:
        callers.append(connection.caller.principal.name)
        return answer(7)

    world.dispatcher.handlers[7] = note
    sent = world.ask(handshake() + authenticate("alice") + other_request(7, PRODUCE))
    assert sent.endswith(success() + answer(7))
    assert callers == ["alice"]


def test_a_failure_is_answered_after_a_delay_and_ends_the_connection() -> None:
    world = World()
    world.ask(handshake())
    assert world.ask(authenticate("bad") + other_request(7)) == b""
    ((delay_s, timer),) = world.timers[-1:]
    assert delay_s == DELAY_S
    assert not world.transport.is_aborted
    timer.callback()
    text = "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    assert world.socket.sent.endswith(refusal(text))
    assert world.transport.is_aborted
    assert world.dispatcher.served == []


def test_what_a_client_is_called_breaks_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level("INFO"):
        world.ask(handshake("PLAIN\n2026-01-01 INFO forged" + "x" * 500))
    (line,) = [each for each in caplog.messages if "Failed authentication" in each]
    assert "\n" not in line
    assert len(line) < 500


def test_a_client_that_leaves_before_the_answer_cancels_it() -> None:
    world = World()
    world.ask(handshake())
    world.ask(authenticate("bad"))
    world.connection.connection_lost(None)
    assert world.timers[-1][1].is_cancelled
    world.timers[-1][1].callback()  # a loop that has begun to call it already


def test_bare_tokens_after_a_handshake_of_version_0() -> None:
    world = World()
    world.ask(handshake(version=0))
    assert world.ask(struct.pack(">i", 4) + b"more") == struct.pack(">i", 9) + b"challenge"
    assert world.ask(struct.pack(">i", 5) + b"alice") == struct.pack(">i", 7) + b"welcome"
    assert world.ask(other_request(7)) == answer(7)


def test_frames_are_short_before_the_authentication_and_long_after_it() -> None:
    world = World()
    world.log_in()
    assert world.ask(other_request(7, padding=5000)) == answer(7)
    world = World()
    world.receive(struct.pack(">i", 1001))
    assert world.transport.is_aborted


FRAMES = st.binary(max_size=40) | st.sampled_from([17, 18, 36, 0, 3, 0x4241, 0x7FFF]).flatmap(
    lambda key: st.builds(
        lambda version, body: struct.pack(">hhih", key, version, 7, -1) + body,
        st.integers(-1, 5),
        st.binary(max_size=30) | st.just(b"\0\5PLAIN") | st.just(b"\0\0\0\5alice"),
    )
)


@given(st.lists(FRAMES, max_size=5), st.integers(0, 60_000))
def test_any_frames_are_answered_or_end_the_connection(frames: list[bytes], max_reauth_ms: int) -> None:
    world = World(max_reauth_ms)
    world.shared.warnings = Mock(warn=note_warning)
    served: list[int] = []

    def dispatch(_connection: object, buffer: memoryview, start: int, _end: int) -> bytes:
        served.append(int.from_bytes(buffer[start : start + 2], "big"))
        return struct.pack(">iih", 6, 7, 0)

    world.dispatcher.dispatch = dispatch  # type: ignore[assignment,method-assign]
    world.socket, world.transport, world.connection = world._connect()
    for frame in frames:
        world.ask(struct.pack(">i", len(frame)) + frame)
        if world.transport.is_aborted:
            break
    for _, timer in world.timers:
        if not timer.is_cancelled:
            timer.callback()
    if not any(b"PLAIN" in frame for frame in frames):
        assert world.connection.caller.principal == ANONYMOUS
        assert served in ([], [18]), "an ApiVersions at most"


def note_warning(*_: object, error: BaseException | None = None, **__: object) -> None:
    """No frame may lead to a bug's traceback."""
    assert error is None, error


def test_a_large_api_versions_is_the_only_one_too() -> None:
    """A thread decodes it, and it is answered later."""
    world = World()
    world.dispatcher.handlers[7] = lambda _: PENDING
    world.ask(other_request(7, 18))
    world.complete(7)
    world.turns()
    assert world.ask(other_request(8, 18)) == b""
    assert world.dispatcher.served == [7]


def test_a_text_of_the_client_s_begins_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World()
    world.ask(handshake("X\nWARNING forged"))
    (record,) = caplog.records
    assert record.getMessage().endswith(r"(Unsupported SASL mechanism X\nWARNING forged)")


def test_a_token_that_takes_a_thread_is_answered_when_that_has_worked() -> None:
    world = World()
    world.ask(handshake())
    sent = len(world.socket.sent)
    world.receive(authenticate("slow") + other_request(7))
    assert len(world.socket.sent) == sent
    assert world.connection.caller.principal == ANONYMOUS
    world.turns()
    assert world.socket.sent[sent:] == success() + answer(7)
    assert world.connection.caller.principal == Principal("User", "slow")


def test_a_token_that_takes_a_thread_may_be_bare() -> None:
    world = World()
    world.ask(handshake(version=0))
    assert world.ask(struct.pack(">i", 4) + b"slow") == struct.pack(">i", 7) + b"welcome"


def test_a_token_that_takes_a_thread_is_refused_as_any_other() -> None:
    world = World()
    world.ask(handshake())
    assert world.ask(authenticate("slow bad")) == b""
    world.timers[-1][1].callback()
    text = "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    assert world.socket.sent.endswith(refusal(text))
    assert world.transport.is_aborted


def test_a_thread_that_fails_or_is_late_ends_the_connection_alone() -> None:
    world = World()
    world.ask(handshake())
    assert world.ask(authenticate("broken")) == b""
    assert world.transport.is_aborted
    world = World()
    world.ask(handshake())
    sent = len(world.socket.sent)
    world.receive(authenticate("slow"))
    world.connection.connection_lost(None)
    world.turns()
    assert len(world.socket.sent) == sent
    assert counts_of(world) == {}


# -- sessions with a lifetime


def test_a_session_ends_for_all_requests_but_a_handshake() -> None:
    world = World(max_reauth_ms=60_000)
    assert world.log_in() == success(lifetime_ms=60_000)
    world.loop.moment += 59.999
    assert world.ask(other_request(7)) == answer(7)
    world.loop.moment += 0.001
    assert world.ask(other_request(8)) == b""
    assert world.transport.is_aborted
    assert world.dispatcher.served == [7]


def test_a_session_goes_on_after_a_re_authentication() -> None:
    world = World(max_reauth_ms=60_000)
    world.log_in()
    world.loop.moment += 61
    assert world.log_in() == success(lifetime_ms=60_000)
    assert world.ask(other_request(7, padding=5000)) == answer(7)


def test_a_re_authentication_waits_for_the_requests_before_it() -> None:
    world = World(max_reauth_ms=60_000)
    world.log_in()
    world.dispatcher.handlers[7] = lambda _: PENDING
    assert world.ask(other_request(7) + handshake() + authenticate("alice")) == b""
    sent = len(world.socket.sent)
    world.complete(7)
    world.turns()
    assert world.socket.sent[sent:].startswith(answer(7))
    assert world.socket.sent.endswith(success(lifetime_ms=60_000))


def test_the_credential_limits_the_session_too() -> None:
    world = World(max_reauth_ms=60_000)
    now_ms = world.loop.time_ms()
    assert world.log_in(f"alice until {now_ms + 5000}") == success(lifetime_ms=5000)
    world = World()
    world.ask(handshake())
    ended = world.ask(authenticate(f"alice until {now_ms - 5000}") + other_request(7))
    assert ended == success(lifetime_ms=0), "and nothing is served, even in the same moment"
    assert world.transport.is_aborted
    assert not world.dispatcher.served


def test_a_re_authentication_begins_once_a_second_at_most() -> None:
    world = World(max_reauth_ms=60_000)
    world.log_in()
    world.log_in()
    world.loop.moment += 0.5
    world.dispatcher.served.clear()
    world.ask(handshake())
    assert world.dispatcher.served == [5], "it is answered as on any other session"
    world.loop.moment += 0.5
    assert world.log_in() == success(lifetime_ms=60_000)


@pytest.mark.parametrize(
    ("mechanism", "user", "text"),
    [
        ("PLAIN", "bob", "Cannot change principals during re-authentication from User.alice: User.bob"),
        (
            "OTHER",
            "alice",
            "SASL mechanism 'OTHER' requested by client is not supported for re-authentication of mechanism 'PLAIN'",
        ),
        (
            "PLAIN",
            "bad",
            "Authentication failed during re-authentication due to invalid credentials with SASL mechanism PLAIN",
        ),
        ("PLAIN", "worse", "worse"),
    ],
)
def test_refused_re_authentications(mechanism: str, user: str, text: str) -> None:
    world = World(max_reauth_ms=60_000)
    world.log_in()
    world.ask(handshake(mechanism))
    world.ask(authenticate(user))
    world.timers[-1][1].callback()
    assert world.socket.sent.endswith(refusal(text))
    assert world.transport.is_aborted
    assert world.connection.caller.principal.name == "alice"


def test_no_other_request_during_a_re_authentication() -> None:
    world = World(max_reauth_ms=60_000)
    world.log_in()
    world.ask(handshake())
    world.ask(other_request(7))
    world.timers[-1][1].callback()
    assert world.dispatcher.served == []
    assert world.transport.is_aborted


# -- what is counted


def counts_of(world: World) -> dict[str, int]:
    """Those that are not 0."""
    counts = world.connection.authentications
    return {name: count for name in counts.__slots__ if (count := getattr(counts, name))}


def test_what_is_counted_of_authentications() -> None:
    world = World()
    world.log_in()
    assert counts_of(world) == {"successful": 1}
    world = World()
    world.ask(handshake())
    world.ask(authenticate("more"))
    assert counts_of(world) == {}
    world.ask(authenticate("bad"))
    assert counts_of(world) == {"failed": 1}
    world = World()
    world.ask(other_request(7, PRODUCE))
    assert counts_of(world) == {"failed": 1}
    world = World()
    world.receive(struct.pack(">i", 1001))
    assert counts_of(world) == {"failed": 1}


@pytest.mark.parametrize("is_raw", [False, True])
def test_clients_that_cannot_re_authenticate_are_counted(is_raw: bool) -> None:
    world = World()
    world.ask(handshake(version=0 if is_raw else 1))
    world.ask(struct.pack(">i", 5) + b"alice" if is_raw else authenticate("alice", version=0))
    assert counts_of(world) == {"successful": 1, "successful_no_reauth": 1}


def test_what_is_counted_of_re_authentications() -> None:
    world = World(max_reauth_ms=60_000)
    world.log_in()
    world.log_in()
    assert counts_of(world) == {"successful": 1, "successful_reauthentications": 1}
    world.loop.moment += 2
    world.log_in("bob")
    assert counts_of(world) == {
        "successful": 1,
        "successful_reauthentications": 1,
        "failed_reauthentications": 1,
    }
    world = World(max_reauth_ms=60_000)
    world.log_in()
    world.loop.moment += 60
    world.ask(other_request(7))
    assert counts_of(world) == {"successful": 1, "expired_connections_killed": 1}
