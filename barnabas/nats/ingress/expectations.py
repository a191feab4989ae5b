"""Expectations: the Nats-* headers by which a publisher makes storing a message depend on a condition.

Each is honoured or refused, as JetStream would with such a stream; none is ignored.
- Nats-Expected-Stream: the stream is the topic.
- Nats-Expected-Last-Sequence: of the partition that the message goes to. A sequence is an offset plus one, so the expected value is
  the partition's end offset, 0 for an empty one.
- Nats-Expected-Last-Msg-Id: the Nats-Msg-Id of the partition's last message.
- Nats-Rollup: sub: the message replaces all before it under its subject. A compacted topic whose key is the subject does that
  with every message; others refuse it, and every topic refuses `all`.
- Refused, because a topic has none of it: sequences by subject, a time to live of a single message, counters, atomic
  batches, schedules.

A duplicate (ingress/dedup.py) is answered as one before its expectations are checked: a publisher that has lost the answer and
tries again, with the same headers, learns that it worked. nats-server did so up to 2.11; later versions check the sequence
first and refuse what they have stored.

Only expectations for the topic count (`concern_topic`). A message with a reply subject that asks for no acknowledgement of
ours awaits another responder's answer, and so do its expectations: a stream of JetStream may listen to the same subject. A
copy that JetStream republishes was checked when it was stored.

Codes, numbers and texts are those of nats-server 2.15. An empty value counts as none.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from barnabas.nats.client.headers import find_header
from barnabas.nats.ingress.dedup import ID_BYTES_MAX, kept_id
from barnabas.nats.pub_ack import NO_ACK


class Refusal(NamedTuple):
    """Why a message is not stored; for PendingAcks.refuse."""

    code: int
    number: int
    description: str


_EXPECTS: Final = re.compile(rb"\r\nNats-(?:Expected-|Rollup:|TTL:|Incr:|Batch-Id:|Schedule)")
_OF_LOG: Final = (
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Rollup",
)
_REPUBLISHED: Final = re.compile(rb"\r\nNats-Stream:(?s:.*)\r\nNats-Sequence:")
_NUMBER: Final = re.compile(rb"[0-9]{1,20}")
_DURATION: Final = re.compile(
    r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII
)
_UNIT_S: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}

ATOMIC_DISABLED: Final = Refusal(400, 10174, "atomic publish is disabled")
COUNTERS_DISABLED: Final = Refusal(400, 10168, "message counters is disabled")
WRONG_STREAM: Final = Refusal(400, 10060, "expected stream does not match")
TTL_INVALID: Final = Refusal(400, 10165, "invalid per-message TTL")
TTL_DISABLED: Final = Refusal(400, 10166, "per-message TTL is disabled")
SCHEDULES_DISABLED: Final = Refusal(400, 10188, "message schedules is disabled")
SCHEDULER_INVALID: Final = Refusal(400, 10212, "message schedules invalid scheduler")
SUBJECT_WITHOUT_SEQUENCE: Final = Refusal(
    400, 10193, "missing sequence for expected last sequence per subject"
)
NO_SUBJECT_SEQUENCES: Final = Refusal(
    400,
    10003,
    "a topic keeps no last sequence per subject; Nats-Expected-Last-Sequence is that of the message's partition",
)
ROLLUP_NOT_PERMITTED: Final = Refusal(500, 10111, "rollup not permitted")


def expects(header_block: bytes) -> bool:
    """Whether there are headers for `refusal` and `refusal_now` to check. Quick: `find` takes half the time of `in`."""
    return header_block.find(b"\r\nNats-") >= 0 and _EXPECTS.search(header_block) is not None


def concern_topic(mode: str, level: int, reply: bytes, header_block: bytes) -> bool:
    """Whether the expectations of a message are for the topic. `mode` is nats.acks, `level` the acknowledgement that the
    message asks for (pub_ack.py)."""
    if level != NO_ACK:
        return True
    return not reply and mode != "off" and _REPUBLISHED.search(header_block) is None


def refusal(header_block: bytes, topic: str) -> Refusal | None:
    """Why the topic does not store such a message, whatever the partition holds. Checked before the message's id."""

    def has(name: bytes) -> bool:
        return bool(_value(header_block, name))

    if has(b"Nats-Batch-Id"):
        return ATOMIC_DISABLED
    if has(b"Nats-Incr"):
        return COUNTERS_DISABLED
    if _value(header_block, b"Nats-Expected-Stream") not in (b"", topic.encode()):
        return WRONG_STREAM
    time_to_live = _value(header_block, b"Nats-TTL")
    if time_to_live:
        return TTL_DISABLED if _is_ttl(time_to_live) else TTL_INVALID
    of_scheduler = has(b"Nats-Scheduler"), has(b"Nats-Schedule-Next")  # both or neither
    if has(b"Nats-Schedule") or all(of_scheduler):
        return SCHEDULES_DISABLED
    if any(of_scheduler):
        return SCHEDULER_INVALID
    return None


