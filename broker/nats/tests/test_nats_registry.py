"""What is told of bindings to whoever waits for acknowledgements."""

from __future__ import annotations

import json
from typing import Any

from barnabas.broker.nats.registry import Bound, describe
from barnabas.controller.nats.binding import read_binding


def bound(topic: str, partitions: list[int] | None = None, state: str = "running", **configs: str) -> Bound:
    binding = read_binding(
        topic, {"nats." + name.replace("_", "."): value for name, value in configs.items()}
    )
    assert binding is not None
    return Bound(binding, partitions or [0], state)


BINDINGS = [
    bound("second", subjects="a.*", acks="reply", paused="true", state="paused"),
    bound("first", [2, 0], subjects="a.>", exclude="a.secret"),
    bound("silent", subjects="a.b", acks="off"),
    bound("stored", subjects="a.b", mode="jetstream", stream="S"),
    bound("outward", publish_subject="out.{key}"),
    bound("all", subjects=">"),
]


def topics(subject: bytes) -> list[str]:
    return [each["topic"] for each in answer(subject)["bindings"]]


def answer(subject: bytes) -> Any:
    return json.loads(describe(BINDINGS, 7, "cluster-x", subject))


def test_all_bindings_that_take_messages() -> None:
    told = answer(b"")
    assert (told["broker"], told["cluster"]) == (7, "cluster-x")
    assert [each["topic"] for each in told["bindings"]] == ["all", "first", "second", "silent", "stored"]
    assert told["bindings"][1] == {
        "topic": "first",
        "subjects": ["a.>"],
        "exclude": ["a.secret"],
        "mode": "core",
        "partitions": [0, 2],
        "acks": "header",
        "expected_acks": 1,
        "state": "running",
    }
    expected = {each["topic"]: (each["acks"], each["expected_acks"]) for each in told["bindings"]}
    assert expected == {
        "all": ("header", 1),
        "first": ("header", 1),
        "second": ("reply", 0),
        "silent": ("off", 0),
        "stored": ("off", 0),
    }


def test_those_that_take_a_subject() -> None:
    assert topics(b"a.b") == ["all", "first", "second", "silent", "stored"]
    assert topics(b"a.b.c") == ["all", "first"]
    assert topics(b"a.secret") == ["all", "second"]
    assert topics(b"z") == ["all"]
    assert topics(b"$SYS.x") == []
    assert topics(b"_INBOX.x") == []


def test_what_is_no_subject_matches_nothing() -> None:
    for payload in (b"a.*", b"a..b", b"a b", b"\xff\x00", b"a." + b"x" * 5000, b".", b'{"subject":"a"}'):
        assert topics(payload) in ([], ["all"]), payload
    assert topics(b"a.*") == []
    assert topics(b"a." + b"x" * 5000) == []
