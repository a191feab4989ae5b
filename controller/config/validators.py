"""Validators of properties, by the names that the tables use.

Users of Kafka's tools see the texts, so they are those of Kafka 4.3.1, number formats included: a double prints as in Java.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Final

Validator = Callable[[str, object], None]

# Compiled when first used: few starts need one.
_THROTTLED: Final = r"^\s*\d+\s*:\s*\d+\s*$"
_BROKER_ID: Final = r"[0-9]{1,10}"
_RESTORE_SOURCE: Final = r"\s*(?!\.{1,2}/)[A-Za-z0-9._-]{1,200}/[A-Za-z0-9_-]{22}/[0-9]{1,9}\s*"
_VOTER: Final = r"^\d+@[^@]+:\d+$"
_SERVER: Final = r"^(\[[0-9a-zA-Z\-%._:]*\]|[0-9a-zA-Z\-%._]+):[0-9]+$"
_DURATION: Final = r"(?i)^P(?=.)(?:\d+D)?(?:T(?=.)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d{0,9})?S)?)?$"


class ConfigError(ValueError):
    """A value that a property may not have. The client, or the terminal, shows the text."""

    @classmethod
    def invalid(cls, name: str, value: object, reason: str) -> ConfigError:
        return cls(f"Invalid value {java_text(value)} for configuration {name}: {reason}")


def java_text(value: object) -> str:
    """A value as Java's string conversion prints it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(value) + "]"
    if isinstance(value, float) and value and isfinite(value) and not 1e-3 <= abs(value) < 1e7:
        return _scientific(value)
    return str(value)


def _scientific(value: float) -> str:
    from decimal import Decimal  # late: rarely needed, and slow to import

    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    fraction = "".join(map(str, digits[1:])).rstrip("0") or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{exponent + len(digits) - 1}"


@cache
def validator_named(spec: str) -> Validator | None:
    """The validator for a table's column; None for `*`."""
    if spec == "*":
        return None
    if spec.startswith("["):
        return _range(spec)
    kind, _, names = spec.partition(":")
    choices = tuple(names.split(",")) if names else ()
    if kind.startswith("list"):
        return _list_of(choices, "+nonempty" in kind, "+nullable" in kind)
    if kind in ("in", "anycase"):
        return _one_of(choices, any_case=kind == "anycase")
    return _NAMED[kind]


def _range(spec: str) -> Validator:
    low_text, *_, high_text = spec.strip("[]").split(",")
    low = float(low_text) if "." in low_text else int(low_text)
    high = None if high_text == "..." else float(high_text) if "." in high_text else int(high_text)

    def check(name: str, value: object) -> None:
        if value is None:
            raise ConfigError.invalid(name, value, "Value must be non-null")
        assert isinstance(value, int | float)
        # NaN, for which every comparison is false, is valid, as in Kafka.
        if value < low:
            raise ConfigError.invalid(name, value, f"Value must be at least {low_text}")
        if high is not None and value > high:
            raise ConfigError.invalid(name, value, f"Value must be no more than {high_text}")

    return check


def _one_of(choices: tuple[str, ...], any_case: bool = False) -> Validator:
    allowed = {choice.upper() for choice in choices} if any_case else set(choices)
    note = " (case insensitive)" if any_case else ""

    def check(name: str, value: object) -> None:
        found = value.upper() if any_case and isinstance(value, str) else value
        if found not in allowed:
            raise ConfigError.invalid(name, value, f"String must be one of{note}: {', '.join(choices)}")

    return check


def _list_of(choices: tuple[str, ...], must_have_one: bool, nullable: bool) -> Validator:
    one = _one_of(choices) if choices else None
    described = f"[{', '.join(choices)}]" if choices else "any non-empty value"

    def check(name: str, value: object) -> None:
        if value is None:
            if nullable:
                return
            raise ConfigError(f"Configuration '{name}' values must not be null.")
        assert isinstance(value, list)
        if not value and must_have_one:
            raise ConfigError(f"Configuration '{name}' must not be empty. Valid values include: {described}")
        for entry in value:
            if not entry:
                raise ConfigError(f"Configuration '{name}' values must not be empty.")
            if one is not None:
                one(name, entry)

    return check


def _non_empty(name: str, value: object) -> None:
    if value == "":
        raise ConfigError.invalid(name, value, "String must be non-empty")


def _non_null(name: str, value: object) -> None:
    if value is None:
        raise ConfigError.invalid(name, value, "entry must be non null")


def _gzip_level(name: str, value: object) -> None:
    if value != -1 and not (isinstance(value, int) and 1 <= value <= 9):
        raise ConfigError.invalid(name, value, "Value must be between 1 and 9 or equal to -1")


def _count_or_auto(name: str, value: object) -> None:
    if value != "auto" and not (
        isinstance(value, str) and value.isascii() and value.isdigit() and 0 < int(value) <= 1024
    ):
        raise ConfigError.invalid(name, value, "it must be auto or a number from 1 to 1024")


def _voters(name: str, value: object) -> None:
    for entry in value if isinstance(value, list) else ():
        if not re.match(_VOTER, entry):
            raise ConfigError(
                f"Invalid configuration value for {name}. Each entry should be in the form `{{id}}@{{host}}:{{port}}`."
            )


def _servers(name: str, value: object) -> None:
    for entry in value if isinstance(value, list) else ():
        if not re.match(_SERVER, entry):
            raise ConfigError(
                f"Failed to parse host name from {entry} for the configuration {name}. "
                'Each entry should be in the form "{host}:{port}"'
            )


def _throttled_replicas(name: str, value: object) -> None:
    entries = value if isinstance(value, list) else []
    if entries != ["*"] and not all(re.match(_THROTTLED, entry) for entry in entries):
        reason = (
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )
        raise ConfigError.invalid(name, entries, reason)


def _broker_ids(name: str, value: object) -> None:
    entries = value if isinstance(value, list) else []
    if not all(re.fullmatch(_BROKER_ID, entry) and int(entry) < 1 << 31 for entry in entries):
        raise ConfigError.invalid(name, entries, "Each entry must be the id of a broker")


def _restore_source(name: str, value: object) -> None:
    if value and not (isinstance(value, str) and re.fullmatch(_RESTORE_SOURCE, value)):
        raise ConfigError.invalid(name, value, "It must look like <cluster id>/<topic id>/<leader epoch>")


def _offset_reset(name: str, value: object) -> None:
    assert isinstance(value, str)
    kind, _, duration = value.partition(":")
    if value not in ("earliest", "latest") and not (kind == "by_duration" and re.match(_DURATION, duration)):
        reason = (
            f"Invalid value `{value}` for configuration {name}. The value must be either 'earliest', 'latest' "
            "or of the format 'by_duration:<PnDTnHnMn.nS>'."
        )
        raise ConfigError.invalid(name, value, reason)


_NAMED: Final[dict[str, Validator]] = {
    "nonempty": _non_empty,
    "nonnull": _non_null,
    "gzip-level": _gzip_level,
    "count-or-auto": _count_or_auto,
    "voters": _voters,
    "servers": _servers,
    "throttled-replicas": _throttled_replicas,
    "broker-ids": _broker_ids,
    "offset-reset": _offset_reset,
    "restore-source": _restore_source,
}
