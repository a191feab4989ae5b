"""SASL on controller listeners (controller/link/sasl.py): the login and the authenticator of all listeners, with Kafka's requests
and responses in the frames of a link.

A session ends with its credential, and after connections.max.reauth.ms. The caller logs in again before (KIP-368); the listener
closes the link of one that does not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from barnabas.broker.cluster.sasl_login import VERSION, SaslLogin
from barnabas.broker.network.authentication_counts import AuthenticationCounts
from barnabas.broker.network.sasl_authenticator import REAUTHENTICATION_INTERVAL_S, SaslAuthenticator
from barnabas.broker.requests.context import Outcome
from barnabas.broker.security.caller import ANONYMOUS, Caller
from barnabas.broker.security.sasl import SaslFailure
from barnabas.controller.link.messages import MalformedMessage, busy
from barnabas.controller.link.sasl import login_refused
from barnabas.wire.frame import SIZE_BYTES
from barnabas.wire.headers import RequestHeader, decode_response_header, encode_request_header
from barnabas.wire.primitives import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.broker.network.session import RequestServer
    from barnabas.broker.requests.context import RequestContext, Requester
    from barnabas.broker.requests.dispatch import Answer
    from barnabas.broker.security.sasl import SaslListener
    from barnabas.broker.security.sasl_client import NewSaslClient
    from barnabas.controller.link.sasl import NewLinkSasl, SaslUser
    from barnabas.runtime.interface import Runtime, Timer

REAUTHENTICATION_FROM: Final = 0.85  # of a session's lifetime, as Kafka's clients
REAUTHENTICATION_TO: Final = 0.95
# Of connection.failed.authentication.delay.ms: a handshake of links has 3 s.
FAILURE_DELAY_MAX_S: Final = 1.0


class ControllerSasl(NamedTuple):
    """SASL between this node and controllers, or with controllers that it calls as well."""

    login: NewLinkSasl | None  # on connections that this node opens
    listeners: Mapping[str, NewLinkSasl]  # by name, of those that use SASL
    authentications: Mapping[str, AuthenticationCounts]  # of these


def controller_sasl(
    runtime: Runtime, login: NewSaslClient | None, listeners: Mapping[str, SaslListener]
) -> ControllerSasl:
    counts = {name: AuthenticationCounts() for name in listeners}
    return ControllerSasl(
        None if login is None else login_to_links(runtime, login),
        {
            name: authentication_of_links(runtime, each, name, counts[name])
            for name, each in listeners.items()
        },
        counts,
    )


def login_to_links(runtime: Runtime, login: NewSaslClient) -> NewLinkSasl:
    """The logins of this node on the connections that it opens."""
    return partial(LinkLogin, runtime, login)


def authentication_of_links(
    runtime: Runtime, listener: SaslListener, name: str, counts: AuthenticationCounts
) -> NewLinkSasl:
    """Authenticates the callers of the controller listener of this name."""
    return partial(LinkAuthentication, runtime, listener, name, counts)


class LinkLogin:
    """The caller's side of a connection's logins."""

    def __init__(self, runtime: Runtime, login: NewSaslClient, user: SaslUser) -> None:
        self._runtime = runtime
        self._new_client = login
        self._user = user
        self._login: SaslLogin | None = None  # that goes on
        self._api_key = 0  # of the request without an answer
        self._correlation_id = 0
        self._timer: Timer | None = None  # until the next login

    def begin(self) -> None:
        self._timer = None
        try:
            self._login = SaslLogin(self._new_client())
        except SaslFailure as failure:  # no token yet
            self._user.login_failed(busy(f"the login by SASL can't begin: {failure.reason}"))
            return
        self._send(*self._login.first())

    def _send(self, api_key: int, body: bytes) -> None:
        self._api_key = api_key
        self._correlation_id += 1
        header = encode_request_header(RequestHeader(api_key, VERSION, self._correlation_id, None))
        self._user.send_sasl(header + body)

    def received(self, payload: bytes) -> None:
        login = self._login
        if login is None:
            raise MalformedMessage("an answer to no login by SASL")
        try:
            correlation_id, start = decode_response_header(self._api_key, VERSION, payload)
            if correlation_id != self._correlation_id:
                raise MalformedMessage("an answer to another request of the login by SASL")
            request = login.answered(payload, start)
        except DecodeError as error:
            raise MalformedMessage(f"an answer of the login by SASL can't be read: {error}") from None
        except SaslFailure as failure:
            self._login = None
            self._user.login_failed(login_refused(failure.reason or "", by_peer=True))
            return
        if request is not None:
            self._send(*request)
            return
        self._login = None
        share = self._runtime.random.uniform(REAUTHENTICATION_FROM, REAUTHENTICATION_TO)
        next_s = login.lifetime_ms / 1000 * share
        # Sooner, the listener would refuse it, and the link ends with the session.
        if next_s > REAUTHENTICATION_INTERVAL_S:
            self._timer = self._runtime.call_later(next_s, self.begin)
        self._user.logged_in()

    def close(self) -> None:
        self._login = None
        if self._timer is not None:
            self._timer.cancel()


class LinkAuthentication:
    """The listener's side: a connection as the authenticator knows it, which serves nothing else."""

    caller: Caller

    def __init__(
        self,
        runtime: Runtime,
        listener: SaslListener,
        name: str,
        counts: AuthenticationCounts,
        user: SaslUser,
    ) -> None:
        self.runtime = runtime
        self.listener = name
        self.authentications = counts
        self.client_host = user.peer_host
        self.caller = Caller(ANONYMOUS, name, user.peer_host)
        self.dispatcher = _NO_REQUESTS
        self.request_max_bytes = 0
        self._user = user
        self._authenticator = SaslAuthenticator(listener, self, self, lambda *_: Outcome.CLOSE)
        self._is_pending = False  # the request is refused, after a delay, or a thread works for it
        self.closed = False
        self._timer: Timer | None = None  # until the session ends, or a refusal is sent

    # -- for the link

    def begin(self) -> None:
        """The caller begins."""

    def received(self, payload: bytes) -> None:
        is_over = self._authenticator.is_authenticated and self._authenticator.session_left_s() is None
        if self._is_pending or is_over:
            raise MalformedMessage("a request behind the login by SASL")
        try:
            answer = self._authenticator.serve(memoryview(payload))
        except DecodeError as error:
            raise MalformedMessage(f"a request of the login by SASL can't be read: {error}") from None
        if answer is Outcome.PENDING:
            self._is_pending = True
        elif isinstance(answer, bytes):
            self._answer(answer)
        else:
            raise MalformedMessage("a request that is no login by SASL")

    def _answer(self, answer: bytes) -> None:
        self._user.send_sasl(answer[SIZE_BYTES:])
        if self._authenticator.is_authenticated:
            self._begin_session()

    def close(self, reason: str = "") -> None:
        """`reason`: why the authenticator closes the connection."""
        self.closed = True
        self._stop_timer()
        if reason:
            self._user.login_failed(login_refused(reason))

    def _begin_session(self) -> None:
        self._stop_timer()
        left_s = self._authenticator.session_left_s()
        if left_s is not None and left_s <= 0:  # a token within the clock skew, or a delegation token
            self._user.login_failed(login_refused("its token has expired by the clock of this node"))
            return
        if left_s is not None:
            self._timer = self.runtime.call_later(left_s, self._session_ended)
        self._user.logged_in()

    def _session_ended(self) -> None:
        self._timer = None
        self._user.login_failed(busy("the session of its login by SASL has ended"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- for the authenticator

    def serve_by(self, _server: RequestServer, _frame_max_bytes: int) -> None:
        """Nothing else is served here."""

    def answer_client(self, answer: Answer) -> None:
        self._is_pending = False
        assert isinstance(answer, bytes)
        self._answer(answer)

    def refuse_client(self, answer: Answer | None, reason: str, delay_s: float) -> Outcome:
        self._stop_timer()

        def end() -> None:
            self._timer = None
            if isinstance(answer, bytes):
                self._user.send_sasl(answer[SIZE_BYTES:])
            self._user.login_failed(login_refused(reason))

        self._timer = self.runtime.call_later(min(delay_s, FAILURE_DELAY_MAX_S), end)
        return Outcome.PENDING


class _NoRequests:
    """In place of the dispatcher: a link has frames of its own for everything but the login."""

    def dispatch(self, _connection: Requester, _buffer: memoryview, _start: int, _end: int) -> Outcome:
        return Outcome.CLOSE

    def encode(self, _context: RequestContext[Any], _response: msgspec.Struct) -> Answer:
        raise NotImplementedError  # no request is dispatched, so there is no response


_NO_REQUESTS: Final = _NoRequests()
