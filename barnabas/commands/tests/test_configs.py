"""Configs on the command line, and Java's numbers."""

from __future__ import annotations

import pytest

from barnabas.commands.configs import added_configs, java_double
from barnabas.commands.options import ArgumentError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a = 1 , b=[2,3],c=", {"a": "1", "b": "2,3", "c": ""}),
        ("S=[iterations=8192,password=a=b]", {"S": "iterations=8192,password=a=b"}),
        ("a=1,", {"a": "1"}),
    ],
)
def test_added_configs(text: str, expected: dict[str, str]) -> None:
    assert added_configs(text) == expected


@pytest.mark.parametrize("text", ["a", "a=b=c", "a=1,,b=2", ""])
def test_texts_that_are_no_configs(text: str) -> None:
    with pytest.raises(ArgumentError, match="Invalid entity config"):
        added_configs(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (1000.0, "1000.0"),
        (9999999.5, "9999999.5"),
        (1e7, "1.0E7"),
        (1048576000.0, "1.048576E9"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (-2.5e10, "-2.5E10"),
        (9.223372036854775807e18, "9.223372036854776E18"),
    ],
)
def test_doubles(value: float, text: str) -> None:
    assert java_double(value) == text
