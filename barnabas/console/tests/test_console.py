"""The console's listener on a whole node: its JSON, its live tail, and whom it serves."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.groups.consumer.embedded_protocol import encoded_assignment
from barnabas.broker.tests.reply import encoded, send
from barnabas.console import groups, messages, tail
from barnabas.console.cluster import TEXT_MAX, Places
from barnabas.console.console import PAGE
from barnabas.console.extension import LISTENER, LOOPBACK, ConsoleExtension, _address
from barnabas.console.tests.console_node import ConsoleNode
from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.procedures import Procedure, pause
from barnabas.tests.product import ROOT
from barnabas.wire.compression import Codec
from barnabas.wire.messages.consumer_protocol import (
    CONSUMER_PROTOCOL_ASSIGNMENT,
    ConsumerProtocolAssignment,
)
from barnabas.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignmentTopicPartition as Assigned,
)
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from barnabas.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, Subtopology, Topology
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from barnabas.wire.record_batch import read_header, seal_batch
from barnabas.wire.records import Record, build_batch
from barnabas.wire.uuids import uuid_to_string
from compat_tests.virtual.runtime import VirtualRuntime

BATCH_HEADER = 61
JOIN_GROUP, SYNC_GROUP = 11, 14


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ConsoleNode]:
    made = ConsoleNode(f"log.dirs={tmp_path}")
    yield made
    made.node.stop()


def value_of(row: Any, name: str = "value") -> bytes:
    return base64.b64decode(row[name]["data"])


def values(page: Any) -> list[bytes]:
    return [value_of(row) for row in page["records"]]


# -- whom it serves


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST.:9", 200),
        ("console.localhost:80", 200),
        ("127.0.0.1:9080", 200),
        ("[::1]:9080", 200),
        ("10.1.2.3", 200),
        ("broker.example:9080", 200),  # advertised
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:9080", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_only_the_brokers_own_names_are_served(tmp_path: Path, host: str, status: int) -> None:
    node = ConsoleNode(f"log.dirs={tmp_path}", "advertised.listeners=PLAINTEXT://broker.example:9092")
    for target in ("/", "/api/overview"):
        assert node.request(target, host=host).status == status
    node.node.stop()


def test_no_other_site_reads_it(node: ConsoleNode) -> None:
    for site in ("cross-site", "same-site"):
        assert node.request("/api/overview", sec_fetch_site=site).status == 403
        assert node.request("/api/tail?topic=t", sec_fetch_site=site).status == 403
        assert node.request("/", sec_fetch_site=site).status == 200  # a link to the console
    assert node.request("/api/overview", sec_fetch_site="same-origin").status == 200
    for origin in ("http://evil.example", "null", "http://localhost"):
        assert node.request("/main.js", origin=origin).status == 403
    assert node.request("/main.js", origin=f"http://localhost:{node.port}").status == 200
    assert (
        node.request("/main.js", origin="https://10.1.2.3", host="10.1.2.3").status == 200
    )  # behind a proxy


def test_every_answer_has_the_headers_that_keep_scripts_out(node: ConsoleNode) -> None:
    node.create("t")
    for target in (
        "/",
        "/main.js",
        "/style.css",
        "/api/overview",
        "/api/nothing",
        "/nothing",
        "/api/tail?topic=t",
    ):
        head = node.request(target).head
        policy = re.search(r"Content-Security-Policy: (.*)", head)
        assert policy is not None
        assert policy[1].startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
        )
        assert "unsafe" not in policy[1]
        assert "X-Content-Type-Options: nosniff" in head
        assert "Access-Control" not in head


def test_it_changes_nothing(node: ConsoleNode) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        answer = node.request("/api/topics", method)
        assert answer.status == 405
        assert "Allow: GET" in answer.head


@pytest.mark.parametrize(
    "target", ["/../console.py", "/%2e%2e/console.py", "//etc/passwd", "/page/main.js", "http://["]
)
def test_only_the_page_is_served(node: ConsoleNode, target: str) -> None:
    assert node.request(target).status in (400, 404)


def test_the_page_is_served_as_it_lies_there(node: ConsoleNode) -> None:
    for path in PAGE.iterdir():
        assert node.request(f"/{path.name}").body == path.read_bytes()
    assert node.request("/").body == (PAGE / "index.html").read_bytes()


# -- its property


def test_where_it_listens() -> None:
    assert _address({}) is None
    assert _address({LISTENER: ""}) is None
    assert _address({LISTENER: ":9080"}) == (LOOPBACK, 9080)
    assert _address({LISTENER: "0.0.0.0:9080"}) == ("0.0.0.0", 9080)
    with pytest.raises(ConfigError, match=r"barnabas\.console\.listener"):
        BrokerConfig.from_properties({LISTENER: "nonsense"}, [ConsoleExtension()])


def test_an_open_listener_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, (address, warnings) in enumerate((("[::1]:0", 0), ("0.0.0.0:0", 1))):
        caplog.clear()
        node = ConsoleNode(f"log.dirs={tmp_path / str(number)}", address=address)
        assert sum("no login" in record.message for record in caplog.records) == warnings
        node.node.stop()


@pytest.mark.sockets
def test_a_broker_without_a_console_does_not_load_it(tmp_path: Path) -> None:
    code = (
        "import sys; from barnabas.extensions import EXTENSIONS; from barnabas.broker.node import Node; "
        "from barnabas.broker.config.broker_config import BrokerConfig; "
        "from compat_tests.virtual.runtime import VirtualRuntime; "
        f"config = BrokerConfig.load(None, {{}}, ['log.dirs={tmp_path}'], EXTENSIONS); "
        "Node(config, VirtualRuntime(), extensions=EXTENSIONS).start(); "
        "print(sorted(each for each in sys.modules if 'console' in each or 'http' in each))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "['barnabas.console', 'barnabas.console.extension']\n"


# -- the overview and topics


def test_the_overview(node: ConsoleNode) -> None:
    node.create("t", 3)
    node.produce("t", b"1", b"2")
    found = node.view("overview")
    assert (found["node_id"], found["controller_id"], found["cluster_id"]) == (1, 1, node.node.cluster_id)
    (broker,) = found["brokers"]
    assert (broker["state"], broker["leaders"], broker["replicas"]) == ("serving", 3, 3)
    counts = found["counts"]
    assert (counts["topics"], counts["partitions"], counts["under_replicated"], counts["offline"]) == (
        1,
        3,
        0,
        0,
    )
    assert (counts["messages_in"], counts["bytes_in"] > 60, counts["bytes_out"]) == (2, True, 0)
    assert 0 <= found["loop_idle"] <= 1
    assert (found["reports"], found["is_test_broker"]) == ([], False)


def test_counts_are_made_once_a_second(node: ConsoleNode) -> None:
    node.view("overview")
    node.create("t")
    assert node.view("overview")["counts"]["topics"] == 0
    node.runtime.advance(1)
    assert node.view("overview")["counts"]["topics"] == 1


def test_topics_come_in_pages(node: ConsoleNode) -> None:
    for number in range(25):
        node.create(f"topic-{number:02}")
    node.create("Other")
    first = node.view("topics", filter="TOPIC", limit=10)
    names = [each["name"] for each in first["topics"]]
    assert names == [f"topic-{number:02}" for number in range(10)]
    assert (first["total"], first["has_more"]) == (25, True)
    last = node.view("topics", filter="topic", limit=10, after="topic-19")
    assert [each["name"] for each in last["topics"]] == [f"topic-{number}" for number in range(20, 25)]
    assert not last["has_more"]
    assert node.view("topics", filter="nothing")["topics"] == []


def test_a_topic_has_its_partitions_and_configs(node: ConsoleNode) -> None:
    topic_id = node.create("t", 120)
    node.produce("t", b"1", b"2", partition=101)
    found = node.view("topic", topic="t", first=100, limit=50)
    assert (found["id"], found["partition_count"], len(found["partitions"])) == (
        uuid_to_string(topic_id),
        120,
        20,
    )
    row = found["partitions"][1]
    assert (row["partition"], row["leader"], row["isr"], row["start"], row["end"]) == (101, 1, [1], 0, 2)
    assert row["size"] > 60
    assert found["problems"] == []
    change = AlterConfigsResource(2, "t", [AlterableConfig("retention.ms", 0, "1000")])
    node.ask(IncrementalAlterConfigsRequest([change]))
    configs = {each["name"]: each for each in node.view("configs", topic="t")}
    assert (configs["retention.ms"]["value"], configs["retention.ms"]["source"]) == ("1000", "topic")
    assert configs["cleanup.policy"]["source"] == "default"
    assert ["log.cleanup.policy", "delete", "default"] in configs["cleanup.policy"]["synonyms"]
    assert configs["retention.ms"]["documentation"]


def test_what_is_missing_is_said(node: ConsoleNode) -> None:
    for target in (
        "topic?topic=x",
        "configs?topic=x",
        "messages?topic=x",
        "group?group=x",
        "report?name=x",
        "test",
        "x",
    ):
        assert node.request(f"/api/{target}").status == 404, target
    assert node.request("/api/topic").status == 400
    assert node.request("/api/topics?limit=x").status == 400
    assert node.request("/api/topics?" + "a=1&" * 50).status == 400
    node.create("t")
    assert node.request("/api/messages?topic=t&partition=7").status == 404
    assert node.request("/api/messages?topic=t&from=x").status == 400
    assert node.request("/api/messages?topic=t&positions=x").status == 400
    assert node.request("/api/message?topic=t&partition=0&offset=5").status == 404


# -- messages


def test_a_record_with_all_its_parts(node: ConsoleNode) -> None:
    node.create("t")
    record = Record(0, 1_700_000_000_123, b"\xff\x00", None, [("h", b"1"), ("h", None)])
    node.produce("t", record)
    (row,) = node.view("messages", topic="t")["records"]
    assert (row["partition"], row["offset"], row["timestamp"]) == (0, 0, 1_700_000_000_123)
    assert value_of(row, "key") == b"\xff\x00"
    assert row["value"] is None
    assert row["headers"] == [["h", {"data": "MQ==", "size": 1}], ["h", None]]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec(node: ConsoleNode, codec: Codec) -> None:
    node.create("t")
    node.produce("t", b"1" * 1000, b"2", codec=codec)
    assert values(node.view("messages", topic="t")) == [b"1" * 1000, b"2"]


def test_where_a_read_begins(node: ConsoleNode) -> None:
    node.create("t", 2)
    for number in range(10):
        node.produce("t", b"%d" % number, partition=number % 2)
        node.runtime.advance(1)
    assert values(node.view("messages", topic="t", **{"from": "end"}, limit=4)) == [b"6", b"7", b"8", b"9"]
    page = node.view("messages", topic="t", **{"from": "start"}, limit=4)
    assert values(page) == [b"0", b"1", b"2", b"3"]
    assert (page["positions"], page["ends"], page["is_end"]) == ({"0": 2, "1": 2}, {"0": 5, "1": 5}, False)
    page = node.view("messages", topic="t", positions="0:2,1:2")
    assert values(page) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert page["is_end"]
    assert values(node.view("messages", topic="t", partition=1, **{"from": "offset"}, at=3)) == [b"7", b"9"]
    assert node.view("messages", topic="t", **{"from": "offset"}, at=10**18)["records"] == []
    at = node.runtime.time_ms() - 3500
    assert values(node.view("messages", topic="t", **{"from": "time"}, at=at)) == [b"7", b"8", b"9"]
    late = node.view("messages", topic="t", **{"from": "time"}, at=at + 10**6)
    assert late["records"] == []


def test_a_filter_looks_at_keys_values_and_headers(node: ConsoleNode) -> None:
    node.create("t")
    now = node.runtime.time_ms()
    records = [Record(index, now, None, b"nothing") for index in range(500)]
    records[100].key = "grün".encode()
    records[300].value = b"so gr\xc3\xbcn"
    records[400].headers = [("grün", None)]
    node.produce("t", *records)
    page = node.view("messages", topic="t", **{"from": "start"}, filter="grün")
    assert [row["offset"] for row in page["records"]] == [100, 300, 400]
    assert page["scanned"] == 500


def test_a_long_search_goes_on_where_it_stopped(node: ConsoleNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SCANNED_MAX", 70)
    node.create("t")
    node.produce("t", *[b"x"] * 100, b"needle")
    page = node.view("messages", topic="t", **{"from": "start"}, filter="needle")
    assert (page["records"], page["positions"], page["is_end"]) == ([], {"0": 70}, False)
    page = node.view("messages", topic="t", positions="0:70", filter="needle")
    assert (values(page), page["is_end"]) == ([b"needle"], True)


def test_fields_are_cut_and_one_record_is_whole(node: ConsoleNode) -> None:
    node.create("t")
    node.produce("t", b"v" * 1_000_000)
    node.produce("t", Record(0, node.runtime.time_ms(), None, b"", [(f"{n}", b"h" * 999) for n in range(50)]))
    big, headers = node.view("messages", topic="t", **{"from": "start"})["records"]
    assert (len(value_of(big)), big["value"]["size"]) == (messages.FIELD_BYTES, 1_000_000)
    assert (len(headers["headers"]), headers["header_count"]) == (messages.HEADERS_MAX, 50)
    whole = node.view("message", topic="t", partition=0, offset=0)
    assert value_of(whole) == b"v" * 1_000_000


def test_batches_that_cannot_be_read_are_named(node: ConsoleNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create("t")
    node.produce("t", b"x" * 10_000, codec=Codec.GZIP)
    broken = bytearray(build_batch([Record(0, 0, None, b"x")], codec=Codec.GZIP))
    broken[BATCH_HEADER:] = bytes(len(broken) - BATCH_HEADER)
    seal_batch(broken, read_header(broken))
    node.produce_batch("t", bytes(broken))
    node.produce("t", b"large" * 100)
    node.produce("t", b"good")
    monkeypatch.setattr(messages, "UNPACKED_MAX", 1000)
    page = node.view("messages", topic="t", **{"from": "start"})
    problems = {row["offset"]: row["problem"] for row in page["records"]}
    assert [bool(problems[offset]) for offset in range(4)] == [True, True, False, False]
    assert "decompress" in problems[0]
    monkeypatch.setattr(messages, "BATCH_BYTES_MAX", 100)
    page = node.view("messages", topic="t", **{"from": "start"})
    assert "a batch of" in page["records"][0]["problem"]


def test_a_tail_sends_what_is_appended(node: ConsoleNode) -> None:
    node.create("t", 2)
    node.produce("t", b"before")
    answer = node.request("/api/tail?topic=t")
    assert "Content-Type: text/event-stream" in answer.head
    node.produce("t", b"1")
    node.produce("t", b"2", partition=1)
    node.runtime.advance(1)
    ((event_id, event),) = answer.events
    assert (event_id, values(event["page"]), event["skipped"]) == ("0:2,1:1", [b"1", b"2"], 0)
    node.runtime.advance(60)
    assert len(answer.events) == 1
    assert b": it is quiet" in answer.body
    again = node.request("/api/tail?topic=t", last_event_id="0:1,1:1")
    assert [values(event["page"]) for _, event in again.events] == [[b"1"]]


def test_a_tail_keeps_up_with_a_fast_topic(node: ConsoleNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "BEHIND_MAX", 50)
    node.create("t")
    answer = node.request("/api/tail?topic=t&limit=10")
    node.produce("t", *[b"%d" % number for number in range(500)])
    node.runtime.advance(1)
    events = [event for _, event in answer.events]
    assert sum(event["skipped"] + len(event["page"]["records"]) for event in events) == 500
    assert values(events[-1]["page"])[-1] == b"499"
    assert len(events) == 2


def test_a_tail_ends_with_its_client(node: ConsoleNode) -> None:
    node.create("t")
    answers = [node.request("/api/tail?topic=t") for _ in range(tail.TAILS_MAX)]
    assert node.request("/api/tail?topic=t").status == 503
    answers[0].protocol.connection_lost(None)
    assert node.request("/api/tail?topic=t").status == 200
    sent = len(answers[0].body)
    node.produce("t", b"1")
    node.runtime.advance(1)
    assert len(answers[0].body) == sent
    assert answers[1].events


def test_a_tail_waits_for_a_client_that_does_not_read(node: ConsoleNode) -> None:
    node.create("t")
    answer = node.request("/api/tail?topic=t")
    answer.protocol.pause_writing()
    node.produce("t", b"1")
    node.runtime.advance(1)
    assert answer.events == []
    answer.protocol.resume_writing()
    node.runtime.advance(1)
    assert len(answer.events) == 1
    answer.protocol.pause_writing()
    node.runtime.advance(31)
    assert answer.transport.is_closed


def test_a_tail_of_nothing_is_refused(node: ConsoleNode) -> None:
    assert node.request("/api/tail?topic=t").status == 404
    node.create("t")
    assert node.request("/api/tail?topic=t&partition=5").status == 404
    assert node.request("/api/tail?topic=t").status == 200


# -- groups


def commit(node: ConsoleNode, group: str, topic: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    answer = node.ask(OffsetCommitRequest(group_id=group, topics=topics), 8)
    assert answer.topics[0].partitions[0].error_code == 0


@pytest.fixture
def grouped(tmp_path: Path) -> Iterator[ConsoleNode]:
    made = ConsoleNode(f"log.dirs={tmp_path}", "offsets.topic.num.partitions=1")
    made.create("t")
    made.produce("t", b"1", b"2", b"3")
    made.ask(FindCoordinatorRequest(coordinator_keys=["a"]), 4)
    made.runtime.advance(1)
    yield made
    made.node.stop()


def test_groups_with_their_lag(grouped: ConsoleNode) -> None:
    hostile = "<img src=x onerror=alert(1)>\u202e"
    for group in ("b", hostile, "a/../.."):
        commit(grouped, group, "t", 1)
    found = grouped.view("groups")
    assert [each["id"] for each in found["groups"]] == [hostile, "a/../..", "b"]
    assert (found["total"], found["groups"][2]["state"], found["groups"][2]["coordinator"]) == (3, "Empty", 1)
    assert [each["id"] for each in grouped.view("groups", filter="IMG")["groups"]] == [hostile]
    for group in ("b", hostile, "a/../.."):
        view = grouped.view("group", group=group)
        (row,) = view["offsets"]
        assert (row["topic"], row["partition"], row["committed"], row["end"], row["lag"]) == ("t", 0, 1, 3, 2)
        assert (view["id"], view["type"], view["total_lag"], view["members"]) == (group, "classic", 2, [])


def join_and_sync(node: ConsoleNode, group: str, protocol: str, assignment: bytes) -> None:
    """Make a group of one member with this assignment."""
    join = JoinGroupRequest(
        group, 10_000, 10_000, "", None, protocol, [JoinGroupRequestProtocol("range", b"")]
    )
    join.member_id = node.ask(join, 5).member_id
    reply = send(node.node.services, JOIN_GROUP, 5, join)
    node.runtime.advance(5)
    assert reply.answer.error_code == 0
    assignments = [SyncGroupRequestAssignment(join.member_id, assignment)]
    generation_id = reply.answer.generation_id
    sync = SyncGroupRequest(group, generation_id, join.member_id, None, protocol, "range", assignments)
    reply = send(node.node.services, SYNC_GROUP, 5, sync)
    node.runtime.advance(0.1)
    assert reply.answer.error_code == 0


def test_a_classic_groups_members(grouped: ConsoleNode) -> None:
    """One assignment is the consumer protocol's, the others are a client's own bytes."""
    right = encoded_assignment(grouped.node.services.controller.image, {grouped.topic_id("t"): [0]}, 1)
    for group, protocol, data in (
        ("good", "consumer", right),
        ("odd", "consumer", b"\xff"),
        ("own", "connect", right),
    ):
        join_and_sync(grouped, group, protocol, data)
        view = grouped.view("group", group=group)
        assert (view["type"], view["state"], view["member_count"], view["protocol"]) == (
            "classic",
            "Stable",
            1,
            "range",
        )
        (member,) = view["members"]
        assert (member["client_id"], member["client_host"]) == ("client", "/127.0.0.1")
        assert member["assigned"] == ([["t", [0]]] if group == "good" else [])


def test_share_and_streams_groups(grouped: ConsoleNode) -> None:
    member_id = "AAECAwQFBgcICQoLDA0ODw"
    epoch = grouped.ask(ShareGroupHeartbeatRequest("shared", member_id, 0, None, ["t"])).member_epoch
    grouped.runtime.advance(5)  # its states are written
    grouped.ask(ShareGroupHeartbeatRequest("shared", member_id, epoch))
    topology = Topology(0, [Subtopology("0", source_topics=["t"])])
    grouped.ask(
        StreamsGroupHeartbeatRequest(
            "streams",
            member_id,
            rebalance_timeout_ms=1000,
            topology=topology,
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            process_id="p",
        )
    )
    grouped.runtime.advance(5)
    shared = grouped.view("group", group="shared")
    assert (shared["type"], shared["state"], shared["epoch"] > 0) == ("share", "Stable", True)
    assert shared["members"][0]["assigned"] == [["t", [0]]]
    assert [(row["topic"], row["partition"], row["end"]) for row in shared["offsets"]] == [("t", 0, 3)]
    streams = grouped.view("group", group="streams")
    assert (streams["type"], streams["member_count"]) == ("streams", 1)
    assert {each["type"] for each in grouped.view("groups")["groups"]} == {"share", "streams"}


def test_a_member_that_claims_any_number_of_partitions(
    grouped: ConsoleNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "ASSIGNED_MAX", 150)
    claimed = [Assigned("t", list(range(100))), Assigned("u" * 2000, list(range(100))), Assigned("v", [1])]
    data = encoded(CONSUMER_PROTOCOL_ASSIGNMENT, 1, ConsumerProtocolAssignment(claimed, None))
    join_and_sync(grouped, "g", "consumer", b"\0\1" + data)
    (member,) = grouped.view("group", group="g")["members"]
    assert [len(indexes) for _, indexes in member["assigned"]] == [100, 50]
    assert len(member["assigned"][1][0]) == TEXT_MAX


def test_places_are_given_in_order_and_not_lost() -> None:
    runtime = VirtualRuntime()
    places = Places(1)
    entered: list[int] = []

    async def work(number: int) -> None:
        async with places:
            entered.append(number)
            await pause(runtime, 1)

    procedures = [Procedure(work(number), lambda error: None) for number in range(5)]
    for each in procedures:
        each.start()
    assert entered == [0]
    procedures[1].cancel()  # while it waits
    runtime.advance(1.5)
    assert entered == [0, 2]
    procedures[2].cancel()  # while it works
    assert entered == [0, 2, 3]
    runtime.advance(5)
    assert entered == [0, 2, 3, 4]
    Procedure(work(5), lambda error: None).start()
    assert entered[-1] == 5, "the place is free"


# -- whatever is asked


@given(
    view=st.sampled_from(
        ["topics", "topic", "configs", "messages", "message", "groups", "group", "report", "tail", "x"]
    ),
    query=st.dictionaries(
        st.sampled_from(
            [
                "topic",
                "group",
                "filter",
                "after",
                "limit",
                "first",
                "from",
                "at",
                "positions",
                "partition",
                "offset",
            ]
        ),
        st.one_of(
            st.text(max_size=20),
            st.sampled_from(["t", "g", "0", "start", "time", "-1", "9" * 19, "0:1", "1:1,"]),
        ),
    ),
)
def test_whatever_is_asked_is_answered(asked: ConsoleNode, view: str, query: dict[str, str]) -> None:
    answer = asked.request(f"/api/{view}?{urlencode(query, errors='replace')}")
    asked.runtime.advance(0.1)
    assert answer.status in (200, 400, 404), (answer.head, answer.body)
    answer.protocol.connection_lost(None)


@given(st.binary(max_size=60))
def test_whatever_is_sent_is_answered(asked: ConsoleNode, target: bytes) -> None:
    text = target.decode("latin-1").translate({10: "", 13: "", 32: "%20"})
    assert asked.request(text).status in (200, 400, 404)
    assert asked.request(f"/api/topics?{text}").status in (200, 400)
    assert asked.request("/", host=text.strip() or "x").status in (200, 403)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleNode]:
    made = ConsoleNode(f"log.dirs={tmp_path_factory.mktemp('asked')}", "offsets.topic.num.partitions=1")
    made.create("t", 2)
    made.produce("t", b"1", b"2")
    yield made
    made.node.stop()
