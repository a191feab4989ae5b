"""What is kept of requests: those that fail, too, and no more than there is room for."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.testing import Broker
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.faults import requests, waiting
from barnabas.wire.messages.heartbeat import HeartbeatRequest

pytestmark = pytest.mark.sockets

HEARTBEAT, FETCH = 12, 1


def test_a_request_that_cannot_be_read_is_there() -> None:
    with Broker() as broker:
        client = RawClient(broker.port)
        frame = client.frame(HEARTBEAT, 4, HeartbeatRequest(group_id="g"))
        client.socket.sendall((len(frame) - 7).to_bytes(4, "big") + frame[4:-3])
        assert client.is_closed()
        client.socket.close()
        (recorded,) = broker.requests.wait_for("Heartbeat", answered=True)
        assert (recorded.outcome, recorded.answer) == ("closed", None)


def test_a_request_of_an_api_that_there_is_not_is_there() -> None:
    with Broker() as broker:
        client = RawClient(broker.port)
        frame = client.frame(HEARTBEAT, 4, HeartbeatRequest(group_id="g"))
        client.socket.sendall(frame[:4] + (999).to_bytes(2, "big") + frame[6:])
        assert client.is_closed()
        client.socket.close()
        (line,) = broker.requests.transcript()
        assert " c 999 v4 -> closed" in line


def test_a_change_after_the_end_of_a_waiting_loop_has_no_effect() -> None:
    loop = asyncio.new_event_loop()
    changed = asyncio.Event()
    waiting._set_soon(changed, loop)
    loop.close()
    waiting._set_soon(changed, loop)


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as broker:
        client = RawClient(broker.port)
        ask = HeartbeatRequest(group_id="g", member_id="m")
        for number in range(20):
            monkeypatch.setattr(requests, "COUNT_MAX", 5 if number < 10 else 100)
            client.ask(HEARTBEAT, 4, ask)
        kept = list(broker.requests)
        assert [each.correlation_id for each in kept] == list(range(6, 21))
        size = sum(each.size for each in kept)
        assert size == sum(len(each.request_bytes) + each.answer_size for each in kept)
        assert broker.requests._bytes == size
        monkeypatch.setattr(requests, "BYTES_MAX", size // 3)
        client.ask(HEARTBEAT, 4, ask)
        client.socket.close()
        assert len(broker.requests) == 5
        assert sum(each.size for each in broker.requests) <= size // 3
        assert all(each.answer.error_code for each in broker.requests)
