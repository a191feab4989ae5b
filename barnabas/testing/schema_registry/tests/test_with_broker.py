"""The registry of a broker: where it listens, and what becomes of it with the broker."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from barnabas.testing import Broker, BrokerFailed
from barnabas.testing.control import Control
from barnabas.testing.schema_registry.routes import CONTENT_TYPE
from barnabas.testing.schema_registry.tests.asked import record
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

ONE, TWO = record("a"), record("a", ("b", ""))


def ask(url: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": CONTENT_TYPE}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return json.load(answer)


def test_it_listens_when_it_is_asked_for() -> None:
    broker = Broker()
    with pytest.raises(BrokerFailed):
        broker.schema_registry_url  # noqa: B018 - it raises
    with broker:
        assert broker.schema_registry.register("s", ONE) == 1
        url = broker.schema_registry_url
        assert url == broker.schema_registry_url
        assert url.startswith("http://127.0.0.1:")
        assert ask(f"{url}/subjects") == ["s"]
        with pytest.raises(urllib.error.HTTPError) as raised:
            ask(f"{url}/subjects/none/versions")
        assert raised.value.code == 404
        assert raised.value.headers["Content-Type"] == CONTENT_TYPE
        assert json.load(raised.value)["error_code"] == 40401


def test_a_broker_that_is_started_again_has_it_at_the_same_address() -> None:
    broker = Broker()
    with broker:
        url = broker.schema_registry_url
        broker.schema_registry.register("s", ONE)
    with pytest.raises(OSError, match="refused"):
        ask(f"{url}/subjects")
    with broker:
        assert ask(f"{url}/subjects") == ["s"]
        assert broker.schema_registry_url == url


def test_a_port_that_is_taken_meanwhile() -> None:
    broker = Broker()
    with broker:
        port = int(broker.schema_registry_url.split(":")[2].split("/")[0])

    async def start() -> None:
        async with broker:
            pass

    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(OSError, match="in use"):
            broker.start()
        with pytest.raises(OSError, match="in use"):
            asyncio.run(start())
    with broker:
        assert ask(f"{broker.schema_registry_url}/subjects") == []


def test_reset_snapshot_and_restore() -> None:
    with Broker() as broker:
        without = broker.snapshot()
        broker.schema_registry.register("s", ONE)
        taken = broker.snapshot()
        broker.schema_registry.register("s", TWO)
        broker.restore(taken)
        assert len(broker.schema_registry.schemas("s")) == 1
        broker.recover()
        broker.restart_node(1)
        assert broker.schema_registry.subjects() == ["s"]
        with Broker(snapshot=taken) as other:
            assert other.schema_registry.subjects() == ["s"]
            assert other.schema_registry.register("s", TWO) == 2
        assert len(broker.schema_registry.schemas("s")) == 1
        broker.reset()
        assert broker.schema_registry.subjects() == []
        assert broker.schema_registry.register("t", TWO) == 1
        broker.restore(without)
        assert broker.schema_registry.subjects() == []


def test_the_controls_have_it_too() -> None:
    with Broker() as broker:
        control = Control(broker)
        with urllib.request.urlopen(f"{control.url}/status", timeout=60) as answer:
            url = json.load(answer)["schema_registry_url"]
        assert url == control.schema_registry_url == f"{control.url}/schema-registry"
        registered = ask(f"{url}/subjects/s/versions", "POST", {"schema": json.dumps(ONE)})
        assert registered["id"] == 1
        assert ask(f"{broker.schema_registry_url}/subjects") == ["s"]
        host, port = control.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", "/reset")
        assert connection.getresponse().status == 204
        connection.close()
        assert ask(f"{url}/subjects") == []
        control.close()


def test_requests_at_once() -> None:
    """Each subject gets its versions in one order, and each schema one id."""
    with Broker() as broker:
        url = broker.schema_registry_url
        schemas = [record(*((f"f{index}", "") for index in range(count))) for count in range(5)]
        answers: list[Any] = []

        def register(subject: str) -> None:
            for schema in schemas:
                body = {"schema": json.dumps(schema)}
                answers.append(ask(f"{url}/subjects/{subject}/versions", "POST", body))

        threads = [threading.Thread(target=register, args=(f"s{index % 2}",)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({(each["id"], each["guid"]) for each in answers}) == len(schemas)
        assert ask(f"{url}/subjects/s0/versions") == [1, 2, 3, 4, 5]


@pytest.mark.own_process
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_nothing_of_it_stays(run: Callable[[Any], None]) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def once() -> None:
        with Broker() as broker:
            assert ask(f"{broker.schema_registry_url}/subjects") == []

    async def in_the_loop() -> None:
        async with Broker() as broker:
            assert await asyncio.to_thread(ask, f"{broker.schema_registry_url}/subjects") == []

    def both() -> None:
        once()
        run(in_the_loop())

    both()
    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        both()
    assert descriptors() <= before
    eventually(lambda: threading.active_count() <= threads)
