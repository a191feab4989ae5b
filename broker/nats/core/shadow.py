"""What a broker keeps of a bound partition that has several replicas, so that a change of its leader loses nothing.

A follower in sync receives the messages as the leader does, and holds them against the records that replication brings
(core/ledger.py). When it becomes the leader it appends those that are not there: what the old leader had not yet appended, or
had appended where nobody else has it. Records that are there already and whose messages come late are passed over.
The old leader keeps its ledger, too: what its log is cut back by, it has received and does not have any more.

So moved and crashed leaders are one case, and no broker has to tell another anything.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.broker.nats.client.headers import Pairs
from barnabas.broker.nats.core.ledger import Ledger
from barnabas.broker.nats.records.parts import SUBJECT_HEADER
from barnabas.broker.nats.records.tails import read_tails
from barnabas.storage.errors import StorageError
from barnabas.wire.record_batch import HEADER_SIZE, RecordBatchError, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barnabas.broker.partition import Partition
    from barnabas.storage.log import Log

log = logging.getLogger("barnabas.nats")

LATEST_MS: Final = 5_000
LATEST_RECORDS: Final = (20_000, 2_000, 200)  # the most that are not larger together than
LATEST_BYTES_MAX: Final = 8 << 20
ASK_AGAIN_S: Final = 2.0
UNEVEN_S: Final = 1.0  # nothing is under way for so long, or much is all the time
KEPT_S: Final = 10.0  # deliveries and replication differ by less, or one of them has failed
DECOMPRESSED_BYTES_MAX: Final = 64 << 20
READ_BYTES: Final = 1 << 20
LOG_AGAIN_S: Final = 60.0

# Reply subject, header block and special headers of a message that asks for something; None of any other.
Asked: TypeAlias = tuple[bytes, bytes, Pairs]


class Beginning:
    """A ledger that begins where a mark stood among the messages, and in the leader's log."""

    __slots__ = (
        "_records_size", "has_mark", "leader_epoch", "ledger", "number", "records", "start_offset",
    )  # fmt: skip

    def __init__(self, number: int, leader_epoch: int) -> None:
        self.number = number
        self.leader_epoch = leader_epoch
        self.ledger: Ledger[Asked | None] = Ledger()
        self.has_mark = False  # it has come by among the messages
        self.start_offset = -1  # where it was in the leader's log, once that has told
        self.records: list[tuple[int, bytes]] = []  # that came meanwhile, with their offsets
        self._records_size = 0

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        return self._records_size + self.ledger.pending.size + self.ledger.ahead.size

    def stored(self, offset: int, tail: bytes, now_s: float) -> None:
        if self.start_offset < 0:
            self.records.append((offset, tail))
            self._records_size += len(tail)
        elif offset >= self.start_offset:
            self.ledger.stored(tail, now_s)

    def begins_at(self, offset: int, now_s: float) -> None:
        self.start_offset = offset
        records, self.records = self.records, []
        self._records_size = 0
        for at, tail in records:
            self.stored(at, tail, now_s)


