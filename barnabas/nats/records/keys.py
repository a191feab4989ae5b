"""Record keys: `nats.key` compiled into a function of the message.

Keys are made of the message's own subject, not of the pattern that it matched. A message without the token, header or JSON
member of the key gets a null key, which differs from an empty one: `header:NAME` with an empty value gives an empty key.

Header names are compared case-sensitively, as in NATS; the first header of a name counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from barnabas.nats.binding.keys import KeySpec, parse_key
from barnabas.nats.client.headers import find_header

# The part of the message that a key is made of -> the key, None for null
KeyOfPart: TypeAlias = Callable[[bytes], bytes | None]
JsonText: TypeAlias = "bytes | msgspec.Raw"
JsonStep: TypeAlias = "Callable[[JsonText], msgspec.Raw | None]"

SUBJECT, REPLY, HEADER_BLOCK, PAYLOAD = range(4)

# What a JSON decoder may raise; RecursionError for deep nesting.
_NO_JSON: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")  # `in` is ten times as fast with a number
_OTHERS_EXPECTED: Final = 1000


class KeyFunction:
    """A function (subject, reply, header block, payload) -> key, None for null.

    Every kind of key is made of one of the four, number `part`, by `of_part`. `of_subject_only`: it is the subject, so the
    key can be kept with it.
    """

    __slots__ = ("of_part", "of_subject_only", "part", "spec")

    def __init__(self, spec: KeySpec, part: int, of_part: KeyOfPart) -> None:
        self.spec = spec
        self.part = part
        self.of_part = of_part
        self.of_subject_only = part == SUBJECT

    def __call__(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> bytes | None:
        return self.of_part((subject, reply, header_block, payload)[self.part])


def compile_key(spec: KeySpec | str) -> KeyFunction:
    """The function for a value of `nats.key`. ConfigError."""
    if isinstance(spec, str):
        spec = parse_key(spec)
    kind = spec.kind
    if kind == "subject":
        return KeyFunction(spec, SUBJECT, lambda subject: subject)
    if kind == "none":
        return KeyFunction(spec, SUBJECT, lambda _: None)
    if kind == "reply":
        return KeyFunction(spec, REPLY, lambda reply: reply or None)
    if kind == "header":
        return KeyFunction(spec, HEADER_BLOCK, partial(find_header, name=spec.name.encode()))
    if kind == "regex":
        return KeyFunction(spec, SUBJECT, _regex(spec.pattern))
    if kind == "json":
        return KeyFunction(spec, PAYLOAD, _json(spec.path))
    assert kind in ("token", "tokens"), kind
    return KeyFunction(spec, SUBJECT, _tokens(spec.tokens))


def _tokens(numbers: tuple[int, ...]) -> KeyOfPart:
    """The tokens with these numbers, joined by "."; null when one is missing."""
    places = [number - 1 for number in numbers]
    needed = max(numbers)

    def tokens_of(subject: bytes) -> bytes | None:
        tokens = subject.split(b".")
        if len(tokens) < needed:
            return None
        return b".".join([tokens[place] for place in places])

    return tokens_of


def _regex(pattern: str) -> KeyOfPart:
    """The first group, or the whole match where the pattern has no group; null when nothing matches it."""
    expression = re.compile(pattern.encode())
    group = 1 if expression.groups else 0

    def matched_in(subject: bytes) -> bytes | None:
        found = expression.search(subject)
        return None if found is None else found[group]

    return matched_in


def _json(path: tuple[str | int, ...]) -> KeyOfPart:
    """A scalar: the content of a string; numbers, true and false as written in the payload.

    Null when the payload is not JSON, or the path leads nowhere, to an object, an array or JSON's null. Of duplicate members
    the last one counts.
    """
    if len(path) == 1 and isinstance(path[0], str):
        return _json_member(path[0])
    first, *others = _json_steps(path)

    def read_from(payload: bytes) -> bytes | None:
        try:
            found = first(payload)
            for step in others:
                if found is None:
                    return None
                found = step(found)
        except _NO_JSON:
            return None
        return None if found is None else _scalar(bytes(found))

    return read_from


def _json_member(name: str) -> KeyOfPart:
    """As `_json` for the usual path, one name, whose member is usually a string."""
    decode_string: Callable[[bytes], Any] = msgspec.json.Decoder(_holder(str, name)).decode
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(_holder(msgspec.Raw, name)).decode
    others_expected = 0  # other types than strings: an attempt that fails doubles the time

    def read_from(payload: bytes) -> bytes | None:
        nonlocal others_expected
        if others_expected:
            others_expected -= 1
        else:
            try:
                text: str | None = decode_string(payload).value
                return None if text is None else text.encode()
            except _NO_JSON:
                others_expected = _OTHERS_EXPECTED
        try:
            found = decode(payload).value
        except _NO_JSON:
            return None
        return (
            None if found is None else _scalar(b"".join((found,)))
        )  # bytes(found), in two thirds of its time

    return read_from


def _scalar(text: bytes) -> bytes | None:
    if text[0] == _QUOTE:
        return text[1:-1] if _BACKSLASH not in text else _unescaped(text)
    return None if text[0] in b"{[" or text == b"null" else text


def _unescaped(text: bytes) -> bytes | None:
    try:
        return msgspec.json.decode(text, type=str).encode()
    except _NO_JSON:
        return None


def _json_steps(path: tuple[str | int, ...]) -> list[JsonStep]:
    """One step for each index, and one for each sequence of names, which one decoder reads at once."""
    steps: list[JsonStep] = []
    names: list[str] = []
    for each in path:
        if isinstance(each, str):
            names.append(each)
            continue
        if names:
            steps.append(_member(names))
            names = []
        steps.append(_element(each))
    if names:
        steps.append(_member(names))
    return steps


def _holder(kind: type, name: str) -> type:
    """A class with one field, so that the decoder makes no objects of other members."""
    return msgspec.defstruct("Holder", [("value", kind, None)], rename={"value": name}, gc=False)


def _member(names: list[str]) -> JsonStep:
    kind: type = msgspec.Raw
    for name in reversed(names):
        kind = _holder(kind, name)
    decode: Callable[[JsonText], Any] = msgspec.json.Decoder(kind).decode
    deeper = range(len(names) - 1)

    def member_of(text: JsonText) -> msgspec.Raw | None:
        holder = decode(text)
        for _ in deeper:
            holder = holder.value
            if holder is None:
                return None
        found: msgspec.Raw | None = holder.value
        return found

    return member_of


def _element(index: int) -> JsonStep:
    decode = msgspec.json.Decoder(list[msgspec.Raw]).decode

    def element_of(text: JsonText) -> msgspec.Raw | None:
        elements = decode(text)
        return elements[index] if index < len(elements) else None

    return element_of
