"""Parses nats.key, nats.partitioner and nats.start; records/ evaluates the first two.

    nats.key          subject | token:2 | tokens:1,3 | header:NAME | regex:PATTERN | reply | json:$.path | none
    nats.partitioner  murmur2 | fnv1a | token:2
    nats.start        all | new | seq:N | time:RFC 3339

Tokens count from 1. Invalid text is a ConfigError that says what is valid.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from barnabas.controller.config.validators import ConfigError
from barnabas.nats.binding.regexes import regex_problem

TOKEN_MAX: Final = 512  # a subject of 1024 bytes has no more
HEADER_NAME_MAX: Final = 256
JSON_DEPTH_MAX: Final = 32

KEY_WORDS: Final = "subject, token:N, tokens:N,N, header:NAME, regex:PATTERN, reply, json:$.path or none"

# Names of headers: visible ASCII without ":", as in HTTP.
_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_JSON_STEP: Final = re.compile(
    r"""\.(?P<name>[^.\[\]'"\s*?()]+) | \[(?P<index>0|[1-9][0-9]{0,8})\] | \['(?P<single>[^']+)'\] | \["(?P<double>[^"]+)"\]""",
    re.VERBOSE,
)
_TIME: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


class KeySpec(msgspec.Struct, frozen=True):
    """What a record's key is made of. Fields of other kinds are empty.

    `kind`: subject, token, tokens, header, regex, reply, json or none.
    """

    kind: str
    tokens: tuple[int, ...] = ()  # token (one of them) and tokens: numbers from 1
    name: str = ""  # header
    pattern: str = (
        ""  # regex: searched in the subject's bytes; the first group, or the whole match without one
    )
    path: tuple[str | int, ...] = ()  # json: members by name, elements by index from 0


class PartitionerSpec(msgspec.Struct, frozen=True):
    """How a record's partition is chosen. `kind`: murmur2, fnv1a or token, then `token` is its number from 1."""

    kind: str
    token: int = 0


class StartSpec(msgspec.Struct, frozen=True):
    """The beginning of a new JetStream consumer. `kind`: all, new, seq (`sequence`) or time (`time`, RFC 3339)."""

    kind: str
    sequence: int = 0
    time: str = ""


SUBJECT_KEY: Final = KeySpec("subject")


def parse_key(text: str) -> KeySpec:
    """nats.key's value."""
    kind, colon, rest = text.partition(":")
    if not colon and kind in ("subject", "reply", "none"):
        return KeySpec(kind)
    if colon and kind == "token":
        return KeySpec(kind, tokens=(_token("nats.key", text, rest),))
    if colon and kind == "tokens":
        return KeySpec(kind, tokens=tuple(_token("nats.key", text, each.strip()) for each in rest.split(",")))
    if colon and kind == "header":
        return KeySpec(kind, name=header_name("nats.key", text, rest.strip()))
    if colon and kind == "regex":
        problem = regex_problem(rest)
        if problem:
            raise ConfigError.invalid("nats.key", text, problem)
        return KeySpec(kind, pattern=rest)
    if colon and kind == "json":
        return KeySpec(kind, path=_json_path(text, rest.strip()))
    raise ConfigError.invalid("nats.key", text, f"Use {KEY_WORDS}")


def parse_partitioner(text: str) -> PartitionerSpec:
    """nats.partitioner's value."""
    kind, colon, rest = text.partition(":")
    if not colon and kind in ("murmur2", "fnv1a"):
        return PartitionerSpec(kind)
    if colon and kind == "token":
        return PartitionerSpec(kind, _token("nats.partitioner", text, rest))
    raise ConfigError.invalid("nats.partitioner", text, "Use murmur2, fnv1a or token:N")


def parse_start(text: str) -> StartSpec:
    """nats.start's value."""
    kind, colon, rest = text.partition(":")
    if not colon and kind in ("all", "new"):
        return StartSpec(kind)
    if kind == "seq" and _NUMBER.fullmatch(rest) and 1 <= int(rest) < 1 << 64:
        return StartSpec(kind, sequence=int(rest))
    if kind == "time" and is_time(rest):
        return StartSpec(kind, time=rest.upper())
    raise ConfigError.invalid(
        "nats.start", text, "Use all, new, seq:N (from 1) or time:T, as in time:2026-01-31T12:00:00Z"
    )


def is_time(text: str) -> bool:
    """Whether a text is a time in the form of RFC 3339."""
    if not _TIME.fullmatch(text):
        return False
    import datetime  # late: seldom needed

    try:
        # Python reads at most microseconds.
        datetime.datetime.fromisoformat(re.sub(r"\.\d+", "", text.upper()))
    except ValueError:
        return False
    return True


def header_name(config: str, text: str, name: str) -> str:
    """Checks and returns a header's name. ConfigError for the property `config` whose value is `text`."""
    if not _HEADER_NAME.fullmatch(name) or len(name) > HEADER_NAME_MAX:
        raise ConfigError.invalid(
            config, text, f'A header\'s name is 1 to {HEADER_NAME_MAX} visible ASCII characters without ":"'
        )
    return name


def _token(config: str, text: str, number: str) -> int:
    if not _NUMBER.fullmatch(number) or not 1 <= int(number) <= TOKEN_MAX:
        raise ConfigError.invalid(
            config, text, f"Tokens of a subject are counted from 1 (to {TOKEN_MAX}), not {number!r}"
        )
    return int(number)


def _json_path(text: str, path: str) -> tuple[str | int, ...]:
    steps: list[str | int] = []
    position = 1
    while path.startswith("$") and position < len(path):
        found = _JSON_STEP.match(path, position)
        if found is None or len(steps) == JSON_DEPTH_MAX:
            break
        name = found["name"] or found["single"] or found["double"]
        steps.append(int(found["index"]) if name is None else name)
        position = found.end()
    if not steps or position != len(path):
        raise ConfigError.invalid(
            "nats.key",
            text,
            "A path is $ and then .member, ['member'] or [index], as in json:$.order.lines[0].id",
        )
    return tuple(steps)