def expects_of_log(header_block: bytes) -> bool:
    """Whether there are headers for `refusal_now` to check."""
    return any(_value(header_block, name) for name in _OF_LOG)


def refusal_now(
    header_block: bytes, last_sequence: int, last_id: bytes, *, keeps_last_by_subject: bool = False
) -> Refusal | None:
    """Why a message that is no duplicate is not stored, given what the partition holds now.

    `last_sequence` is the offset that it would get, which must not change until it is appended; `last_id` is the id of the
    message before (DedupWindow.last_id). `keeps_last_by_subject`: the topic is compacted and its key is the subject.
    """
    expected = _value(header_block, b"Nats-Expected-Last-Sequence")
    if expected and not (_NUMBER.fullmatch(expected) and int(expected) == last_sequence):
        return Refusal(400, 10071, f"wrong last sequence: {last_sequence}")
    if _value(header_block, b"Nats-Expected-Last-Subject-Sequence"):
        return NO_SUBJECT_SEQUENCES
    if _value(header_block, b"Nats-Expected-Last-Subject-Sequence-Subject"):
        return SUBJECT_WITHOUT_SEQUENCE
    expected = _value(header_block, b"Nats-Expected-Last-Msg-Id")
    if expected and kept_id(expected) != last_id:
        shown = last_id.decode(errors="replace") if len(last_id) <= ID_BYTES_MAX else "(a long one)"
        return Refusal(400, 10070, f"wrong last msg ID: {shown}")
    rollup = _value(header_block, b"Nats-Rollup")
    if rollup:
        return _rollup_refusal(rollup, keeps_last_by_subject)
    return None


def _rollup_refusal(value: bytes, keeps_last_by_subject: bool) -> Refusal | None:
    wanted = value.lower()
    if not keeps_last_by_subject or wanted == b"all":
        return ROLLUP_NOT_PERMITTED
    if wanted != b"sub":
        return Refusal(500, 10111, f"rollup value invalid: {json.dumps(value.decode(errors='replace'))}")
    return None


def _value(header_block: bytes, name: bytes) -> bytes:
    return (find_header(header_block, name) or b"").lstrip(b" ")


def _is_ttl(value: bytes) -> bool:
    """Whether JetStream accepts a time to live: seconds, a Go duration of at least a second, or "never"."""
    if _NUMBER.fullmatch(value):
        return int(value) >= 1
    text = value.decode(errors="replace")
    if text.lower() == "never":
        return True
    total_s, position = 0.0, 0
    while position < len(text):
        found = _DURATION.match(text, position)
        if found is None:
            return False
        part = found.group().lstrip("+")
        unit = part.lstrip("0123456789.")
        total_s += float(part.removesuffix(unit)) * _UNIT_S[unit]
        position = found.end()
    return total_s >= 1
