"""The positions of the partitions led here in their stream.

When this broker becomes a partition's leader, the position is the later of its log's (jetstream/log_position.py) and its
checkpoint's. A partition without a position gets a checkpoint before its first message, which says where it began. From then
on positions advance with the run, and are committed as checkpoints every few seconds, after the records.

A partition that is added to a topic begins at the position that the others had then, because its messages went to them
before. That is exact if one broker leads all partitions; brokers do not change at the same message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from barnabas.nats.jetstream.checkpoint import Checkpoint
from barnabas.nats.jetstream.log_position import find_position
from barnabas.nats.jetstream.stream import Reached, Stream, is_still_valid

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.jetstream.api import JetStreamApi
    from barnabas.nats.jetstream.checkpoint import Checkpoints
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.errors import ErrorCode


class Progress:
    """The positions of one binding. After `find` `reached` has every partition that is led here."""

    def __init__(self, runtime: Runtime, binding: Binding, checkpoints: Checkpoints | None) -> None:
        self.reached: dict[int, Reached] = {}
        self.recreated: set[int] = set()  # partitions with records of an earlier stream of this name only
        self._runtime = runtime
        self._binding = binding
        self._checkpoints = checkpoints
        self._stream = ""
        self._created = ""
        self._begun_with: dict[int, int] = {}  # by partition: the topic's partition count when it began
        self._count = 0  # of partitions
        self._count_since = 0  # the highest position when there first were `_count` partitions
        self._noted: dict[int, Reached] = {}  # by partition, the last one for a checkpoint

    @property
    def first(self) -> int:
        """The first message that some partition needs."""
        return min(each.sequence for each in self.reached.values()) + 1

    @property
    def last(self) -> int:
        """The highest position of a partition."""
        return max(each.sequence for each in self.reached.values())

    def forget(self, partition: int) -> None:
        """The partition's position is to be found again."""
        self.reached.pop(partition, None)
        self._noted.pop(partition, None)

    def advance(self, sequence: int, timestamp_ns: int) -> None:
        """All messages up to this one are taken."""
        for index, reached in self.reached.items():
            if reached.sequence < sequence:
                self.reached[index] = Reached(sequence, timestamp_ns)

    async def find(
        self, api: JetStreamApi, stream: Stream, leading: Mapping[int, Partition], partition_count: int
    ) -> None:
        """Finds the positions that are unknown. Raises Blocked, and errors of the API, the log and the checkpoints."""
        info = stream.info
        if (info.config.name, info.created) != (self._stream, self._created):
            self._stream, self._created = info.config.name, info.created
            self.reached.clear()
            self._count = 0
        unknown = [index for index in sorted(leading) if index not in self.reached]
        checkpoints: Mapping[int, Checkpoint] = {}
        found: dict[int, Reached] = {}
        if unknown and self._checkpoints is not None:
            checkpoints = await self._checkpoints.fetch(range(partition_count))
        for index in unknown:
            checkpoint = checkpoints.get(index)
            reached = await self._find(api, stream, leading[index], checkpoint)
            if reached is not None:
                found[index] = reached
            self._begun_with[index] = partition_count if checkpoint is None else checkpoint.partition_count
        if partition_count != self._count:
            self._count = partition_count
            here = (*self.reached.values(), *found.values())
            self._count_since = max((each.sequence for each in here), default=0)
        await self._begin(
            stream, leading, checkpoints, [each for each in unknown if each not in found], found
        )
        self.reached.update(found)

    async def _begin(
        self,
        stream: Stream,
        leading: Mapping[int, Partition],
        checkpoints: Mapping[int, Checkpoint],
        new: list[int],
        found: dict[int, Reached],
    ) -> None:
        """Adds the first positions of the partitions without one to `found`, and commits their checkpoints."""
        elsewhere = [
            each.sequence
            for index, each in checkpoints.items()
            if index not in leading and each.stream == self._stream
        ]
        begun: dict[int, Checkpoint] = {}
        for index in new:
            before = stream.before_start
            if self._was_added(index, checkpoints):
                before = max(self._count_since, *elsewhere, 0)
            found[index] = Reached(before)
            begun[index] = self._checkpoint(
                index, leading[index], leading[index].high_watermark, found[index]
            )
        if begun and self._checkpoints is not None:
            await self._checkpoints.commit(begun)

    def _was_added(self, partition: int, checkpoints: Mapping[int, Checkpoint]) -> bool:
        """Whether other partitions began before this one existed."""
        stream = self._stream
        return any(
            each.stream == stream and each.partition_count <= partition for each in checkpoints.values()
        )

    async def _find(
        self, api: JetStreamApi, stream: Stream, partition: Partition, checkpoint: Checkpoint | None
    ) -> Reached | None:
        name = self._stream
        if checkpoint is not None and not checkpoint.is_of(partition, name):
            checkpoint = None
        floor = checkpoint.offset if checkpoint is not None else 0
        position = await find_position(self._runtime, partition, name, floor)
        known = [
            Reached(each.sequence, each.timestamp_ns) for each in (position, checkpoint) if each is not None
        ]
        if not known:
            return None
        reached = max(known, key=lambda each: (each.timestamp_ns, each.sequence))
        is_bounded = self._binding.start.kind in ("seq", "time")
        is_valid = await is_still_valid(api, stream, reached, self._binding.topic)
        # A log that ends at sequence 0, with a time, ends with tombstones of a recreated bucket (kv/recreated_bucket.py).
        if not is_valid or (reached.sequence == 0 and reached.timestamp_ns):
            self.recreated.add(partition.partition)
        if not is_valid:
            return Reached(stream.before_start if is_bounded else 0)
        if is_bounded and reached.sequence < stream.before_start:
            return Reached(stream.before_start)
        return reached

    def note(self, partitions: Mapping[int, Partition], sequence: int, timestamp_ns: int) -> None:
        """All messages up to this one are appended, and those up to `reached`. Commits checkpoints once the records are
        committed."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return
        for index, partition in partitions.items():
            reached = self.reached.get(index)
            if reached is None:
                continue
            if reached.sequence < sequence:
                reached = Reached(sequence, timestamp_ns)
            if reached == self._noted.get(index):
                continue
            self._noted[index] = reached
            end = partition.log.log_end_offset
            checkpoint = self._checkpoint(index, partition, end, reached)

            def committed(error: ErrorCode, index: int = index, checkpoint: Checkpoint = checkpoint) -> None:
                if not error:
                    checkpoints.keep(index, checkpoint)

            partition.when_committed(end, committed)

    def _checkpoint(self, index: int, partition: Partition, offset: int, reached: Reached) -> Checkpoint:
        return Checkpoint(
            offset,
            self._stream,
            reached.sequence,
            reached.timestamp_ns,
            self._begun_with[index],
            partition.leader_epoch,
        )

    def stop(self) -> None:
        """Commits the last checkpoints at once."""
        if self._checkpoints is not None:
            self._checkpoints.stop()
        self.reached.clear()
