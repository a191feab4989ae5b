"""Requests of a broker to itself."""

from __future__ import annotations

from typing import Any

import msgspec

from barnabas.broker.cluster.brokers import Brokers
from barnabas.broker.requests.context import CLOSE_CONNECTION, RequestContext
from barnabas.broker.security.caller import Caller
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from compat_tests.virtual.runtime import VirtualRuntime

NODE_ID = 1
TIMEOUT_S = 35.0
NO_ANSWER = (None, ErrorCode.NETWORK_EXCEPTION)


class World:
    """One broker, whose handlers answer when the test says."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.served: list[RequestContext[Any]] = []
        self.answers: list[tuple[Any, ErrorCode]] = []
        self.brokers = Brokers(
            self.runtime, NODE_ID, "test", self._context, self._serve, peers=None, timeout_s=TIMEOUT_S
        )

    def _context(
        self, reply: Any, api_key: int, version: int, client_id: str | None, caller: Caller
    ) -> RequestContext[Any]:
        return RequestContext(None, reply, api_key, version, 0, client_id, caller)

    def _serve(self, context: RequestContext[Any], _request: msgspec.Struct) -> None:
        self.served.append(context)

    def ask(self, node_id: int = NODE_ID) -> None:
        self.brokers.ask(node_id, 24, 5, AddPartitionsToTxnRequest(), self._answered)

    def _answered(self, response: Any, error: ErrorCode) -> None:
        self.answers.append((response, error))


def test_a_request_to_this_broker_is_answered_once() -> None:
    world = World()
    world.ask()
    response = AddPartitionsToTxnResponse()
    world.served[0].complete(response)
    world.runtime.advance(2 * TIMEOUT_S)
    assert world.answers == [(response, ErrorCode.NONE)]
    assert world.runtime.next_timer_at() is None


def test_a_request_to_this_broker_that_takes_too_long_fails_as_one_to_another_does() -> None:
    world = World()
    world.ask()
    world.runtime.advance(TIMEOUT_S - 1)
    assert not world.answers
    world.runtime.advance(1)
    assert world.answers == [NO_ANSWER]
    world.served[0].complete(AddPartitionsToTxnResponse())
    world.runtime.advance(2 * TIMEOUT_S)
    assert world.answers == [NO_ANSWER], "the late answer is ignored"


def test_a_request_to_this_broker_without_a_response() -> None:
    world = World()
    world.ask()
    world.served[0].complete(CLOSE_CONNECTION)
    world.runtime.advance(2 * TIMEOUT_S)
    assert world.answers == [NO_ANSWER]


def test_there_is_no_other_broker() -> None:
    world = World()
    world.ask(NODE_ID + 1)
    world.runtime.run_until_idle()
    assert not world.served
    assert world.answers == [NO_ANSWER]


def test_nothing_is_called_back_after_the_close() -> None:
    world = World()
    world.ask()
    world.brokers.close()
    world.runtime.advance(TIMEOUT_S)
    assert not world.answers
