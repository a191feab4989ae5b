"""Work on many partitions, one piece after the other, in slices that leave the loop to the requests.

What fits into a slice is done before `add` returns, so a topic of a few partitions is there at once; a topic of
a thousand takes several turns. Whoever has to wait for what has been added calls `when_done`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from barnabas.runtime.slices import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.partitions")


class WorkQueue:
    """Pieces of work in the order in which they came. A piece is an iterator that yields after each step."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pieces: deque[Iterator[object]] = deque()
        self._working = False

    def add(self, piece: Iterator[object]) -> None:
        """Begin with it now, or when all before it is done. One that raises is logged and ends there."""
        self._pieces.append(piece)
        self._work()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back when everything added so far is done; now when it is."""
        if self._pieces:
            self._pieces.append(_call(callback))
        else:
            callback()

    def _work(self) -> None:
        if not self._working and self._pieces:
            self._working = True
            in_slices(self._runtime, self._steps(), self._rest)

    def _steps(self) -> Iterator[object]:
        while self._pieces:
            try:
                yield from self._pieces[0]
            except Exception:  # the pieces behind it are others' business
                log.exception("work on partitions ended early")
            self._pieces.popleft()

    def _rest(self) -> None:
        self._working = False


def _call(callback: Callable[[], object]) -> Iterator[object]:
    yield callback()
