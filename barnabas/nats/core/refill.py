"""What a leader has missed, and followers have received: they take over.

When the connection of a leader alone breaks, its followers go on receiving. One that lacks nothing (core/standbys.py) finds
out in two ways: the leader answers no marks any more; or it is back, calls for marks, and answers them with the number of its
absence. Such a follower asks the controller to lead, and appends what is missing as any new leader does, or it says that
nothing is missing. A follower that was absent as well says so.

Until then, for WAIT_S at most, a leader that is back appends nothing, so that the order is kept; and its gap is not told of.
There is none if each partition that it led meanwhile has gone to another leader or is known to be whole. (A new leader that
lacks something itself notes that as its own gap.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.carrier import Gap
    from barnabas.nats.core.gaps import GapLog
    from barnabas.runtime.interface import Runtime, Timer

WAIT_S: Final = 3.0


class Refill:
    """Of one binding on one broker. `on_wait(partitions)`: have followers send marks, and append nothing to these;
    `on_end(is_noted)`: go on; with `is_noted`, what the partitions lack is nothing, or will be logged as a gap."""

    def __init__(self, runtime: Runtime, gaps: GapLog) -> None:
        self.on_wait: Callable[[Iterable[int]], object] = lambda _: None
        self.on_end: Callable[[bool], object] = lambda _: None
        self._runtime = runtime
        self._gaps = gaps
        self._gap: Gap | None = None  # has no other reason than absences
        self._lacking: dict[int, Partition] = {}
        self._absent: dict[int, set[int]] = {}  # by partition: followers that were absent, too
        self._last_number = 0
        self._number = 0  # of the absence that followers may make good now
        self._timer: Timer | None = None

    def begin(self, begin_ms: int, cause: str, led: Mapping[int, Partition]) -> None:
        """A gap of these partitions, whose messages others may receive."""
        is_own = self._gaps.open is None or self._gaps.open is self._gap
        if self._gaps.open is None:
            self._lacking.clear()
        self._gaps.begin(begin_ms, cause)
        self._end_wait(is_noted=False)
        self._gap = self._gaps.open if is_own else None
        self._lacking.update(led)

    def spoil(self) -> None:
        """The gap has another reason as well."""
        self._gap = None
        self._lacking.clear()
        self._end_wait()

    def wait(self) -> None:
        """The leader receives again."""
        if self._gap is None or self._gaps.open is not self._gap or self._number:
            return
        if not any(len(partition.isr) > 1 for partition in self._lacking.values()):
            return
        self._absent.clear()
        self._number = self._last_number = max(self._last_number + 1, int(self._runtime.monotonic() * 1000))
        self._gaps.search()
        self._timer = self._runtime.call_later(WAIT_S, self._too_late)
        self.on_wait(self._lacking)

    def number_for(self, partition: int) -> int:
        """Of the absence that a follower of the partition may make good, 0 when there is none."""
        return self._number if partition in self._lacking else 0

    def led(self, leading: Iterable[int]) -> None:
        """These are led here; others have other leaders."""
        self._filled(self._lacking.keys() - set(leading))

    def whole(self, number: int, partitions: Iterable[int]) -> None:
        """A follower says that nothing is missing in these."""
        if number == self._number:
            self._filled(partitions)

    def absent(self, number: int, broker: int, partitions: Iterable[int]) -> None:
        """A follower says that it has not received all of it either."""
        if not self._number or number != self._number:
            return
        for index in partitions:
            if index in self._lacking and broker in self._lacking[index].isr:
                self._absent.setdefault(index, set()).add(broker)
        if all(
            len(self._absent.get(index, ())) >= len(partition.isr) - 1
            for index, partition in self._lacking.items()
        ):
            self._too_late()

    def _filled(self, partitions: Iterable[int]) -> None:
        if not self._lacking:
            return
        for index in partitions:
            self._lacking.pop(index, None)
        if not self._lacking and self._gap is not None:
            if self._gaps.open is self._gap:
                self._gaps.fill()
            self._gap = None
            self._end_wait()

    def _too_late(self) -> None:
        self._gap = None
        self._lacking.clear()
        self._end_wait()

    def _end_wait(self, *, is_noted: bool = True) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._number = 0
            self._gaps.found(None)
            self.on_end(is_noted)
