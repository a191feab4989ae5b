"""Times, durations and names of `barnabas groups --reset-offsets`."""

from __future__ import annotations

import pytest

from barnabas.commands.group_requests import TopicPartition
from barnabas.commands.group_resets import duration_ms, milliseconds_of, named_partitions
from barnabas.commands.options import ArgumentError, UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01.002", 1002),
        ("1970-01-01T00:00:01.002Z", 1002),
        ("1970-01-01T02:00:00.000+02:00", 0),
        ("1970-01-01T02:00:00.000+02", 0),
        ("1970-01-01T00:00:00.000-0130", 5400000),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert milliseconds_of(text) == expected


@pytest.mark.parametrize("text", ["1970-01-01", "1970-01-01T00:00:01", "1970-13-01T00:00:01.000", "T"])
def test_texts_that_are_no_time(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"java.text.ParseException: "):
        milliseconds_of(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("P1D", 86400000), ("PT1H2M3.5S", 3723500), ("-PT1S", -1000), ("PT-1S", -1000), ("p1dt1s", 86401000)],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1Y", "PT1"])
def test_texts_that_are_no_duration(text: str) -> None:
    with pytest.raises(ArgumentError, match="Text cannot be parsed to a Duration"):
        duration_ms(text)


def test_names_of_partitions() -> None:
    assert named_partitions("a:0,2") == [TopicPartition("a", 0), TopicPartition("a", 2)]
    for text in ("a:", ":1", "a:1:2", "a:x"):
        with pytest.raises(UsageError):
            named_partitions(text)
