"""Authenticates brokers to each other on a connection to the inter-broker listener.

    follower                              leader
    AuthenticateBroker: its hello    ->
                                     <-   its own hello
    AuthenticateBroker: its proof    ->   the connection belongs to that broker from here on
                                     <-   its own proof; requests follow

A leader accepts a Fetch with a replica id only on a connection that is authenticated as that broker, and a follower fetches
only from a leader that has answered with a proof. The proof is that of controller links (controller/link/auth.py): an HMAC
under keys derived from the cluster's secret and both hellos. Those have a nonce of each side, the cluster id, both broker ids,
the broker epoch and the listener, so a recorded proof is valid on no other connection, broker or listener. It is the listener of
the connection, which is the connecting broker's inter.broker.listener.name and need not be the other's: brokers change theirs one
after the other.

AuthenticateBroker is not an API of Kafka's. It has the layout of SaslAuthenticate version 0 and is not advertised. It is not
SASL: a connection has one SASL login, which the operator chooses (sasl.mechanism.inter.broker.protocol), and CLUSTER_ACTION
decides whether that principal may act as a broker. Neither identifies the broker.

Only the beginning of a connection is authenticated. Protection against an attacker who can change packets requires TLS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.controller.link.auth import INTER_BROKER_LISTENER, NONCE_BYTES, Seal, seals
from barnabas.controller.metadata.errors import UNREADABLE
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.primitives import DecodeError

if TYPE_CHECKING:
    from barnabas.broker.requests.context import RequestContext
    from barnabas.broker.security.sasl_client import NewSaslClient
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime

TOKEN_BYTES_MAX: Final = 1024  # a hello has some 100
_REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_MALFORMED: Final = "an AuthenticateBroker that no broker sends"
_OTHER_SECRET: Final = "the proof does not fit: one of the two brokers has another barnabas.controller.secret.file, or is none of the cluster"


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The first token of each side. `peer_id`: the broker that it is sent to."""

    cluster_id: str
    broker_id: int
    broker_epoch: int
    peer_id: int
    listener: str
    nonce: bytes


class AuthenticationRefused(Exception):
    """The other side is no broker of the cluster, or addresses another broker than this one."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class Handshake:
    """A connection after the exchange of hellos. `hello` is the other side's, not verified yet."""

    __slots__ = ("_receiving", "_sending", "hello")

    def __init__(self, hello: Hello, seals: tuple[Seal, Seal]) -> None:
        self.hello = hello
        self._sending, self._receiving = seals

    def prove(self) -> bytes:
        """This side's proof."""
        return self._sending.next(b"", b"")

    def verify(self, proof: bytes) -> None:
        """AuthenticationRefused."""
        if not self._receiving.verify(b"", b"", proof):
            raise AuthenticationRefused(_REFUSED, _OTHER_SECRET)


class InterBrokerAuthentication:
    """Authenticates this broker and its peers. `image()` is the metadata, `broker_epoch()` is that of this broker's
    registration."""

    def __init__(
        self,
        runtime: Runtime,
        secret: bytes,
        *,
        cluster_id: str,
        broker_id: int,
        broker_epoch: Callable[[], int],
        listener: str,
        image: Callable[[], MetadataImage],
        login: NewSaslClient | None = None,
    ) -> None:
        """`login`: by SASL, before anything else, where the inter-broker listener asks for it."""
        self.login = login
        self._runtime = runtime
        self._secret = secret
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._listener = listener
        self._image = image
        self._refusals = RepeatedWarnings(runtime, logging.getLogger("barnabas.replication"))

    def hello(self, peer_id: int) -> bytes:
        """The first token to send to a broker."""
        return self._hello(peer_id, self._listener)

    def _hello(self, peer_id: int, listener: str) -> bytes:
        hello = Hello(
            self._cluster_id,
            self._broker_id,
            self._broker_epoch(),
            peer_id,
            listener,
            self._runtime.random_bytes(NONCE_BYTES),
        )
        return msgspec.msgpack.encode(hello)

    # -- the connecting side

    def greeted(self, peer_id: int, own: bytes, token: bytes) -> Handshake:
        """The broker has answered the hello `own` with `token`. DecodeError, AuthenticationRefused."""
        hello = _decode(token)
        self._check(hello, self._listener)
        if hello.broker_id != peer_id:
            raise AuthenticationRefused(
                _REFUSED, f"broker {hello.broker_id} answers where broker {peer_id} is registered"
            )
        return Handshake(hello, self._seals(own, token, dialed=True))

    # -- the accepting side

    def serve(
        self, context: RequestContext[Any], request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse:
        """The next step of a connection. DecodeError closes it."""
        peer = context.reply.peer
        if len(request.auth_bytes) > TOKEN_BYTES_MAX or peer.broker_id >= 0:
            raise DecodeError(_MALFORMED)
        token = bytes(request.auth_bytes)  # a copy: the receive buffer is reused
        handshake, peer.handshake = peer.handshake, None
        if not isinstance(handshake, Handshake):
            hello = _decode(token)
            own = self._hello(hello.broker_id, context.listener)
            peer.handshake = Handshake(hello, self._seals(token, own, dialed=False))
            return SaslAuthenticateResponse(auth_bytes=own)
        try:
            handshake.verify(token)
            self._check(handshake.hello, context.listener)
            self._check_epoch(handshake.hello)
        except AuthenticationRefused as refused:
            host = context.client_host
            line = f"{host}: not authenticated as a broker of the cluster: {refused}"
            self._refusals.warn(host, refused.error.name, line)
            return SaslAuthenticateResponse(error_code=refused.error, error_message=str(refused))
        peer.broker_id = handshake.hello.broker_id
        return SaslAuthenticateResponse(auth_bytes=handshake.prove())

    # -- both

    def _seals(self, dialer_hello: bytes, listener_hello: bytes, *, dialed: bool) -> tuple[Seal, Seal]:
        return seals(self._secret, dialer_hello, listener_hello, dialed=dialed, purpose=INTER_BROKER_LISTENER)

    def _check(self, hello: Hello, listener: str) -> None:
        wrong = ""
        if not self._secret and listener != self._listener:  # that of brokers alone is on loopback
            wrong = f"without a secret brokers connect to the listener {self._listener} alone"
        elif hello.cluster_id != self._cluster_id:
            wrong = f"it belongs to cluster {hello.cluster_id}, and broker {self._broker_id} to {self._cluster_id}"
        elif hello.peer_id != self._broker_id:
            wrong = f"it calls broker {hello.peer_id}, and this is broker {self._broker_id}"
        elif hello.broker_id == self._broker_id:
            wrong = f"two brokers have node.id={self._broker_id}"
        elif hello.listener != listener:
            wrong = f"it names listener {hello.listener} for a connection to listener {listener}"
        if wrong:
            raise AuthenticationRefused(_REFUSED, wrong)

    def _check_epoch(self, hello: Hello) -> None:
        known = self._image().brokers.get(hello.broker_id)
        if known is not None and hello.broker_epoch < known.broker_epoch:
            raise AuthenticationRefused(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {hello.broker_id} is registered in broker epoch {known.broker_epoch} by now, and this is "
                f"{hello.broker_epoch}",
            )


def _decode(token: bytes) -> Hello:
    """DecodeError."""
    try:
        hello = msgspec.msgpack.decode(token, type=Hello)
    except UNREADABLE:
        raise DecodeError(_MALFORMED) from None
    if len(hello.nonce) != NONCE_BYTES or hello.broker_id < 0 or hello.broker_epoch < 0:
        raise DecodeError(_MALFORMED)
    return hello
