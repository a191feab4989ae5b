"""What methods of a broker return for `await`: work that is finished, or work that needs turns of the running loop.

Python warns of a coroutine that is never awaited. `Pending` does the same for work that goes on by itself: without `await` it is not
done when the next line runs, and its failure is lost.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - what is awaited belongs to the test's loop
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator
    from types import FrameType

_OURS = "barnabas.testing"


class Finished:
    """Has happened; awaiting it takes no time."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Pending:
    """To be awaited, once or more often. A RuntimeWarning names the method and the line where it never is."""

    def __init__(self, work: Awaitable[None]) -> None:
        self._future = asyncio.ensure_future(work)
        self._is_awaited = False
        self._method, self._file, self._line = _called_from(sys._getframe(1))

    def __await__(self) -> Generator[object, None, None]:
        self._is_awaited = True
        return self._future.__await__()

    def cancel(self) -> None:
        """Do not do it; no warning."""
        self._is_awaited = True
        self._future.cancel()

    def __del__(self) -> None:
        if not self._is_awaited:
            warnings.warn_explicit(
                f"{self._method!r} was never awaited: what a cluster does in the running loop needs `await`",
                RuntimeWarning,
                self._file,
                self._line,
            )


def _called_from(frame: FrameType | None) -> tuple[str, str, int]:
    """The method of the broker's that was called, and by which line."""
    method = ""
    while frame is not None and is_ours(frame):
        method, frame = frame.f_code.co_name, frame.f_back
    return (method, "", 0) if frame is None else (method, frame.f_code.co_filename, frame.f_lineno)


def is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of this package, its tests left out."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(_OURS) and ".tests." not in name