class Shadow:
    """Of one partition, as long as this broker is in sync or leads. `now_s` is set by whoever reads the clock anyway."""

    __slots__ = (
        "_asked_at_s", "_beginning", "_bytes_max", "_even_at_s", "_expires_at_s", "_is_aligned",
        "_log_again_s", "ledger", "now_s", "partition",
    )  # fmt: skip

    def __init__(self, partition: Partition, now_s: float, now_ms: int, bytes_max: int) -> None:
        self.partition = partition
        self.ledger: Ledger[Asked | None] = Ledger()
        self.now_s = now_s
        self._bytes_max = bytes_max
        self._beginning: Beginning | None = None
        self._is_aligned = False
        self._even_at_s = now_s
        self._asked_at_s = now_s - ASK_AGAIN_S
        self._expires_at_s = now_s + 1
        self._log_again_s = now_s
        partition.observer = self
        self._remember_latest(now_ms - LATEST_MS)

    def close(self) -> None:
        if self.partition.observer is self:
            self.partition.observer = None

    def receive(self, tail: bytes) -> None:
        """A message of which nothing is asked."""
        self.ledger.received(tail, self.now_s, None)
        beginning = self._beginning
        if beginning is not None and beginning.has_mark:
            beginning.ledger.received(tail, self.now_s, None)

    def receive_asking(self, tail: bytes, asked: Asked) -> None:
        self.ledger.received(tail, self.now_s, asked)
        beginning = self._beginning
        if beginning is not None and beginning.has_mark:
            beginning.ledger.received(tail, self.now_s, asked)

    def tick(self, now_s: float) -> None:
        """Time goes on."""
        self.now_s = now_s
        if now_s >= self._expires_at_s:
            self._expires_at_s = now_s + 1
            self.ledger.expire(now_s - KEPT_S)
            beginning = self._beginning
            if beginning is not None and (
                now_s - self._asked_at_s > KEPT_S or beginning.size > self._bytes_max
            ):
                self._beginning = None  # nobody answers; the next mark may be
            for side in (self.ledger.pending, self.ledger.ahead):
                if side.size > self._bytes_max:
                    side.clear()
                    log.warning(
                        "%s: more messages differ from the log than nats.buffer.bytes holds; if the leader fails now, "
                        "some may be missing or there twice",
                        self.partition.log.name,
                    )

    def begin_anew(self) -> None:
        """The subscription is a new one, or this broker was the leader until now: what is in the log and was not
        received never will be."""
        self.ledger.ahead.clear()
        self._beginning = None
        self._is_aligned = False

    # -- where counting begins

    def wants_mark(self) -> bool:
        """Whether it is not known from where on to count, or something has been left over: the mark was not quite right
        then, or the leader has refused a message."""
        if not self.ledger.pending and not self.ledger.ahead:
            self._even_at_s = self.now_s
        if self.now_s - self._asked_at_s < ASK_AGAIN_S:
            return False
        return not self._is_aligned or self.now_s - self._even_at_s > UNEVEN_S

    def mark_sent(self, number: int) -> None:
        self._asked_at_s = self.now_s
        self._beginning = Beginning(number, self.partition.leader_epoch)

    def mark_received(self, number: int) -> None:
        """It has come by among the messages."""
        if self._beginning is not None and self._beginning.number == number:
            self._beginning.has_mark = True
            self._begin()

    def mark_found(self, number: int, leader_epoch: int, offset: int) -> None:
        """The leader of that epoch has received it with its log ending at `offset`."""
        beginning = self._beginning
        if (
            beginning is not None
            and beginning.number == number
            and beginning.leader_epoch == leader_epoch == self.partition.leader_epoch
        ):
            beginning.begins_at(offset, self.now_s)
            self._begin()

    def _begin(self) -> None:
        beginning = self._beginning
        if beginning is None or not beginning.has_mark or beginning.start_offset < 0:
            return
        # What the leader had appended before the mark must be here: until then it is the old ledger that knows of it.
        if self.partition.log.log_end_offset >= beginning.start_offset:
            self.ledger = beginning.ledger
            self._beginning = None
            self._is_aligned = True

    # -- the partition's log (ReplicaObserver)

    def replicated(self, batches: memoryview) -> None:
        try:
            self._note_replicated(bytes(batches))
        except Exception:  # noqa: BLE001 - replication does not end because of what stands beside it
            self._has_failed()

    def cutting(self, log: Log, offset: int) -> None:
        try:
            self._note_cut(log, offset)
        except Exception:  # noqa: BLE001 - as above
            self._has_failed()

    def _has_failed(self) -> None:
        if self.now_s >= self._log_again_s:
            self._log_again_s = self.now_s + LOG_AGAIN_S
            name = self.partition.log.name
            log.exception("%s: what it holds can't be compared with what came from NATS", name)

    def _note_replicated(self, batches: bytes) -> None:
        ledger, now_s, beginning = self.ledger, self.now_s, self._beginning
        for offset, tail in self._tails(batches)[0]:
            ledger.stored(tail, now_s)
            if beginning is not None:
                beginning.stored(offset, tail, now_s)
        if beginning is not None:
            self._begin()

    def _note_cut(self, log: Log, offset: int) -> None:
        """What is taken out of the log at `offset` and behind, as far as there is room for it."""
        ledger, now_s = self.ledger, self.now_s
        self._beginning = None
        for tails in self._read(log, max(offset, log.log_start_offset), self._bytes_max):
            for tail in tails or ():
                ledger.cut(tail, now_s, None)

    def _remember_latest(self, from_ms: int) -> None:
        """What has just come into the log may be received yet, where the subscription was there before: this broker may
        have had more to do than read it. Not of messages that are all alike: which of them are still to come, nobody
        knows. Of large ones fewer are looked at: others wait for this."""
        log = self.partition.log
        counts: Counter[bytes] = Counter()
        for records in LATEST_RECORDS:
            counts.clear()
            start = max(log.log_start_offset, log.log_end_offset - records)
            for tails in self._read(log, start, LATEST_BYTES_MAX, from_ms):
                if tails is None:
                    break
                counts.update(tails)
            else:
                break
        for tail, count in counts.items():
            if count == 1:
                self.ledger.stored(tail, self.now_s)

    def _read(self, log: Log, start: int, bytes_max: int, from_ms: int = 0) -> Iterator[list[bytes] | None]:
        """What `_tails` finds in a log from `start` on, piece by piece; None as the last, if it would be more than so many
        bytes of the log."""
        size = 0
        try:
            while start < log.log_end_offset:
                if size >= bytes_max:
                    yield None
                    return
                found = log.read(start, READ_BYTES)
                data = b"".join(region.read() for region in found.regions)
                size += len(data)
                tails, next_offset = self._tails(data, from_ms)
                if next_offset <= start:
                    return
                start = next_offset
                yield [tail for _, tail in tails]
        except (OSError, StorageError) as error:
            _complain(log.name, error)

    def _tails(self, data: bytes, from_ms: int = 0) -> tuple[list[tuple[int, bytes]], int]:
        """Those of the records that were messages, with their offsets, of batches that are not older than that; and the
        offset behind the last batch that is whole, or -1."""
        found: list[tuple[int, bytes]] = []
        position, next_offset = 0, -1
        try:
            while position + HEADER_SIZE <= len(data):
                batch = memoryview(data)[position:]
                header = read_header(batch)
                if header.size > len(batch):
                    break
                if header.max_timestamp >= from_ms:
                    tails = read_tails(batch[: header.size], DECOMPRESSED_BYTES_MAX)
                    found += [
                        (offset, tail)
                        for offset, tail in enumerate(tails, header.base_offset)
                        if SUBJECT_HEADER in tail
                    ]
                position += header.size
                next_offset = header.next_offset
        except RecordBatchError as error:
            _complain(self.partition.log.name, error)
        return found, next_offset


def _complain(name: str, error: Exception) -> None:
    log.warning("%s: what it holds can't be compared with what came from NATS: %s", name, error)
