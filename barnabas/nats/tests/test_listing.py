"""The listing of bindings, as publishers that wait for acknowledgements read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.nats.binding.reader import read_binding
from barnabas.nats.carrier import CarrierStats, Gap
from barnabas.nats.listing import SUBJECT, BindingsService, describe
from barnabas.nats.overview import Overview, Way, overview, refused_overview
from barnabas.nats.tests.client_world import ClientWorld, flushed, into
from compat_tests.harness.nats_server import NatsServer


def bound(
    topic: str, partitions: list[int] | None = None, state: str = "running", **configs: str
) -> Overview:
    binding = read_binding(
        topic, {"nats." + name.replace("_", "."): value for name, value in configs.items()}
    )
    assert binding is not None
    ways = [Way(binding.mode, state, CarrierStats(messages_in=3))]
    return Overview(topic, binding, partitions or [0], ways)


BINDINGS = [
    bound("second", subjects="a.*", acks="reply", paused="true", state="paused"),
    bound("first", [2, 0], subjects="a.>", exclude="a.secret"),
    bound("silent", subjects="a.b", acks="off"),
    bound("stored", subjects="a.b", mode="jetstream", stream="S"),
    bound("outward", publish_subject="out.{key}"),
    bound("all", subjects=">"),
    bound("elsewhere", subjects=">", connection="east"),
    refused_overview("broken", "nats.key: no key", [1]),
]


def topics(subject: bytes) -> list[str]:
    return [each["topic"] for each in answer(subject)["bindings"]]


def answer(subject: bytes) -> Any:
    return json.loads(describe(BINDINGS, 7, "cluster-x", subject))


def test_an_account_does_not_see_other_accounts() -> None:
    told = json.loads(describe(BINDINGS, 7, "cluster-x", b"", connection="east"))
    assert [each["topic"] for each in told["bindings"]] == ["elsewhere"]


def test_all_bindings() -> None:
    told = answer(b"")
    assert (told["broker"], told["cluster"]) == (7, "cluster-x")
    by_topic = {each["topic"]: each for each in told["bindings"]}
    assert list(by_topic) == [
        *("all", "broken", "elsewhere", "first", "outward", "second", "silent", "stored"),
    ]
    assert by_topic["broken"] == {
        "topic": "broken",
        "partitions": [1],
        "state": "refused: nats.key: no key",
    }
    assert by_topic["outward"]["publish"] == "out.>"
    (way,) = by_topic["first"].pop("ways")
    assert (way["mode"], way["state"], way["messages_in"], way["gaps"]) == ("core", "running", 3, [])
    assert by_topic["first"] == {
        "topic": "first",
        "connection": "",
        "subjects": ["a.>"],
        "exclude": ["a.secret"],
        "mode": "core",
        "partitions": [0, 2],
        "acks": "header",
        "expected_acks": 1,
        "state": "running",
    }
    expected = {
        name: (each["acks"], each["expected_acks"]) for name, each in by_topic.items() if "acks" in each
    }
    assert expected == {
        "all": ("header", 1),
        "elsewhere": ("header", 1),
        "outward": ("off", 0),
        "first": ("header", 1),
        "second": ("reply", 0),
        "silent": ("off", 0),
        "stored": ("off", 0),
    }


def test_bindings_that_take_a_subject() -> None:
    assert topics(b"a.b") == ["all", "first", "second", "silent", "stored"]
    assert topics(b"a.b.c") == ["all", "first"]
    everything = {each["topic"]: each for each in answer(b"")["bindings"]}
    assert answer(b"a.b.c")["bindings"] == [everything["all"], everything["first"]]
    assert topics(b"a.secret") == ["all", "second"]
    assert topics(b"z") == ["all"]
    assert topics(b"$SYS.x") == []
    assert topics(b"_INBOX.x") == []


def test_an_invalid_subject_matches_nothing() -> None:
    for payload in (b"a.*", b"a..b", b"a b", b"\xff\x00", b"a." + b"x" * 5000, b".", b'{"subject":"a"}'):
        assert topics(payload) in ([], ["all"]), payload
    assert topics(b"a.*") == []
    assert topics(b"a." + b"x" * 5000) == []


def test_a_large_answer_is_shortened() -> None:
    many = [bound(f"t-{number:04}", subjects="a.b") for number in range(100)]
    whole = json.loads(describe(many, 7, "c"))
    assert len(whole["bindings"]) == 100
    assert whole["bindings"][0]["ways"]
    short = json.loads(describe(many, 7, "c", bytes_max=30_000))
    assert len(short["bindings"]) == 100
    assert "ways" not in short["bindings"][0]
    some = describe(many, 7, "c", bytes_max=5000)
    assert 4500 < len(some) <= 5000
    assert json.loads(some)["truncated"] is True


def test_gaps_and_states_of_several_ways() -> None:
    binding = read_binding("both", {"nats.subjects": "a.b", "nats.publish.subject": "c.d"})
    assert binding is not None
    stats = CarrierStats(gap_count=2, gap_ms=1500)
    stats.gaps += [Gap(1000, 2500, "server gone"), Gap(9000, 0, "slow consumer")]
    ways = [Way("core", "running", stats), Way("publish", "connecting", CarrierStats())]
    (told,) = json.loads(describe([Overview("both", binding, [0], ways)], 1, "c"))["bindings"]
    assert told["state"] == "core: running, publish: connecting"
    assert told["ways"][0]["gap_seconds"] == 1.5
    assert told["ways"][0]["gaps"] == [
        {"begin_ms": 1000, "end_ms": 2500, "cause": "server gone"},
        {"begin_ms": 9000, "end_ms": 0, "cause": "slow consumer"},
    ]


def test_a_paused_binding_keeps_its_counters() -> None:
    binding = read_binding("t", {"nats.subjects": "a.b", "nats.paused": "true"})
    assert binding is not None
    (way,) = overview(binding, [0], [], CarrierStats(appended=5)).ways
    assert (way.mode, way.state, way.stats.appended) == ("core", "paused", 5)


@pytest.mark.sockets
def test_answers_take_a_bounded_share_of_the_time(world: ClientWorld, shared_nats_server: NatsServer) -> None:
    now_s = 100.0
    told: list[bytes] = []

    def tell(payload: bytes, _bytes_max: int) -> bytes:
        nonlocal now_s
        now_s += 0.06
        told.append(payload)
        return b"{}"

    async def work() -> None:
        nonlocal now_s
        client, _ = await world.connected(shared_nats_server.url)
        asker, _ = await world.connected(shared_nats_server.url)
        answers: list[tuple[bytes, bytes, bytes, bytes]] = []
        BindingsService(client, tell, lambda: now_s)
        asker.subscribe("answers", into(answers))
        await flushed(client)

        async def ask(count: int) -> int:
            told.clear()
            for _ in range(count):
                asker.publish(SUBJECT.encode(), b"", reply=b"answers")
            await flushed(asker)
            await flushed(client)
            await flushed(asker)
            return len(told)

        assert await ask(100) == 4
        assert len(answers) == 4
        assert await ask(100) == 0
        now_s += 1.2
        assert await ask(100) == 2
        asker.publish(SUBJECT.encode(), b"", reply=b"$KV.a.b")
        now_s += 10
        assert await ask(1) == 1

    world.run(work())
