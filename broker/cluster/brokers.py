"""Requests of this broker to any broker of the cluster, itself included.

A node that is alone asks itself only, and does not load what connects to others (peers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from barnabas.broker.requests.context import LocalReply
from barnabas.broker.security.caller import own_caller, own_client_id
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.peer_client import Answered
    from barnabas.broker.cluster.peers import Peers
    from barnabas.broker.requests.context import NewContext, RequestContext
    from barnabas.runtime.interface import Runtime, Timer


class Brokers:
    """See the module. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        node_id: int,
        purpose: str,
        new_context: NewContext,
        call: Callable[[RequestContext[Any], msgspec.Struct], object],
        peers: Peers | None,
        timeout_s: float,
    ) -> None:
        """`node_id`: this broker's. `purpose`: part of the client id. `call` serves a request to itself. `peers`: None where there
        are no other brokers. A request to this broker that is not answered within `timeout_s` ends with NETWORK_EXCEPTION."""
        self._runtime = runtime
        self._node_id = node_id
        self._client_id = own_client_id(node_id, purpose)
        self._new_context = new_context
        self._call = call
        self._peers = peers
        self._timeout_s = timeout_s
        self._is_closed = False

    def ask(
        self, node_id: int, api_key: int, version: int, request: msgspec.Struct, answered: Answered
    ) -> None:
        """See AskBroker."""
        if node_id == self._node_id:
            self._serve(api_key, version, request, answered)
        elif self._peers is not None:
            self._peers.ask(node_id, api_key, version, request, answered)
        else:
            self._answer(answered, None)

    def close(self) -> None:
        """Close all connections. No callback is called any more."""
        self._is_closed = True
        if self._peers is not None:
            self._peers.close()

    def _serve(self, api_key: int, version: int, request: msgspec.Struct, answered: Answered) -> None:
        is_over = False
        timer: Timer | None = None

        def done(response: Any = None) -> None:
            nonlocal is_over
            if is_over:  # the answer after the timeout
                return
            is_over = True
            if timer is not None:
                timer.cancel()
            self._answer(answered, response)

        reply = LocalReply(done, done)
        self._call(
            self._new_context(reply, api_key, version, self._client_id, own_caller(self._node_id)), request
        )
        if not is_over:
            timer = self._runtime.call_later(self._timeout_s, done)

    def _answer(self, answered: Answered, response: Any) -> None:
        if not self._is_closed:
            answered(response, ErrorCode.NETWORK_EXCEPTION if response is None else ErrorCode.NONE)
