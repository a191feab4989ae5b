"""How far each partition has come in its stream, committed as an ordinary consumer group beside the log.

The log itself says most of it (jetstream/positions.py). A checkpoint adds what it does not say: that messages were dealt
with which became records of other partitions, that there were records which retention has removed since, and where the
very first message was asked for. It is committed behind the records, never before, so it may be old and is never wrong:
the later one of the two counts.

The committed offset is the partition's own, behind the last record of the stream that is committed there; so Kafka's
tools show how far the binding is behind with its appending, and that reading the log backwards may end there. The
metadata is "stream sequence timestamp partitions topic-id", separated by blanks, the timestamp that of the message (ns).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.errors import NatsError
from barnabas.nats.cluster.positions import Position, Positions
from barnabas.nats.jetstream.steps import Answer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import uuid_to_string

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime, Timer

GROUP_PREFIX: Final = "barnabas-jetstream-"
COMMITTED_TOGETHER_S: Final = 0.1  # what becomes known within this time
_NUMBER_DIGITS_MAX: Final = 20


class Checkpoint(msgspec.Struct, frozen=True):
    """Of one partition: all messages of the stream up to `sequence` (stored at `timestamp_ns`; 0 when it is not known)
    are dealt with, the records below `offset`. The topic had so many partitions when this one began."""

    offset: int
    stream: str
    sequence: int
    timestamp_ns: int
    partition_count: int
    leader_epoch: int = -1  # the partition's, then

    def is_of(self, partition: Partition, stream: str) -> bool:
        """Whether it is of this stream, and the partition still has the records that it counts on: a log that has lost
        its end, as when the power failed, ends its epochs earlier."""
        if self.stream != stream or self.offset > partition.log.log_end_offset:
            return False
        epoch_end = partition.epoch_end_offset(self.leader_epoch)[1] if self.leader_epoch >= 0 else -1
        return epoch_end < 0 or self.offset <= epoch_end


class CheckpointsUnavailable(NatsError):
    """The group's coordinator does not answer, or refuses."""


class Checkpoints:
    """Those of one topic. `keep` makes a change known, which is committed a little later."""

    def __init__(self, runtime: Runtime, positions: Positions, topic: str, topic_id: bytes) -> None:
        self.group = GROUP_PREFIX + topic
        self._runtime = runtime
        self._positions = positions
        self._topic_id = topic_id
        self._id_text = uuid_to_string(topic_id)
        self._changed: dict[int, Checkpoint] = {}
        self._timer: Timer | None = None
        self._is_committing = False

    async def fetch(self, partitions: Iterable[int]) -> dict[int, Checkpoint]:
        """By partition, where there is one. CheckpointsUnavailable: ask again later."""

        def ask(done: object) -> None:
            def fetched(error: ErrorCode, positions: Mapping[int, Position]) -> None:
                assert callable(done)
                done((error, positions), None)

            self._positions.fetch(self.group, self._topic_id, partitions, fetched)

        error, positions = await Answer[tuple[ErrorCode, Mapping[int, Position]]](ask)
        if error:
            raise CheckpointsUnavailable(f"the offsets of group {self.group} are not to be had: {error.name}")
        found = ((index, self._read(position)) for index, position in sorted(positions.items()))
        return {index: checkpoint for index, checkpoint in found if checkpoint is not None}

    async def commit(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Await it to know that they are safe. CheckpointsUnavailable."""
        error = await Answer[ErrorCode](
            lambda done: self._commit(checkpoints, lambda error: done(error, None))
        )
        if error:
            raise CheckpointsUnavailable(f"the offsets of group {self.group} are not committed: {error.name}")

    def keep(self, partition: int, checkpoint: Checkpoint) -> None:
        """Commit this one soon; a failure matters little, the next one follows."""
        self._changed[partition] = checkpoint
        if self._timer is None:
            self._timer = self._runtime.call_later(COMMITTED_TOGETHER_S, self._commit_changed)

    def forget(self, partition: int) -> None:
        """It is another broker's business."""
        self._changed.pop(partition, None)

    def stop(self) -> None:
        """Commit what there is, at once."""
        self._commit_changed()
        if self._timer is not None:
            self._timer.cancel()

    def _commit_changed(self) -> None:
        self._timer = None
        if self._changed and not self._is_committing:
            changed, self._changed = self._changed, {}
            self._is_committing = True
            self._commit(changed, self._has_committed)

    def _has_committed(self, _error: ErrorCode) -> None:
        self._is_committing = False

    def _commit(self, checkpoints: Mapping[int, Checkpoint], done: object) -> None:
        assert callable(done)
        positions = {
            index: Position(each.offset, each.leader_epoch, self._text(each))
            for index, each in checkpoints.items()
        }
        self._positions.commit(self.group, self._topic_id, positions, done)

    def _text(self, checkpoint: Checkpoint) -> str:
        return (
            f"{checkpoint.stream} {checkpoint.sequence} {checkpoint.timestamp_ns}"
            f" {checkpoint.partition_count} {self._id_text}"
        )

    def _read(self, position: Position) -> Checkpoint | None:
        words = position.metadata.split(" ")
        if len(words) != 5 or words[4] != self._id_text:
            return None  # somebody else's, or of an earlier topic of this name
        if not all(
            word.isascii() and word.isdigit() and len(word) <= _NUMBER_DIGITS_MAX for word in words[1:4]
        ):
            return None
        numbers = (int(words[1]), int(words[2]), int(words[3]))
        return Checkpoint(position.offset, words[0], *numbers, position.leader_epoch)
