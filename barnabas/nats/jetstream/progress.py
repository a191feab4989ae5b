"""How far the partitions that are led here have come in their stream, as one broker knows it.

Found when a partition comes to be led here: from its log and its checkpoint (jetstream/origin.py), and noted as a
checkpoint before the first message of a partition that has come to nothing yet, so that it is known where it began. From
then on the run tells how far it has come, and every few seconds that is committed behind the records.

A partition that is added to a running binding begins where the others stood when there came to be more: until then its
messages went to them. That is exact where all partitions are led by one broker; brokers do not change at the same message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from barnabas.nats.jetstream.checkpoint import Checkpoint
from barnabas.nats.jetstream.origin import (
    Reached,
    Stream,
    later_of,
    still_counts,
    was_added,
)
from barnabas.nats.jetstream.positions import find_position

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.jetstream.api import JetStreamApi
    from barnabas.nats.jetstream.checkpoint import Checkpoints
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.errors import ErrorCode


class Progress:
    """Of one binding. `reached` has every partition that is led here once `find` has returned."""

    def __init__(self, runtime: Runtime, binding: Binding, checkpoints: Checkpoints | None) -> None:
        self.reached: dict[int, Reached] = {}
        self.made_anew: set[int] = (
            set()
        )  # partitions that have taken of an earlier stream of this name, and not of this one
        self._runtime = runtime
        self._binding = binding
        self._checkpoints = checkpoints
        self._stream = ""
        self._created = ""
        self._begun_with: dict[int, int] = {}  # by partition: of how many it was one when it began
        self._count = 0
        self._turn = 0  # what had been reached when there came to be `_count` partitions
        self._noted: dict[int, Reached] = {}  # by partition, what was committed last

    @property
    def first(self) -> int:
        """The first message that some partition needs."""
        return min(each.sequence for each in self.reached.values()) + 1

    @property
    def last(self) -> int:
        """The last one that some partition has come to."""
        return max(each.sequence for each in self.reached.values())

    def forget(self, partition: int) -> None:
        """Nothing is known of it any more: it is to be found again."""
        self.reached.pop(partition, None)
        self._noted.pop(partition, None)

    def came_to(self, sequence: int, timestamp_ns: int) -> None:
        """All messages up to this one are dealt with."""
        for index, reached in self.reached.items():
            if reached.sequence < sequence:
                self.reached[index] = Reached(sequence, timestamp_ns)

    async def find(
        self, api: JetStreamApi, stream: Stream, leading: Mapping[int, Partition], partition_count: int
    ) -> None:
        """Find what is not known. Raises what its parts raise."""
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
            self._turn = max((each.sequence for each in here), default=0)
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
        """Where those begin that have come to nothing yet."""
        elsewhere = [
            each.sequence
            for index, each in checkpoints.items()
            if index not in leading and each.stream == self._stream
        ]
        begun: dict[int, Checkpoint] = {}
        for index in new:
            before = stream.before_start
            if was_added(index, checkpoints, self._stream):
                before = max(self._turn, *elsewhere, 0)
            found[index] = Reached(before)
            begun[index] = self._checkpoint(
                index, leading[index], leading[index].high_watermark, found[index]
            )
        if begun and self._checkpoints is not None:
            await self._checkpoints.commit(begun)

    async def _find(
        self, api: JetStreamApi, stream: Stream, partition: Partition, checkpoint: Checkpoint | None
    ) -> Reached | None:
        name = self._stream
        if checkpoint is not None and not checkpoint.is_of(partition, name):
            checkpoint = None
        floor = checkpoint.offset if checkpoint is not None else 0
        reached = later_of(await find_position(self._runtime, partition, name, floor), checkpoint)
        if reached is None:
            return None
        is_bounded = self._binding.start.kind in ("seq", "time")
        counts = await still_counts(api, stream, reached, f"topic {self._binding.topic}")
        # A log that ends at number 0 of the stream, with a time, has been told of that before (kv/made_anew.py).
        if not counts or (reached.sequence == 0 and reached.timestamp_ns):
            self.made_anew.add(partition.partition)
        if not counts:
            return Reached(stream.before_start if is_bounded else 0)
        if is_bounded and reached.sequence < stream.before_start:
            return Reached(stream.before_start)
        return reached

    def note(self, partitions: Mapping[int, Partition], sequence: int, timestamp_ns: int) -> None:
        """All up to this message is appended, and to what else has been reached: commit that, once the records are."""
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
        """Commit what has been noted, at once."""
        if self._checkpoints is not None:
            self._checkpoints.stop()
        self.reached.clear()
