"""Deduplication: the ids of the messages that one partition stored within nats.dedup.window.ms.

A message's id is its header Nats-Msg-Id. As with JetStream, the window of an id begins when its first message is stored
and a duplicate does not prolong it, the id counts and not the rest of the message, and the answer to a duplicate has the
sequence of the first. Unlike there each partition has its own ids: the same id under subjects that go to different
partitions is two messages.

Messages come one by one, records are appended in batches. An id is open while its message waits in the batch that is
being built, and known by its offset when that batch has been appended; when the append fails, its ids are forgotten and
the publisher may try again.

Memory: ids in the order of their time, and one dict by id. Expiry drops ids from the front, each once. At most
`entries_max` ids are kept; beyond that the oldest are dropped early, which is counted and logged. Long ids are kept as a
digest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

log = logging.getLogger("barnabas.nats")

MESSAGE_ID: Final = b"Nats-Msg-Id"
ENTRIES_MAX: Final = 1_000_000  # some 200 bytes each
ID_BYTES_MAX: Final = 64  # longer ids are kept as a digest
_LINE: Final = b"\r\n" + MESSAGE_ID + b":"
_NEVER: Final = 1 << 63
_WARNING_EVERY_MS: Final = 60_000


def message_id(header_block: bytes) -> bytes:
    """The id that a message has, b"" when it has none. The first header of that name counts, in that letter case."""
    start = header_block.find(_LINE)
    if start < 0:
        return b""
    start += len(_LINE)
    end = header_block.find(b"\r\n", start)
    return kept_id(header_block[start:] if end < 0 else header_block[start:end])


def kept_id(value: bytes) -> bytes:
    """The form in which a header's value is kept."""
    value = value.lstrip(b" ")  # as nats-server does
    if len(value) <= ID_BYTES_MAX:
        return value
    return blake2b(value, digest_size=32, person=b"Nats-Msg-Id").digest() + b"\r\n"  # no value holds these


class DedupWindow:
    """The ids of one partition while it is led here. Times in ms since the epoch; a clock that goes back counts as one that
    stands still."""

    def __init__(self, window_ms: int, name: str = "", entries_max: int = ENTRIES_MAX) -> None:
        """`window_ms` 0 remembers nothing. `name` of the partition, for the log."""
        self.window_ms = window_ms
        self.name = name
        self.entries_max = entries_max
        self.dropped_early = 0
        self._offsets: dict[bytes, int] = {}
        self._ids: deque[bytes] = deque()  # the keys of `_offsets`, oldest first
        self._times: deque[tuple[int, int]] = deque()  # (expiry, number of ids), oldest first
        self._expiry_ms = _NEVER  # the first expiry
        self._open: dict[bytes, int] = {}  # ids of the batch that is being built, with their places in it
        self._last_open = b"", -1  # the last of them
        self._last = b"", -1  # the id of the last message and the offset behind it
        self._last_warning_ms = -_WARNING_EVERY_MS

    def __len__(self) -> int:
        return len(self._offsets)

    def find(self, identity: bytes, now_ms: int) -> int | None:
        """The offset of the record that has this id, or ~place (below 0) when its message waits at that place of the
        batch that is being built; None when the id is new."""
        if now_ms >= self._expiry_ms:
            self._expire(now_ms)
        offset = self._offsets.get(identity)
        if offset is None and self._open:
            place = self._open.get(identity)
            return None if place is None else ~place
        return offset

    def open(self, identity: bytes, place: int) -> None:
        """A message with this new id is at `place` in the batch that is being built."""
        self._last_open = identity, place
        if self.window_ms:
            self._open[identity] = place

    def appended(self, base_offset: int, end_offset: int, now_ms: int) -> None:
        """The batch is in the log, up to `end_offset` (exclusive): its ids are known by their offsets."""
        identity, place = self._last_open
        self._last = identity if base_offset + place + 1 == end_offset else b"", end_offset
        if place < 0:
            return
        self._last_open = b"", -1
        opened, self._open = self._open, {}
        if now_ms >= self._expiry_ms:
            self._expire(now_ms)
        for identity, place in opened.items():
            self._offsets[identity] = base_offset + place
        if opened:
            self._ids.extend(opened)
            self._note(len(opened), now_ms)

    def dropped(self) -> dict[bytes, int]:
        """The batch could not be appended as it is: forgets its ids. Returns them with their places."""
        opened, self._open = self._open, {}
        self._last_open = b"", -1
        return opened

    def last_id(self, log_end_offset: int) -> bytes:
        """The id of the partition's last message, also if it is older than the window; b"" when it has none, or another
        producer has appended since."""
        identity, end_offset = self._last
        return identity if end_offset == log_end_offset else b""

    def known_last(self, identity: bytes, end_offset: int) -> None:
        """The last record of the log, which ends at `end_offset`, has this id."""
        self._last = identity, end_offset

    def known(self, found: Iterable[tuple[bytes, int]], timestamp_ms: int) -> None:
        """Adds (id, offset) of records that were in the log before, in their order, with their time. Of an id that occurs twice
        within the window the first counts."""
        if not self.window_ms:
            return
        offsets, ids = self._offsets, self._ids
        before = len(ids)
        for identity, offset in found:
            if identity not in offsets:
                offsets[identity] = offset
                ids.append(identity)
        if len(ids) > before:
            self._note(len(ids) - before, timestamp_ms)

    def _note(self, count: int, now_ms: int) -> None:
        """The last `count` ids are from `now_ms`."""
        until = now_ms + self.window_ms
        times = self._times
        if times and times[-1][0] >= until:
            until, before = times.pop()
            count += before
        times.append((until, count))
        self._expiry_ms = times[0][0]
        excess = len(self._ids) - self.entries_max
        if excess > 0:
            self._drop_early(excess, now_ms)

    def _expire(self, now_ms: int) -> None:
        times = self._times
        while times and times[0][0] <= now_ms:
            self._forget(times.popleft()[1])
        self._expiry_ms = times[0][0] if times else _NEVER

    def _forget(self, count: int) -> None:
        next_id, offsets = self._ids.popleft, self._offsets
        for _ in range(count):
            del offsets[next_id()]

    def _drop_early(self, excess: int, now_ms: int) -> None:
        self._forget(excess)
        self.dropped_early += excess
        times = self._times
        while excess:
            until, count = times.popleft()
            if count > excess:
                times.appendleft((until, count - excess))
            excess -= min(excess, count)
        self._expiry_ms = times[0][0] if times else _NEVER
        if now_ms - self._last_warning_ms >= _WARNING_EVERY_MS:
            self._last_warning_ms = now_ms
            log.warning(
                "%s: more than %d message ids within nats.dedup.window.ms=%d: %d were dropped early, and repeated messages may be "
                "stored twice; set a shorter window",
                self.name,
                self.entries_max,
                self.window_ms,
                self.dropped_early,
            )
