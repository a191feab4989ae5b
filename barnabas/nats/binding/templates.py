"""Templates: a topic's name from a subject (nats.topic.template), a subject from a record (nats.publish.subject).

A template is text with fields in braces. Braces have no escape: neither a topic's name nor a usual subject has one.
Expanding gives None where there is no result: a token that the subject does not have, a null key, an invalid topic name, an
invalid subject.

A topic's name holds ASCII letters, digits, ".", "_" and "-". Dots, dashes, letters and digits of a subject stay; every
other byte, "_" among them, becomes "__" and two hexadecimal digits: `orders.eu-1` stays, `a_b` is `a__5Fb`.

"_" is always escaped for two reasons. Kafka refuses a topic whose name differs from another's only in "." and "_" (their
metrics would have one name): since a subject has no empty token, the names of two subjects differ in more than that. And no
subject becomes the name of one of Kafka's internal topics.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.operations.topic_names import NAME_LENGTH_MAX, invalid_topic_name
from barnabas.nats.binding.keys import TOKEN_MAX, header_name
from barnabas.nats.binding.subjects import is_valid_subject, pattern_problem

TEMPLATE_LENGTH_MAX: Final = 500

_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_TOKEN_NUMBER: Final = re.compile(r"[1-9][0-9]{0,3}")
_NAME_PART: Final = re.compile(r"[a-zA-Z0-9._-]*")
_ESCAPED: Final = re.compile(rb"[^a-zA-Z0-9.-]")

# First tokens of subjects that answers to requests go to. No record is published there.
INTERNAL_FIRST_TOKENS: Final = (b"_INBOX", b"_R_", b"_GR_")

HeaderValue = Callable[[bytes], bytes | None]


def is_internal_subject(subject: bytes) -> bool:
    """Whether a subject is the server's own or the reply subject of a request."""
    return subject[:1] == b"$" or subject.partition(b".")[0] in INTERNAL_FIRST_TOKENS


class TopicTemplate(msgspec.Struct, frozen=True):
    """Topic names made of a subject: text and token numbers from 1 in turn; 0 is the whole subject."""

    text: str
    parts: tuple[str | int, ...]

    @property
    def token_max(self) -> int:
        """The highest token number in it."""
        return max(part for part in self.parts if isinstance(part, int))

    def expand(self, subject: bytes) -> str | None:
        """The topic for a subject; None when the name would be invalid."""
        tokens = subject.split(b".")
        if self.token_max > len(tokens):
            return None
        name = "".join(
            part if isinstance(part, str) else escape_topic(tokens[part - 1] if part else subject)
            for part in self.parts
        )
        return None if len(name) > NAME_LENGTH_MAX or invalid_topic_name(name) else name

    def may_give(self, topic: str) -> bool:
        """Whether some subject could give this topic."""
        expression = "".join(
            re.escape(part) if isinstance(part, str) else "[^.]+" if part else ".+" for part in self.parts
        )
        return re.fullmatch(expression, topic) is not None


class PublishTemplate(msgspec.Struct, frozen=True):
    """Subjects made of a record: (kind, text) in turn; kinds text, key, topic, partition and header (its name)."""

    text: str
    parts: tuple[tuple[str, str], ...]

    def expand(
        self, topic: bytes, partition: int, key: bytes | None, header_value: HeaderValue
    ) -> bytes | None:
        """The subject for a record; `header_value` returns a header's (last) value. None when it gives no valid subject."""
        found: list[bytes] = []
        for kind, text in self.parts:
            if kind == "text":
                value: bytes | None = text.encode()
            elif kind == "key":
                value = key
            elif kind == "topic":
                value = topic
            elif kind == "partition":
                value = b"%d" % partition
            else:
                value = header_value(text.encode())
            if not value:
                return None
            found.append(value)
        subject = b"".join(found)
        return subject if is_valid_subject(subject) and not is_internal_subject(subject) else None

    def pattern(self, topic: str) -> str:
        """A pattern of all subjects that it can give, for `overlap`; ">" may be anywhere in it."""
        # Keys and headers may contain several tokens, a partition's number is part of one. No subject contains NUL.
        marked = "".join(
            text if kind == "text" else topic if kind == "topic" else "\1" if kind == "partition" else "\0"
            for kind, text in self.parts
        )
        return ".".join(
            ">" if "\0" in token else "*" if "\1" in token else token for token in marked.split(".")
        )


