"""Notices when the loop that a broker lives in is held up by a client that waits for that very broker.

Inside `async with Broker()` a blocking client (kafka-python, confluent-kafka) on the loop's own thread waits for an answer that
cannot come: the broker would have to run in the loop that the client holds up. Nothing fails, nothing moves. A thread looks on:
when the loop has not turned for a while although a client waits to be served, a warning names the line that holds it up; under
pytest, which keeps warnings for its end, standard error has it as well.
"""

from __future__ import annotations

import os
import select
import sys
import threading  # noqa: TID251 - the thread that looks on
from typing import TYPE_CHECKING

from barnabas.testing.pending import is_ours

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - the type
    from collections.abc import Callable, Iterable
    from types import FrameType

LOOK_EVERY_S = 0.25
HELD_S = 1.0  # without a turn of the loop


class BrokerBlocked(RuntimeWarning):
    """A client waits for a broker whose loop it holds up itself."""


class Watchdog:
    """Made and started on the loop's thread; `stop` ends its thread. `descriptors()` are sockets on which clients may wait, and is
    called from the watching thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptors: Callable[[], Iterable[int]]) -> None:
        self._loop = loop
        self._descriptors = descriptors
        self._watched = threading.get_ident()
        self._turned = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="barnabas-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._turned.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._turned.clear()
            if self._ended.is_set():  # since the last look: there are no more turns to wait for
                return
            try:
                self._loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:  # closed
                return
            if self._turned.wait(HELD_S):
                continue
            if self._has_waiting_clients():
                self._warn()
            while not self._turned.wait(HELD_S):  # once for each time that it is held up
                if self._loop.is_closed():
                    return

    def _has_waiting_clients(self) -> bool:
        poll = select.poll()
        for descriptor in self._descriptors():
            poll.register(descriptor, select.POLLIN)
        try:
            return any(event & select.POLLIN for _, event in poll.poll(0))
        except OSError:
            return False

    def _warn(self) -> None:
        import linecache
        import warnings

        frame = sys._current_frames().get(self._watched)
        if frame is None:
            return
        found = _own_line(frame)
        path, line = found.f_code.co_filename, found.f_lineno
        source = linecache.getline(path, line).strip()
        text = (
            f"the event loop that this broker runs in has been held up for {HELD_S:g} s while a client waits for an "
            f"answer of it: {path}:{line} in {found.f_code.co_name}: {source}. A blocking client can't be used on the loop of "
            f"`async with Broker()`; run it in a thread (asyncio.to_thread), use an asynchronous client, or give the broker its "
            f"own thread (`with Broker()`)"
        )
        if "pytest" in sys.modules:  # which shows warnings at the end, and there may be none
            print(f"barnabas: {text}", file=sys.stderr, flush=True)  # noqa: T201 - see the module
        try:
            warnings.warn_explicit(text, BrokerBlocked, path, line)
        except BrokerBlocked:
            pass  # as an error it would end nothing but this thread


def _own_line(frame: FrameType) -> FrameType:
    """The innermost call that is neither of Python's library, nor of a package, nor ours: the user's."""
    import sysconfig  # late: a run without a warning does not need it

    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    foreign = tuple(os.path.abspath(path) for path in libraries if path)
    innermost = frame
    current: FrameType | None = frame
    while current is not None:
        name = current.f_code.co_filename
        path = os.path.abspath(name)
        if not (name.startswith("<") or path.startswith(foreign) or is_ours(current)):
            return current
        current = current.f_back
    return innermost
