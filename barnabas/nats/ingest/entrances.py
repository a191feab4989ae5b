"""The entrances of a binding's partitions (ingest/entrance.py): opened when a leadership begins or ids have to be learned
anew, taken away when there is nothing left to look at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.nats.ingest.dedup import DedupWindow
from barnabas.nats.ingest.dedup_rebuild import DedupRebuild, RebuildQueue
from barnabas.nats.ingest.entrance import Entrance

if TYPE_CHECKING:
    from barnabas.nats.core.ledger import Side
    from barnabas.nats.core.shadow import Asked
    from barnabas.nats.ingest.lane import Lane
    from barnabas.runtime.interface import Runtime

StoreAsking = Callable[[int, bytes, "Asked"], object]  # partition, tail, what is asked


class Entrances:
    """By partition, as `by_index`. `rebuilt()`: what waited for ids has gone its way."""

    def __init__(self, runtime: Runtime, store_asking: StoreAsking, rebuilt: Callable[[], object]) -> None:
        self.by_index: dict[int, Entrance] = {}
        self._runtime = runtime
        self._store_asking = store_asking
        self._rebuilt = rebuilt
        self._rebuilds = RebuildQueue()

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(entrance.size for entrance in self.by_index.values())

    def open(self, index: int, lane: Lane, ahead: Side[None] | None) -> Entrance:
        """The leadership begins. `ahead`: what is in the log and may be received yet."""
        entrance = self.by_index[index] = Entrance(lane, ahead, partial(self._store_asking, index))
        return entrance

    def close(self, index: int) -> list[tuple[bytes, Asked | None]]:
        """The leadership has ended; what still waits."""
        entrance = self.by_index.pop(index, None)
        return [] if entrance is None else entrance.close()

    def learn_ids(self, index: int, lane: Lane) -> None:
        """Read from the log which ids came lately."""
        entrance = self.by_index[index]
        entrance.rebuild = DedupRebuild(
            self._runtime, lane.partition, lane.dedup, lambda _error: self._learned(index, entrance)
        )
        self._rebuilds.add(entrance.rebuild)

    def learn_ids_anew(self, index: int, lane: Lane, window_ms: int) -> None:
        """The window has another length: what is in it, the log knows."""
        before = lane.dedup
        lane.dedup = DedupWindow(window_ms, before.name)
        for identity, place in before.dropped().items():
            lane.dedup.open(identity, place)
        entrance = self.by_index.get(index)
        if entrance is None or entrance.rebuild is None:
            self.open(index, lane, None)
        else:
            entrance.rebuild.cancel()
            entrance.learn_anew()
        self.learn_ids(index, lane)

    def take_away(self) -> bool:
        """Those with nothing left to look at; whether there were any."""
        done = [index for index, entrance in self.by_index.items() if entrance.is_open]
        for index in done:
            del self.by_index[index]
        return bool(done)

    def _learned(self, index: int, entrance: Entrance) -> None:
        if self.by_index.get(index) is entrance:
            entrance.rebuilt()
            self._rebuilt()
