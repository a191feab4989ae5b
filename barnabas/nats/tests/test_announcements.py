"""What the log says of a binding when it begins."""

from __future__ import annotations

import pytest

from barnabas.nats.announcements import publishing, purpose, reading
from barnabas.nats.binding.binding import Binding
from barnabas.nats.binding.reader import read_binding


def binding(**configs: str) -> Binding:
    found = read_binding("t", {f"nats.{name.replace('_', '.')}": text for name, text in configs.items()})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("configs", "leading", "said"),
    [
        ({}, [1, 0], "for its partitions 0, 1"),
        ({}, [2], "for its partition 2"),
        ({}, [], "as a standby of its partitions' leaders"),
        ({"queue_group": "q"}, [], "as a member of the queue group q"),
        ({"topic_template": "{1}"}, [], "for the topics of {1}"),
    ],
)
def test_core_bindings(configs: dict[str, str], leading: list[int], said: str) -> None:
    assert purpose(binding(subjects="a", **configs), leading) == said


def test_streams_buckets_and_records() -> None:
    stream = binding(mode="jetstream", subjects="a.>,b")
    assert reading(stream, [0]) == "reads a stream (a.>, b), exactly-once, for its partition 0"
    whole = binding(mode="jetstream", stream="S", delivery="at-least-once")
    assert (
        reading(whole, [0, 1]) == "reads the stream S (all subjects), at-least-once, for its partitions 0, 1"
    )
    bucket = binding(mode="kv", bucket="b")
    assert reading(bucket, [0]) == "reads the bucket b for its partition 0"
    assert publishing(bucket, "nats-t", [0]).startswith(
        "puts its records into the bucket b, from its partition 0;"
    )
    out = publishing(binding(publish_subject="out.{key}"), "g", [0])
    assert (
        out == "publishes its records to out.{key}, from its partition 0; its position is that of the group g"
    )
