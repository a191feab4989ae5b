"""The web console at the port of the controls."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from barnabas.testing import Broker
from barnabas.testing.control import Control
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.tests.transactional_client import TransactionalClient
from barnabas.wire.messages.metadata import MetadataRequest
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

METADATA = 3


@pytest.fixture(params=[1, 3])
def control(request: pytest.FixtureRequest) -> Iterator[Control]:
    with Broker(nodes=request.param) as broker:
        made = Control(broker)
        yield made
        made.close()


def get(control: Control, path: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(control.url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def view(control: Control, path: str) -> Any:
    status, body = get(control, f"/console/api/{path}")
    assert status == 200, body
    return json.loads(body)


def test_the_page_and_its_views(control: Control) -> None:
    broker = control.broker
    broker.create_topic("t", partitions=6, replication_factor=len(broker.nodes))
    broker.seed("t", [b"%d" % number for number in range(12)])
    status, page = get(control, "/console")  # the client follows to /console/
    assert status == 200
    assert b"<title>Barnabas" in page
    assert get(control, "/console/main.js")[0] == 200
    found = view(control, "overview")
    assert (len(found["brokers"]), found["is_test_broker"]) == (len(broker.nodes), True)
    partitions = view(control, "topic?topic=t")["partitions"]
    assert {row["leader"] for row in partitions} == {node.node_id for node in broker.nodes}
    assert sum(row["end"] for row in partitions) == 12
    assert all(row["size"] is not None for row in partitions)
    page = view(control, "messages?topic=t&from=start")
    assert (len(page["records"]), page["is_end"], page["problems"]) == (12, True, [])


def test_large_records_are_read_from_their_leaders(control: Control) -> None:
    broker = control.broker
    broker.create_topic("t", partitions=3, configs={"max.message.bytes": 3_000_000})
    broker.seed("t", [{"value": bytes(2_500_000), "partition": index} for index in range(3)])
    page = view(control, "messages?topic=t&from=start")
    assert page["problems"] == []
    assert [record["value"]["size"] for record in page["records"]] == [2_500_000] * 3


def test_transactions(control: Control) -> None:
    control.broker.create_topic("t", partitions=1)
    client = TransactionalClient(control.broker, "id")
    for value, commits in ((b"aborted", False), (b"committed", True), (b"aborted too", False)):
        assert eventually(lambda value=value: client.send("t", value) == 0)
        assert client.end(commit=commits) == 0
    assert eventually(lambda: client.send("t", b"open") == 0)

    def values(**query: str) -> list[bytes]:
        page = view(control, f"messages?{urlencode({'topic': 't', 'from': 'start', **query})}")
        return [base64.b64decode(record["value"]["data"]) for record in page["records"]]

    assert values() == [b"aborted", b"committed", b"aborted too", b"open"]
    assert values(committed="true") == [b"committed"]
    client.close()


def test_rules_and_requests(control: Control) -> None:
    control.broker.create_topic("t", partitions=6)
    control.broker.on("Produce", topic="t").error("NOT_LEADER_OR_FOLLOWER")
    control.broker.on("ListOffsets").error("NOT_LEADER_OR_FOLLOWER")
    for version in (4, 5):
        RawClient(control.broker.nodes[0].port).ask(METADATA, version, MetadataRequest())
    assert [each["version"] for each in json.loads(get(control, "/requests?last=1")[1])] == [5]
    assert json.loads(get(control, "/requests?last=0")[1]) == []
    assert view(control, "topic?topic=t")["problems"] == [], "rules are about clients"
    found = view(control, "test")
    assert [(rule["api"], rule["hits"]) for rule in found["rules"]] == [("Produce", 0), ("ListOffsets", 0)]
    assert [(each["api"], each["version"]) for each in found["requests"]] == [
        ("Metadata", 5),
        ("Metadata", 4),
    ]
    assert [node["running"] for node in found["nodes"]] == [True] * len(control.broker.nodes)


def test_another_node_is_asked_when_one_stops(control: Control) -> None:
    broker = control.broker
    if len(broker.nodes) == 1:
        broker.stop_node(1)
        assert get(control, "/console/api/overview")[0] == 503
        assert get(control, "/console/")[0] == 200
        return
    stopped = view(control, "overview")["node_id"]
    broker.stop_node(stopped)
    found = view(control, "overview")
    assert found["node_id"] != stopped
    eventually(
        lambda: (
            {each["state"] for each in view(control, "overview")["brokers"] if each["id"] == stopped}
            == {"fenced"}
        )
    )


def test_partitions_without_a_leader(control: Control) -> None:
    broker = control.broker
    if len(broker.nodes) == 1:
        pytest.skip("its only node is the console's")
    broker.create_topic("t", partitions=3, replication_factor=1)
    broker.seed("t", [{"value": b"%d" % index, "partition": index} for index in range(3)])
    shown = view(control, "overview")["node_id"]
    dead = next(node.node_id for node in broker.nodes if node.node_id != shown)
    broker.kill_node(dead)
    eventually(lambda: view(control, "overview")["counts"]["offline"] > 0)
    rows = view(control, "topic?topic=t")["partitions"]
    assert [row["end"] for row in rows if row["leader"] < 0] == [None]
    assert [row["end"] for row in rows if row["leader"] >= 0] == [1, 1]
    page = view(control, f"messages?topic=t&positions={','.join(f'{index}:0' for index in range(3))}")
    assert len(page["records"]) == 2
    assert [problem.partition(": ")[2] for problem in page["problems"]] == ["it has no leader"]
    assert not page["is_end"]


def test_browsers_of_other_sites_are_refused(control: Control) -> None:
    assert get(control, "/console/", Host="evil.example")[0] == 403
    assert get(control, "/console/", Origin="http://evil.example")[0] == 403
    assert get(control, "/console/api/overview", **{"Sec-Fetch-Site": "cross-site"})[0] == 403


def test_the_console_is_loaded_when_it_is_opened() -> None:
    code = (
        "import sys; from barnabas.testing import Broker; from barnabas.testing.control import Control\n"
        "with Broker() as broker:\n"
        "    control = Control(broker)\n"
        "    print('barnabas.console.console' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
