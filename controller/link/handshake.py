"""The handshake that turns a connection into a link.

    dialer                                listener
    SASL                         <->                        a login, where the listener asks for one (sasl.py)
    HELLO                         ->                        versions, how to authenticate, a nonce
                                  <-      HELLO             from here on every frame is sealed, with a secret
    IDENTITY                      ->                        identity; the first sealed frame proves the secret
                                  <-      IDENTITY
    WELCOME                      <->                        from the decider: this connection is the link

Of two nodes that may call each other one decides which connection is the link: the lower node id among controllers, else the
controller. So both always choose the same one. Either side may answer REFUSED with a reason for the other side's operator. When
the peer's id is that of a node with an open link, that node is probed first. A controller that has joined a quorum since it sent its
identity closes the connection instead of opening the link: as long as that lasted the peer would not know with which metadata
directory it has joined (raft/voters.py).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.controller.link import messages
from barnabas.controller.link.admission import check_hello, check_identity
from barnabas.controller.link.auth import NONCE_BYTES, seals
from barnabas.controller.link.connection import Connection
from barnabas.controller.link.framing import FRAME_BYTES_MAX, PREFACE, ForgedFrame
from barnabas.controller.link.messages import (
    AUTHENTICATION_NONE,
    AUTHENTICATION_SECRET,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    Hello,
    Identity,
    LinkRefused,
    MalformedMessage,
    RefusalCode,
    Refused,
    busy,
    decode,
    encode,
)
from barnabas.controller.link.sasl import NewLinkSasl, login_missing, login_unexpected
from barnabas.controller.link.wrong_protocol import asks_for_api_versions, describe_caller

if TYPE_CHECKING:
    from barnabas.controller.link.connection import LinkSettings
    from barnabas.controller.link.traffic import LinkTraffic
    from barnabas.runtime.interface import Runtime, Timer

HELD_FRAMES_MAX: Final = 4096
HELD_BYTES_MAX: Final = 1024 * 1024

_HUNG_UP: Final = (
    "what answers there hangs up before it sends a byte: is it a controller listener (and not a broker's port), with the "
    "same security protocol?"
)
_OTHER_SECRET: Final = (
    "its frames are not sealed with this cluster's secret: its barnabas.controller.secret.file holds another one, or "
    "it is no node of the cluster"
)


class HungUp(ConnectionResetError):
    """The called node closed the connection before it sent anything."""


class Step(Enum):
    """What a handshake waits for."""

    CONNECTION = auto()
    LOGIN = auto()
    HELLO = auto()
    IDENTITY = auto()
    ADMISSION = auto()  # the host decides; reading is paused
    WELCOME = auto()
    OVER = auto()  # nothing more: the link is open, or refused


class Host(Protocol):
    """The node, as its handshakes use it."""

    runtime: Runtime
    settings: LinkSettings
    secret: bytes | None
    identity: Identity
    traffic: LinkTraffic

    def admit(self, handshake: Handshake, then: Callable[[LinkRefused | None], object]) -> None:
        """Whether this node's other links allow one with the identified peer; calls `then` once, now or later."""
        ...

    def opened(self, handshake: Handshake) -> None:
        """The link is open: its frames go to the host from now on."""
        ...

    def ended(self, handshake: Handshake, error: Exception) -> None:
        """The handshake has failed. Called once, instead of `opened`."""
        ...


