"""Checkpoints: the position of each partition in its stream, committed to an ordinary consumer group.

Most of it is in the log (jetstream/log_position.py). A checkpoint adds messages that became records of other partitions,
records that retention has removed since, and the position at which an empty partition began. It is committed after the
records, so it may be old but is never wrong, and the later one of log and checkpoint counts.

The committed offset is the partition's, behind its last committed record of the stream: Kafka's tools show it, and a search
of the log backwards ends there. The metadata is `stream sequence timestamp partitions topic-id`, separated by blanks; the
timestamp is that of the message (ns).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.client.errors import NatsError
from barnabas.nats.cluster.positions import Position, Positions
from barnabas.runtime.procedures import Call
from barnabas.wire.errors import ErrorCode
from barnabas.wire.uuids import uuid_to_string

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime, Timer

GROUP_PREFIX: Final = "barnabas-jetstream-"
COMMIT_DELAY_S: Final = 0.1  # checkpoints of this time are committed together
_NUMBER_DIGITS_MAX: Final = 20


class Checkpoint(msgspec.Struct, frozen=True):
    """Of one partition: all messages of the stream up to `sequence` (stored at `timestamp_ns`; 0: unknown) are records below
    `offset`, or of other partitions."""

    offset: int
    stream: str
    sequence: int
    timestamp_ns: int
    partition_count: int  # of the topic, when this partition began
    leader_epoch: int = -1  # of the partition, when this was written

    def is_of(self, partition: Partition, stream: str) -> bool:
        """Whether it is of this stream, and the partition still has the records below `offset`. In a log that has lost its
        end, for instance after a power failure, the epoch ends earlier."""
        if self.stream != stream or self.offset > partition.log.log_end_offset:
            return False
        epoch_end = partition.epoch_end_offset(self.leader_epoch)[1] if self.leader_epoch >= 0 else -1
        return epoch_end < 0 or self.offset <= epoch_end


class CheckpointsUnavailable(NatsError):
    """The group's coordinator does not answer, or answers with an error."""


class Checkpoints:
    """The checkpoints of one topic."""

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
        """The checkpoints by partition. CheckpointsUnavailable: to be tried again later."""
        error, positions = await Call[tuple[ErrorCode, Mapping[int, Position]]](
            lambda done: self._positions.fetch(
                self.group,
                self._topic_id,
                partitions,
                lambda error, positions: done((error, positions), None),
            )
        )
        if error:
            raise CheckpointsUnavailable(f"the offsets of group {self.group} can't be fetched: {error.name}")
        found = ((index, self._read(position)) for index, position in sorted(positions.items()))
        return {index: checkpoint for index, checkpoint in found if checkpoint is not None}

    async def commit(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Returns when they are committed. CheckpointsUnavailable."""
        error = await Call[ErrorCode](lambda done: self._commit(checkpoints, lambda error: done(error, None)))
        if error:
            raise CheckpointsUnavailable(f"the offsets of group {self.group} are not committed: {error.name}")

    def keep(self, partition: int, checkpoint: Checkpoint) -> None:
        """Commits this checkpoint soon. A failure does not matter: another one follows."""
        self._changed[partition] = checkpoint
        if self._timer is None:
            self._timer = self._runtime.call_later(COMMIT_DELAY_S, self._commit_changed)

    def stop(self) -> None:
        """Commits the last checkpoints at once."""
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

    def _commit(self, checkpoints: Mapping[int, Checkpoint], done: Callable[[ErrorCode], object]) -> None:
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
            return None  # not a checkpoint, or of an earlier topic of this name
        if not all(
            word.isascii() and word.isdigit() and len(word) <= _NUMBER_DIGITS_MAX for word in words[1:4]
        ):
            return None
        numbers = (int(words[1]), int(words[2]), int(words[3]))
        return Checkpoint(position.offset, words[0], *numbers, position.leader_epoch)
