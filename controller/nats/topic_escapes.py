"""Subjects as topic names, and back.

A topic's name holds ASCII letters, digits, ".", "_" and "-". Dots, dashes, letters and digits of a subject stay; every
other byte, "_" among them, becomes "__" and two hexadecimal digits: `orders.eu-1` stays, `a_b` is `a__5Fb`.

That "_" is never itself has two reasons. Kafka refuses a topic whose name differs from another's only in "." and "_"
(their metrics would have one name): since a subject has no empty token, no two subjects' names are alike even then.
And no subject, whoever publishes it, becomes the name of one of Kafka's internal topics.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPED: Final = re.compile(rb"[^a-zA-Z0-9.-]")
_UNESCAPED: Final = re.compile(r"__([0-9A-F]{2})")


def escape_topic(subject: bytes) -> str:
    """A subject (or one token of it) as a topic name; it may be longer than a topic's name can be."""
    return _ESCAPED.sub(lambda found: b"__%02X" % found[0][0], subject).decode("ascii")


def unescape_topic(name: str) -> bytes:
    """The subject whose escaped name this is; ValueError when it is no subject's."""
    subject = _UNESCAPED.sub(lambda found: chr(int(found[1], 16)), name).encode("latin-1", "replace")
    if escape_topic(subject) != name:
        raise ValueError(f"{name!r} is not the name of a subject")
    return subject