class Handshake:
    """One handshake. `expected_id`: of the node that should answer; None for the listener, or where it is not known."""

    def __init__(
        self,
        host: Host,
        *,
        dialed: bool,
        expected_id: int | None = None,
        on_made: Callable[[], object] = lambda: None,
        sasl: NewLinkSasl | None = None,
    ) -> None:
        """`sasl`: this side's, where the listener asks for a login."""
        self._host = host
        self._sasl = sasl
        self._on_made = on_made  # the connection is made
        self.dialed = dialed
        self.expected_id = expected_id
        self.version = PROTOCOL_VERSION_MIN  # after the peer's hello: the version in common
        self.connection = Connection(host.runtime, host.settings.queue_bytes_max, self, host.traffic)
        self.peer: Identity | None = None  # set when it is admissible, or a voter with another directory
        self.other_directory: LinkRefused | None = None  # the refusal of that voter
        self._hello = self._own_hello()
        self._hello_bytes = encode(self._hello)
        self._step = Step.CONNECTION
        self._sent: Identity | None = None  # by which the peer will know this node
        self._held: list[tuple[int, bytes]] = []  # frames received before this side has decided
        self._held_bytes = 0
        self._refusal: LinkRefused | None = None  # of a Kafka client that still gets its answer
        self._timer: Timer | None = None
        if not dialed:  # under TLS the connection is reported only after the TLS handshake
            self._start_timer()

    def _own_hello(self) -> Hello:
        kind = AUTHENTICATION_NONE if self._host.secret is None else AUTHENTICATION_SECRET
        nonce = self._host.runtime.random_bytes(NONCE_BYTES)
        return Hello(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION, kind, nonce)

    @property
    def we_decide(self) -> bool:
        assert self.peer is not None
        own = self._host.identity
        if own.is_controller and self.peer.is_controller:
            return own.node_id < self.peer.node_id
        return own.is_controller

    def abandon(self) -> None:
        """Close; the host gets no callback."""
        self._finish()
        self.connection.abort(None)

    def _start_timer(self) -> None:
        self._timer = self._host.runtime.call_later(self._host.settings.hello_timeout_s, self._timed_out)

    # -- the connection's user

    def made(self) -> None:
        self._step = Step.HELLO if self._sasl is None else Step.LOGIN
        if self._timer is None:
            self._start_timer()
        self._on_made()
        if self._sasl is not None:
            self.connection.sasl = self._sasl(self)
            self.connection.sasl.begin()
        elif self.dialed:
            self.connection.send(messages.HELLO, self._hello_bytes)

    def closed(self, error: Exception | None) -> None:
        if self._step is Step.OVER:
            return
        is_hang_up = error is None or isinstance(error, ConnectionResetError | BrokenPipeError)
        is_silent = self._step in (Step.LOGIN, Step.HELLO) and not self.connection.reader.first_bytes
        if is_hang_up and self.dialed and is_silent:
            error = HungUp(_HUNG_UP)
        self._end(self._refusal or error or ConnectionResetError("it was closed before the link was open"))

    def malformed(self, error: MalformedMessage) -> None:
        first = self.connection.reader.first_bytes
        if isinstance(error, ForgedFrame):
            self.refuse(LinkRefused(RefusalCode.AUTHENTICATION, _OTHER_SECRET))
        elif first.startswith(PREFACE):
            self.refuse(LinkRefused(RefusalCode.MALFORMED, str(error)))
        elif self._refusal is None and asks_for_api_versions(first):
            # Answer it, and keep the connection until the timeout.
            self._refusal = LinkRefused(RefusalCode.MALFORMED, describe_caller(first))
            self.connection.answer_kafka(self.connection.reader.received)
        else:
            self.connection.abort(self._refusal or LinkRefused(RefusalCode.MALFORMED, describe_caller(first)))

    def _timed_out(self) -> None:
        waited = self._host.settings.hello_timeout_s
        what = f"no link within {waited:g} s of connecting"
        if self._step is Step.CONNECTION:
            what = f"no TLS within {waited:g} s: it speaks plain text, or its certificate is not accepted"
        self.connection.abort(TimeoutError(what))

    def frame(self, kind: int, payload: bytes) -> None:
        try:
            self._handle(kind, payload)
        except LinkRefused as refused:
            self.refuse(refused)

    # -- the user of SASL

    @property
    def peer_host(self) -> str:
        return self.connection.peer_host

    def send_sasl(self, payload: bytes) -> None:
        self.connection.send(messages.SASL, payload)

    def logged_in(self) -> None:
        if self._step is not Step.LOGIN:
            return  # again, on the open link
        self._step = Step.HELLO
        if self.dialed:
            self.connection.send(messages.HELLO, self._hello_bytes)

    def login_failed(self, refused: LinkRefused) -> None:
        if self._step is Step.OVER:
            self.connection.abort(refused)
        else:
            self._end(refused)
            self.connection.close()

    # -- the steps

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind == messages.REFUSED:
            self.connection.abort(LinkRefused.from_peer(decode(payload, Refused)))
        elif self._step is Step.LOGIN:
            self._take_login(kind, payload)
        elif self._step is Step.HELLO:
            if kind == messages.SASL and self._sasl is None:
                raise login_unexpected()
            self._expect(kind, messages.HELLO)
            self._take_hello(payload)
        elif self._step is Step.IDENTITY:
            self._expect(kind, messages.IDENTITY)
            self._take_identity(payload)
        elif self._step is Step.ADMISSION:
            self._hold(kind, payload)
        else:
            self._expect(kind, messages.WELCOME)
            if self.we_decide:
                raise MalformedMessage("a welcome from the side that does not decide")
            self._open()

    def _take_login(self, kind: int, payload: bytes) -> None:
        if kind == messages.HELLO and not self.dialed:
            raise login_missing()
        self._expect(kind, messages.SASL)
        assert self.connection.sasl is not None
        self.connection.sasl.received(payload)

    def _hold(self, kind: int, payload: bytes) -> None:
        """Keep frames that came together with the identity."""
        if len(self._held) >= HELD_FRAMES_MAX or self._held_bytes + len(payload) > HELD_BYTES_MAX:
            raise busy("it sends too much before its link is admitted")
        self._held.append((kind, payload))
        self._held_bytes += len(payload)

    @staticmethod
    def _expect(kind: int, expected: int) -> None:
        if kind != expected:
            raise MalformedMessage(f"a frame of kind {kind} where one of kind {expected} is expected")

    def _take_hello(self, payload: bytes) -> None:
        self._step = Step.IDENTITY
        hello = decode(payload, Hello)
        if not self.dialed:
            self.connection.send(messages.HELLO, self._hello_bytes)
        check_hello(self._hello, hello)
        self.version = min(PROTOCOL_VERSION, hello.version_max)
        secret = self._host.secret
        if secret is not None:
            hellos = (self._hello_bytes, payload) if self.dialed else (payload, self._hello_bytes)
            sending, receiving = seals(secret, *hellos, dialed=self.dialed)
            self.connection.seal, self.connection.reader.seal = sending, receiving
        if self.dialed:
            self._send_identity()

    def _send_identity(self) -> None:
        self._sent = self._host.identity
        self.connection.send(messages.IDENTITY, encode(self._sent))

    def _take_identity(self, payload: bytes) -> None:
        peer = decode(payload, Identity)
        try:
            check_identity(self._host.identity, peer, self.expected_id)
        except LinkRefused as refused:
            if refused.code != RefusalCode.DIRECTORY:
                raise
            # A voter that was wiped, or a second node with the id of a linked one: the host probes that one.
            self.other_directory = refused
        self.peer = peer
        self._step = Step.ADMISSION
        self.connection.reader.bytes_max = FRAME_BYTES_MAX
        self._host.admit(self, self._decided)
        if self._step is Step.ADMISSION:
            self.connection.pause_reading()

    def _decided(self, refused: LinkRefused | None) -> None:
        if self._step is Step.OVER:
            return
        refused = refused or self.other_directory
        if refused is not None:
            self.refuse(refused)
            return
        self._step = Step.WELCOME
        self.connection.resume_reading()
        if not self.dialed:
            self._send_identity()
        if self.we_decide:
            self.connection.send(messages.WELCOME, b"")
            self._open()
        held, self._held = self._held, []
        for kind, payload in held:
            if self.connection.closed:
                return
            try:
                self.connection.user.frame(kind, payload)
            except MalformedMessage as error:
                self.connection.user.malformed(error)

    def _open(self) -> None:
        own, sent = self._host.identity, self._sent
        if own.is_controller and sent is not None and _membership(own) != _membership(sent):
            self.connection.abort(
                ConnectionResetError("this node has joined a quorum since it sent its identity")
            )
            return
        self._finish()
        self._host.opened(self)

    def refuse(self, refused: LinkRefused) -> None:
        """Send the reason to the peer, and close."""
        if self._step is Step.OVER:
            return
        self.connection.send(messages.REFUSED, encode(refused.message()))
        self._end(refused)
        self.connection.close()

    def _end(self, error: Exception) -> None:
        if self._step is not Step.OVER:
            self._finish()
            self._host.ended(self, error)

    def _finish(self) -> None:
        self._step = Step.OVER
        if self._timer is not None:
            self._timer.cancel()


def _membership(identity: Identity) -> tuple[str, bytes]:
    """What changes when a controller joins or forms a quorum."""
    return identity.cluster_id, identity.join_id
