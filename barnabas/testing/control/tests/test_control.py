"""The controls over HTTP, of a broker in this process."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from barnabas.testing import Broker
from barnabas.testing.control import Control
from barnabas.testing.control.http import BOUNDS
from barnabas.testing.control.openapi import description
from barnabas.testing.control.table import CONTROLS
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.schema_registry.routes import REGISTRY
from barnabas.testing.tests.transactional_client import TransactionalClient
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.records import iterate_records
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

FETCH, METADATA, HEARTBEAT = 1, 3, 12


class Http:
    """Asks a control, as a test in another language does."""

    def __init__(self, control: Control) -> None:
        self.url = control.url
        self._server = control._server.server

    def bound(self, **bounds: float) -> None:
        """Change bounds of the server."""
        self._server.bounds = msgspec.structs.replace(BOUNDS, **bounds)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def done(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(method, path, body)
        assert status in (200, 204), answer
        return answer


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def http(broker: Broker) -> Iterator[Http]:
    control = Control(broker)
    http = Http(control)
    yield http
    http.done("POST", "/reset")
    control.close()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    client = RawClient(broker.port)
    yield client
    client.socket.close()


def test_the_description_and_the_routes_agree(http: Http) -> None:
    document = http.done("GET", "/openapi.json")
    assert document["openapi"] == "3.1.0"
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    routes = [*CONTROLS.routes, *REGISTRY.routes]
    assert told == {(route.method, route.path) for route in routes}
    assert len(told) == len(routes)
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
    references = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= set(document["components"]["schemas"])
    for route in routes:
        operation = document["paths"][route.path][route.method.lower()]
        in_path = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", route.path))
        assert ("requestBody" in operation) == (route.body is not None)
    assert description("http://x")["servers"] == [{"url": "http://x"}]


def test_topics_and_records(http: Http) -> None:
    http.done("POST", "/topics", {"name": "orders", "partitions": 2, "configs": {"retention.ms": "-1"}})
    assert http.done("GET", "/topics") == {"orders": 2}
    given = [
        {"value": "a", "key": "k", "partition": 1, "headers": [["h", "x"]]},
        {"value_base64": "/w==", "partition": 0},
    ]
    http.done("POST", "/topics/orders/records", given)
    first, second = http.done("GET", "/topics/orders/records")
    assert (first["partition"], first["value_base64"]) == (0, "/w==")
    assert (second["partition"], second["offset"], second["value"], second["key"]) == (1, 0, "a", "k")
    assert second["headers"] == [["h", "x"]]
    assert len(http.done("GET", "/topics/orders/records?partition=1")) == 1
    assert http.done("GET", "/topics/orders/config")["retention.ms"] == "-1"
    taken = http.done("POST", "/snapshots")["id"]
    http.done("DELETE", "/topics/orders")
    assert http.done("GET", "/topics") == {}
    http.done("POST", f"/snapshots/{taken}/restore")
    assert http.done("GET", "/topics/orders/records") == [first, second]
    given = [first, {"key": 1, "value": {"a": [1]}, "headers": {"h": None}, "partition": 0}]
    http.done("POST", "/topics/again/records", given)
    again, third = http.done("GET", "/topics/again/records")
    assert again == first
    assert (third["key"], third["value"], third["headers"]) == ("1", '{"a":[1]}', [["h", None]])
    assert http.done("GET", "/groups") == []


def test_a_rule_from_its_making_to_its_end(http: Http, client: RawClient) -> None:
    rule = http.done(
        "POST", "/rules", {"api": "Heartbeat", "group": "g", "times": 2, "error": "REBALANCE_IN_PROGRESS"}
    )
    assert client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g")).error_code == 27
    assert http.done("GET", f"/rules/{rule['id']}")["hits"] == 1
    http.done("DELETE", f"/rules/{rule['id']}")
    assert client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g")).error_code == 16
    assert http.done("GET", "/rules") == []
    http.done("POST", "/rules", {"api": "Metadata", "answer": {"controller_id": 77}})
    assert client.ask(METADATA, 9, MetadataRequest(topics=None)).controller_id == 77


def test_a_fetch_fails_in_one_partition_or_is_answered(http: Http, client: RawClient) -> None:
    http.done("POST", "/topics", {"name": "fetched", "partitions": 2})
    partitions = [FetchPartition(partition=index, partition_max_bytes=1_000_000) for index in (0, 1)]
    request = FetchRequest(topics=[FetchTopic(topic="fetched", partitions=partitions)])
    rule = http.done("POST", "/rules", {"api": "Fetch", "partition": 1, "error": "OFFSET_OUT_OF_RANGE"})
    (topic,) = client.ask(FETCH, 12, request).responses
    assert {each.partition_index: each.error_code for each in topic.partitions} == {0: 0, 1: 1}
    http.done("DELETE", f"/rules/{rule['id']}")
    told = {"partition_index": 0, "records": [{"key": "k", "value": {"n": 1}, "headers": {"h": "1"}}]}
    answer = {"responses": [{"topic": "fetched", "partitions": [told]}]}
    http.done("POST", "/rules", {"api": "Fetch", "topic": "fetched", "answer": answer})
    (topic, rest) = client.ask(FETCH, 12, request).responses
    (record,) = iterate_records(bytes(topic.partitions[0].records))
    assert (record.key, record.value, record.headers) == (b"k", b'{"n":1}', [("h", b"1")])
    assert rest.partitions[0].partition_index == 1


def test_hold_and_release(http: Http, client: RawClient) -> None:
    rule = http.done("POST", "/rules", {"api": "Metadata", "hold": True})
    client.socket.sendall(client.frame(METADATA, 9, MetadataRequest(topics=None)))
    http.done("GET", "/requests?api=Metadata&timeout_s=30")
    assert http.done("GET", f"/rules/{rule['id']}")["held"] == 1
    http.done("POST", f"/rules/{rule['id']}/release", {})
    assert client.receive(METADATA, 9)[1].brokers


def test_requests_are_waited_for(http: Http, client: RawClient) -> None:
    asking = threading.Timer(0.05, lambda: client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g")))
    asking.start()
    (asked,) = http.done("GET", "/requests?api=Heartbeat&timeout_s=30&answered=true&decoded=true")
    asking.join()
    assert asked["request"]["group_id"] == "g"
    assert asked["answer"]["error_code"] == 16
    assert http.ask("GET", "/requests?api=JoinGroup&timeout_s=0.01")[0] == 409
    http.done("DELETE", "/requests")
    assert http.done("GET", "/requests") == []


def test_links(http: Http, client: RawClient) -> None:
    link = http.done("POST", "/links", {"latency_s": 0.05, "client_id": "c"})
    client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g"))
    (asked,) = http.done("GET", "/requests?api=Heartbeat")
    assert asked["answered_ms"] - asked["received_ms"] >= 49
    assert [each["id"] for each in http.done("GET", "/links")] == [link["id"]]
    http.done("DELETE", f"/links/{link['id']}")


def test_partitions_groups_upkeep_and_the_clock(http: Http, client: RawClient) -> None:
    http.done("POST", "/topics", {"name": "t", "configs": {"cleanup.policy": "compact"}})
    before = http.done("GET", "/topics/t/partitions/0")
    assert http.done("POST", "/topics/t/partitions/0/epoch")["leader_epoch"] == before["leader_epoch"] + 1
    assert http.ask("POST", "/topics/t/partitions/0/leader", {})[0] == 400
    assert http.ask("POST", "/topics/t/partitions/0/isr", {"isr": [2]})[0] == 400
    http.done("POST", "/restore-isr")
    http.done("POST", "/topics/t/records", [{"key": "k", "value": "1"}, {"key": "k", "value": "2"}])
    http.done("POST", "/compaction", {"topic": "t"})
    http.done("POST", "/retention", {})
    assert [each["value"] for each in http.done("GET", "/topics/t/records")] == ["2"]
    ahead = http.done("GET", "/clock")["ahead_s"]
    assert http.done("POST", "/clock", {"seconds": 5})["ahead_s"] == ahead + 5
    assert http.ask("GET", "/groups/g/coordinator")[0] == 404
    assert http.ask("POST", "/groups/g/rebalance")[0] == 404


def test_nodes(http: Http) -> None:
    for what, running, paused in (
        ("pause", True, True),
        ("resume", True, False),
        ("kill", False, False),
        ("start", True, False),
        ("restart", True, False),
        ("stop", False, False),
        ("start", True, False),
    ):
        http.done("POST", f"/nodes/1/{what}")
        (node,) = http.done("GET", "/status")["nodes"]
        assert (node["running"], node["paused"]) == (running, paused), what
    assert http.ask("POST", "/nodes", {})[0] == 400
    assert http.ask("POST", "/nodes/9/kill")[0] == 404


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /status HTTP/2\r\n\r\n", 400),
        (b"GET /status HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /status HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /topics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /topics HTTP/1.1\r\nContent-Length: 1\r\n\r\n{", 400),
        (b"GET /status HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", 431),
        (b"GET /rules/%ff%00 HTTP/1.1\r\n\r\n", 404),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"POST /reset HTTP/1.1\r\nOrigin: http://example.com\r\n\r\n", 403),
        (b"GET /status HTTP/1.1\r\nHost: rebound.example.com:9093\r\n\r\n", 403),
        (b"GET /status HTTP/1.1\r\nHost: 127.0.0.1.example.com\r\n\r\n", 403),
        (b"GET /status HTTP/1.1\r\nHost: kafka\r\n\r\n", 403),
        (b"POST /topics HTTP/1.1\r\nHost: example.com\r\nContent-Length: 1000\r\n\r\n", 403),
        (b"GET /status HTTP/1.1\r\nHost: LOCALHOST.:9093\r\n\r\n", 200),
        (b"GET /status HTTP/1.1\r\nHost: control.localhost:9093\r\n\r\n", 200),
        (b"GET /status HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", 200),
        (b"GET /status HTTP/1.1\r\nHost: [::1]:9093\r\n\r\n", 200),
        (b"GET /status HTTP/1.1\r\n\r\n", 200),
        (b"DELETE /links/x HTTP/1.1\r\n\r\n", 400),
        (b"GET /sta", None),
        (b"", None),
    ],
)
def test_what_is_no_request_is_refused(http: Http, sent: bytes, status: int | None) -> None:
    with socket.create_connection(("127.0.0.1", int(http.url.rpartition(":")[2])), timeout=60) as client:
        answer = b""
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while data := client.recv(65536):
                answer += data
        except OSError:  # what it would not read is lost with what it had to say
            assert len(sent) > 65536
            return
        assert answer.split(b" ")[1:2] == ([] if status is None else [str(status).encode()])


def said_to(url: str, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as client:
        client.sendall(sent)
        answer = b""
        while data := client.recv(65536):
            answer += data
        return answer


def test_a_browser_is_told_what_is_wrong(http: Http) -> None:
    answer = said_to(http.url, b"GET /status HTTP/1.1\r\nHost: rebound.example.com\r\n\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
        "error": "rebound.example.com is not this machine's own name: call it by address, or as localhost"
    }


def test_containers_call_it_by_their_names(broker: Broker) -> None:
    control = Control(broker, host="0.0.0.0")
    for name, status in (("kafka:9093", b"200"), ("rebound.example.com:9093", b"403")):
        answer = said_to(control.url, b"GET /status HTTP/1.1\r\nHost: %b\r\n\r\n" % name.encode())
        assert answer.split(b" ")[1] == status
    control.close()


def half_sent(http: Http, sent: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", int(http.url.rpartition(":")[2])), timeout=60)
    client.sendall(b"POST /topics HTTP/1.1\r\nContent-Length: 60000000\r\n\r\n" + sent)
    return client


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_half_sent_bodies_make_room(http: Http) -> None:
    http.bound(held_bytes=1_000_000)
    held = [half_sent(http, bytes(300_000)) for _ in range(3)]
    more = half_sent(http, bytes(300_000))
    assert ended(held[0])  # the oldest
    assert http.ask("POST", "/topics", {"name": "roomy", "padding": "x" * 900_000})[0] == 400  # it was read
    assert all(ended(client) for client in (held[1], held[2], more))
    status, answer = http.ask("POST", "/topics", {"padding": "x" * 1_000_001})
    assert (status, answer["error"]) == (503, "requests hold 1000000 bytes already")
    http.done("GET", "/status")


def test_silent_connections_make_room(http: Http) -> None:
    silent = [half_sent(http, b"{") for _ in range(BOUNDS.unfinished + 1)]
    assert ended(silent[0])
    http.done("GET", "/status")
    for client in silent:
        client.close()


def test_a_request_that_stands_still_is_ended(http: Http) -> None:
    http.bound(idle_s=0.05)
    client = half_sent(http, b"{")
    assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
    client.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "why"),
    [
        ("GET", "/nowhere", None, 404, "no /nowhere"),
        ("DELETE", "/status", None, 405, "takes GET"),
        ("POST", "/rules", {"api": "Prodce", "close": True}, 400, "no API 'Prodce'"),
        ("POST", "/rules", {"api": "Produce"}, 400, "needs an action"),
        ("POST", "/rules", {"api": "Produce", "eror": "X"}, 400, "eror"),
        ("POST", "/rules", {"api": "Produce", "error": "NOPE"}, 400, "no error 'NOPE'"),
        (
            "POST",
            "/rules",
            {"api": "Produce", "answer": {"throttle_time_ms": "x"}},
            400,
            "no answer of Produce",
        ),
        ("POST", "/rules", {"api": "Produce", "delay_s": -1}, 400, "0 or more"),
        (
            "POST",
            "/rules",
            {"api": "Produce", "nth": 0, "close": True},
            400,
            "nth is a whole number, 1 or more",
        ),
        ("POST", "/rules", {"api": "Produce", "truncate": -1}, 400, "0 or more, and not -1"),
        ("POST", "/rules", {"api": "Produce", "truncate": 1, "served": True}, 400, "served goes with"),
        (
            "POST",
            "/rules",
            {"api": "Produce", "node": 9, "close": True},
            400,
            "there is no node 9; known are 1",
        ),
        ("POST", "/rules", {"api": "Heartbeat", "topic": "t", "close": True}, 400, "name no topics"),
        ("POST", "/links", {"latency_s": -1}, 400, "0 or more, and not -1"),
        ("POST", "/links", {"node": 2}, 400, "there is no node 2"),
        ("POST", "/rules", {"api": "Fetch", "answer": {"response": []}}, 400, "unknown field `response`"),
        (
            "POST",
            "/rules",
            {"api": "Fetch", "answer": {"responses": [{"partitions": [{"records": [{"vlue": 1}]}]}]}},
            400,
            "vlue",
        ),
        (
            "POST",
            "/rules",
            {
                "api": "Fetch",
                "answer": {
                    "responses": [{"partitions": [{"records": [{"value": "b", "offset": 3}, {"offset": 3}]}]}]
                },
            },
            400,
            "3 comes after 3",
        ),
        ("GET", "/rules/4711", None, 404, "no rule 4711"),
        ("GET", "/groups/nobody", None, 404, "no group 'nobody'"),
        ("GET", "/topics/none/records", None, 404, "no topic 'none'"),
        ("POST", "/topics/t/records", {"value": "x"}, 400, "Expected `array`"),
        ("POST", "/topics/t/records", [{"vlue": "x"}], 400, "vlue"),
        ("GET", "/requests?nope=1", None, 400, "nope"),
        ("POST", "/links", {"bytes_per_second": 0}, 400, "more than 0"),
    ],
)
def test_what_is_wrong_is_said(http: Http, method: str, path: str, body: Any, status: int, why: str) -> None:
    answered, answer = http.ask(method, path, body)
    assert answered == status
    assert why in answer["error"]
    assert http.done("GET", "/rules") == []


def test_transactions(broker: Broker, http: Http) -> None:
    http.done("POST", "/topics", {"name": "orders", "partitions": 1})
    producer = TransactionalClient(broker, "payments")
    assert producer.send("orders", b"1") == 0
    [found] = http.done("GET", "/transactions")
    assert found == http.done("GET", "/transactions/payments")
    assert (found["state"], found["is_open"], found["partitions"]) == ("Ongoing", True, [["orders", 0]])
    assert http.done("GET", "/topics/orders/records") == []
    [record] = http.done("GET", "/topics/orders/records?isolation_level=read_uncommitted")
    assert record["value"] == "1"
    rule = http.done("POST", "/hold-markers", {"topic": "orders"})
    http.done("POST", "/transactions/payments/abort")
    assert http.done("GET", "/transactions/payments")["state"] == "PrepareAbort"
    http.done("POST", f"/rules/{rule['id']}/release", {})
    eventually(lambda: http.done("GET", "/transactions/payments")["state"] == "CompleteAbort")
    http.done("POST", "/transactions/payments/fence")
    assert http.done("GET", "/transactions/payments")["state"] == "Empty"
    assert http.done("GET", "/transactions/payments/coordinator") == {"node": 1}
    http.done("POST", "/transactions/payments/coordinator/load", {})
    assert http.ask("GET", "/transactions/payments")[0] == 404
    http.done("POST", "/transactions/payments/coordinator/loaded")
    assert http.ask("POST", "/transactions/payments/coordinator/move", {})[0] == 400
    assert http.ask("POST", "/transactions/payments/timeout")[0] == 400
    assert http.ask("POST", "/transactions/unknown/abort")[0] == 404
    assert http.ask("GET", "/topics/orders/records?isolation_level=all")[0] == 400
    producer.close()
