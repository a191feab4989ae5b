"""Connections to other brokers' inter-broker listeners, made when there is something to ask and closed when there was
nothing for a while. Every request gets one answer, or one error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from barnabas.broker.cluster.peer_client import InterBrokerClient, inter_broker_address
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.runtime.interface import Timer

IDLE_S: Final = 60.0

Answered: TypeAlias = Callable[[Any, ErrorCode], object]  # a response, or None and why there is none


class PeerTerms(msgspec.Struct, frozen=True):
    """What is asked of peers, and what becomes of requests without an answer.

    A request that could not be sent within `request_timeout_s` ends with `timeout_error`; with `gives_up_sent` also one that
    was sent. A connection that is silent for `connection_timeout_s` is closed; its requests end with `disconnect_error`.
    """

    purpose: str  # in the client id, for the other broker's log
    request_timeout_s: float
    connection_timeout_s: float
    timeout_error: ErrorCode
    disconnect_error: ErrorCode
    gives_up_sent: bool


class Peers:
    """By node id. All calls on the loop's thread."""

    def __init__(self, host: ExtensionHost, terms: PeerTerms) -> None:
        self._host = host
        self._terms = terms
        self._links: dict[int, _Link] = {}

    def ask(
        self, node_id: int, api_key: int, version: int, request: msgspec.Struct, answered: Answered
    ) -> None:
        """`answered(response, NONE)` or `answered(None, error)`, once."""
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = _Link(
                self._host, node_id, self._terms, partial(self._drop, node_id)
            )
        link.ask(api_key, version, request, answered)

    def close(self) -> None:
        """Nobody gets an answer any more."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _drop(self, node_id: int) -> None:
        self._links.pop(node_id).close()


class _Link:
    """The connection to one of them."""

    def __init__(
        self, host: ExtensionHost, node_id: int, terms: PeerTerms, idle: Callable[[], object]
    ) -> None:
        self._terms = terms
        self._runtime = host.runtime
        # What has no answer yet.
        self._waiting: dict[int, tuple[int, int, msgspec.Struct, Answered]] = {}
        self._number = 0
        self._idle = idle
        self._idle_timer: Timer | None = None
        self._client = InterBrokerClient(
            self._runtime,
            f"broker-{host.node_id}-{terms.purpose}",
            lambda: inter_broker_address(host.controller.image, node_id, host.config.inter_broker_listener),
            self._connected,
            self._lost,
            authentication=host.inter_broker_authentication,
            broker_id=node_id,
            timeout_s=terms.connection_timeout_s,
        )

    def ask(self, api_key: int, version: int, request: msgspec.Struct, answered: Answered) -> None:
        self._number += 1
        number = self._number
        self._waiting[number] = api_key, version, request, answered
        self._stay()
        is_connected = self._client.is_connected
        if self._terms.gives_up_sent or not is_connected:
            self._runtime.call_later(self._terms.request_timeout_s, partial(self._too_late, number))
        if is_connected:
            self._send(number)
        else:
            self._client.open()

    def close(self) -> None:
        self._waiting.clear()
        self._stay()
        self._client.close()

    def _stay(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _connected(self) -> None:
        for number in tuple(self._waiting):
            self._send(number)

    def _send(self, number: int) -> None:
        api_key, version, request, _ = self._waiting[number]
        self._client.send(
            api_key, version, request, lambda response: self._end(number, response, ErrorCode.NONE)
        )

    def _too_late(self, number: int) -> None:
        if self._terms.gives_up_sent or not self._client.is_connected:
            self._end(number, None, self._terms.timeout_error)

    def _lost(self, _why: str) -> None:
        for number in tuple(self._waiting):
            self._end(number, None, self._terms.disconnect_error)

    def _end(self, number: int, response: Any, error: ErrorCode) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return  # its time was up, or the connection has ended
        if not self._waiting:
            self._idle_timer = self._runtime.call_later(IDLE_S, self._idle)
        waiting[3](response, error)
