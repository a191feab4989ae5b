"""Connections to other brokers' inter-broker listeners, opened for the first request and closed when idle. Every request
gets one response, or one error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.broker.cluster.peer_client import SMALL_ANSWER_BYTES, Answered, ClientTls, InterBrokerClient
from barnabas.broker.security.caller import own_client_id
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
    from barnabas.runtime.interface import Runtime, Timer

IDLE_S: Final = 60.0
FETCH: Final = 1


class PeerTerms(msgspec.Struct, frozen=True):
    """Timeouts of requests to peers, and the errors of requests without a response.

    A request that could not be sent within `request_timeout_s` ends with `timeout_error`; with `gives_up_sent` also one that
    was sent. A connection that is silent for `connection_timeout_s` is closed; its requests end with `disconnect_error`.
    """

    purpose: str  # part of the client id, for the other broker's log
    request_timeout_s: float
    connection_timeout_s: float
    timeout_error: ErrorCode
    disconnect_error: ErrorCode
    gives_up_sent: bool
    fetch_max_bytes: int = 0  # of an answer with records; 0: none is asked for


class Peers:
    """Connections to brokers by node id. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        endpoint: Callable[[int], tuple[str, int] | None],
        authentication: InterBrokerAuthentication | None,
        terms: PeerTerms,
        tls: ClientTls | None = None,
    ) -> None:
        """`node_id`: this broker's. `endpoint(node_id)`: the present address of a broker; None when it is not known. `tls()`: of the
        inter-broker listener."""
        self._runtime = runtime
        self._endpoint = endpoint
        self._authentication = authentication
        self._client_id = own_client_id(node_id, terms.purpose)
        self._terms = terms
        self._tls = tls
        self._links: dict[int, _Link] = {}

    def ask(
        self, node_id: int, api_key: int, version: int, request: msgspec.Struct, answered: Answered
    ) -> None:
        """`answered(response, NONE)` or `answered(None, error)`, once."""
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = self._link(node_id)
        link.ask(api_key, version, request, answered)

    def _link(self, node_id: int) -> _Link:
        def client(connected: Callable[[], object], lost: Callable[[str], object]) -> InterBrokerClient:
            return InterBrokerClient(
                self._runtime,
                self._client_id,
                partial(self._endpoint, node_id),
                connected,
                lost,
                authentication=self._authentication,
                broker_id=node_id,
                timeout_s=self._terms.connection_timeout_s,
                tls=self._tls,
            )

        return _Link(self._runtime, self._terms, client, partial(self._drop, node_id))

    def close(self) -> None:
        """Closes all connections. No callback is called any more."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _drop(self, node_id: int) -> None:
        self._links.pop(node_id).close()


class _Link:
    """The connection to one broker."""

    def __init__(
        self,
        runtime: Runtime,
        terms: PeerTerms,
        client: Callable[[Callable[[], object], Callable[[str], object]], InterBrokerClient],
        idle: Callable[[], object],
    ) -> None:
        self._terms = terms
        self._runtime = runtime
        # API key, version, request and callback by number, without a response so far
        self._waiting: dict[int, tuple[int, int, msgspec.Struct, Answered]] = {}
        self._number = 0
        self._idle = idle
        self._idle_timer: Timer | None = None
        self._client = client(self._connected, self._lost)

    def ask(self, api_key: int, version: int, request: msgspec.Struct, answered: Answered) -> None:
        self._number += 1
        number = self._number
        self._waiting[number] = api_key, version, request, answered
        self._cancel_idle_timer()
        is_connected = self._client.is_connected
        if self._terms.gives_up_sent or not is_connected:
            self._runtime.call_later(self._terms.request_timeout_s, partial(self._timed_out, number))
        if is_connected:
            self._send(number)
        else:
            self._client.open()

    def close(self) -> None:
        self._waiting.clear()
        self._cancel_idle_timer()
        self._client.close()

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _connected(self) -> None:
        for number in tuple(self._waiting):
            self._send(number)

    def _send(self, number: int) -> None:
        api_key, version, request, _ = self._waiting[number]
        self._client.send(
            api_key,
            version,
            request,
            lambda response: self._end(number, response, ErrorCode.NONE),
            answer_max_bytes=self._terms.fetch_max_bytes if api_key == FETCH else SMALL_ANSWER_BYTES,
        )

    def _timed_out(self, number: int) -> None:
        if self._terms.gives_up_sent or not self._client.is_connected:
            self._end(number, None, self._terms.timeout_error)

    def _lost(self, _why: str) -> None:
        for number in tuple(self._waiting):
            self._end(number, None, self._terms.disconnect_error)

    def _end(self, number: int, response: Any, error: ErrorCode) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return  # it timed out, or the connection was lost
        if not self._waiting:
            self._idle_timer = self._runtime.call_later(IDLE_S, self._idle)
        waiting[3](response, error)