def parse_topic_template(text: str) -> TopicTemplate:
    """nats.topic.template's value, not empty."""
    config = "nats.topic.template"
    parts: list[str | int] = []
    for is_field, part in _split(config, text):
        if not is_field:
            if not _NAME_PART.fullmatch(part):
                raise ConfigError.invalid(
                    config, text, 'Beside its fields it may hold ASCII letters, digits, ".", "_" and "-" only'
                )
            parts.append(part)
        elif part == "subject":
            parts.append(0)
        elif _TOKEN_NUMBER.fullmatch(part) and int(part) <= TOKEN_MAX:
            parts.append(int(part))
        else:
            raise ConfigError.invalid(
                config,
                text,
                f"Unknown field {{{part}}}. Use {{1}}, {{2}} ... for the subject's tokens or {{subject}} for all of it",
            )
    if all(isinstance(part, str) for part in parts):
        raise ConfigError.invalid(
            config,
            text,
            "It has no field, so it names one topic only: set nats.subjects on that topic instead",
        )
    if text.startswith("__"):
        raise ConfigError.invalid(
            config, text, 'Names that begin with "__" are those of Kafka\'s internal topics'
        )
    return TopicTemplate(text, tuple(parts))


def parse_publish_template(text: str) -> PublishTemplate:
    """nats.publish.subject's value, not empty."""
    config = "nats.publish.subject"
    parts: list[tuple[str, str]] = []
    for is_field, part in _split(config, text):
        if not is_field:
            parts.append(("text", part))
        elif part in ("key", "topic", "partition"):
            parts.append((part, ""))
        elif part.startswith("header:"):
            parts.append(("header", header_name(config, text, part.removeprefix("header:"))))
        else:
            raise ConfigError.invalid(
                config,
                text,
                f"Unknown field {{{part}}}. Use {{key}}, {{topic}}, {{partition}} or {{header:NAME}}",
            )
    template = PublishTemplate(text, tuple(parts))
    sample = "".join(part if kind == "text" else "x" for kind, part in parts)
    problem = pattern_problem(sample)
    if problem is None and not is_valid_subject(sample.encode()):
        problem = "messages are published to a subject, not to a pattern with wildcards"
    if problem:
        raise ConfigError.invalid(config, text, f"No subject to publish to: {problem}")
    first = sample.encode() if parts[0][0] == "text" else b""
    if is_internal_subject(first):
        raise ConfigError.invalid(
            config,
            text,
            "Subjects of the server itself and of requests' answers ($..., _INBOX) are not published to. "
            "For a key-value bucket use nats.mode=kv with nats.bucket",
        )
    return template


def _split(config: str, text: str) -> list[tuple[bool, str]]:
    """(whether it is a field, its text) in turn."""
    if len(text) > TEMPLATE_LENGTH_MAX:
        raise ConfigError.invalid(config, text, f"It is longer than {TEMPLATE_LENGTH_MAX} characters")
    pieces = [
        (bool(index % 2), piece) for index, piece in enumerate(_FIELD.split(text)) if piece or index % 2
    ]
    if any(not is_field and ("{" in piece or "}" in piece) for is_field, piece in pieces):
        raise ConfigError.invalid(config, text, "A brace is not closed or not opened")
    return pieces


def escape_topic(subject: bytes) -> str:
    """A subject (or one token of it) as a topic name; it may be longer than a topic's name can be."""
    return _ESCAPED.sub(lambda found: b"__%02X" % found[0][0], subject).decode("ascii")
