"""The event loop of an in-process broker: in a thread of its own, or the running loop; and how callers wait for operations.

A call from another thread runs on the loop's thread and returns when the operation is done. A call on the loop's own thread can't
wait for turns of that loop: an operation that needs none is done on return, any other returns an awaitable.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop is what this file is about
import threading  # noqa: TID251 - so is its thread
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from barnabas.runtime.asyncio_runtime import new_event_loop
from barnabas.testing.broker_node import HOST
from barnabas.testing.loop_calls import BrokerFailed, LoopCalls
from barnabas.testing.pending import Finished, Pending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.node_runtime import NodeRuntime
    from barnabas.testing.operations import Start
    from barnabas.testing.watchdog import Watchdog

T = TypeVar("T")

NOT_STARTED = "the broker does not run: `with Broker() as broker:` starts it, and so does its start()"
START_SECONDS_MAX = 30.0  # for a cluster to form
OPERATION_SECONDS_MAX = 300.0  # guards against operations that hang
DRAIN_TURNS, DRAIN_TURNS_MAX = 4, 1000  # of the loop


class BrokerLoop:
    """Starts and stops `nodes`, which lists those of the broker at any time. `stopping` is called when they have been stopped, some turns
    of the loop before its end."""

    def __init__(
        self, nodes: list[BrokerNode], *, prefer_uvloop: bool, stopping: Callable[[], object]
    ) -> None:
        self._nodes = nodes
        self._prefer_uvloop = prefer_uvloop
        self._stopping = stopping
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: int | None = None  # where the loop turns
        self._calls: LoopCalls | None = None  # from other threads than that
        self._awaited: set[asyncio.Future[None]] = set()  # on that thread
        self._thread: threading.Thread | None = None  # None: the loop is that of the caller who entered it
        self._watchdog: Watchdog | None = None  # in the caller's loop
        self._changed = asyncio.Event()  # a node has become ready, or has failed; a new one for each loop
        self._runtimes: list[NodeRuntime] = []  # whose tasks may still run

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The broker's loop, while it runs."""
        assert self._loop is not None, "the broker does not run"
        return self._loop

    # -- on its loop

    @property
    def is_in_thread(self) -> bool:
        """Whether the loop has a thread of its own, and turns while the caller waits."""
        return self._thread is not None

    @property
    def is_here(self) -> bool:
        """Whether this thread is the one that its loop turns on."""
        return threading.get_ident() == self._loop_thread

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the broker's loop and wait for what it returns or raises. Everything inside the broker may be
        touched there, and nowhere else. BrokerFailed where the broker does not run, or is stopped before."""
        calls = self._elsewhere()
        return function() if calls is None else calls.call(function)

    def call_if_running(self, function: Callable[[], T]) -> T:
        """As `call`; runs the function here when the broker does not run."""
        return function() if self._calls is None else self.call(function)

    # -- waiting for it

    def perform(self, start: Start) -> Awaitable[None]:
        """Begin an operation. It is done on return, or returns an awaitable when the caller runs on the loop, which has to turn."""
        if self._elsewhere() is not None:
            self.wait(start)
            return Finished()
        results: list[Exception | None] = []
        done: Callable[[Exception | None], object] = results.append
        start(lambda error: done(error))
        while not results and self._run_soon():
            pass
        if results:
            if results[0] is not None:
                raise results[0]
            return Finished()
        future: asyncio.Future[None] = self.loop.create_future()
        done = partial(_set_result, future)
        self._awaited.add(future)
        future.add_done_callback(self._awaited.discard)
        return Pending(self._result(future))

    def wait(self, start: Start) -> None:
        """Begin an operation and wait until it is done. RuntimeError when the caller runs on the loop, which has to turn."""
        if (calls := self._elsewhere()) is not None:
            calls.run(lambda: self.wait_async(start))
            return
        begun = None if len(self._nodes) > 1 else self.perform(start)
        if begun is None or isinstance(begun, Pending):
            if begun is not None:
                begun.cancel()
            raise RuntimeError(
                "the nodes of a cluster need the loop that runs now: await the other form of it"
            )

    async def wait_async(self, start: Start) -> None:
        """As `wait`, on the loop."""
        future: asyncio.Future[None] = self.loop.create_future()
        start(partial(_set_result, future))
        await self._result(future)

    async def _result(self, future: asyncio.Future[None]) -> None:
        """TimeoutError, which says how the nodes are."""
        try:
            await asyncio.wait_for(future, OPERATION_SECONDS_MAX)
        except TimeoutError:
            up = [node.node_id for node in self._nodes if node.is_running]
            asleep = [node.node_id for node in self._nodes if node.is_running and node.runtime.is_paused]
            raise TimeoutError(
                f"it is not done after {OPERATION_SECONDS_MAX:.0f} s; of {len(self._nodes)} nodes run {up}, and asleep are {asleep}"
            ) from None

    def _elsewhere(self) -> LoopCalls | None:
        """The way to the broker's loop, which turns while this thread waits; None on the loop's own thread. BrokerFailed
        where it does not run."""
        if self.is_here:
            return None
        calls = self._calls
        if calls is None:
            raise BrokerFailed(NOT_STARTED)
        return calls

    def _run_soon(self) -> bool:
        """Let go on what needs no other turn of the loop; whether there was anything."""
        went = [node.runtime.run_soon() for node in self._nodes]
        return any(went)

    def _are_ready(self) -> bool:
        return all(node.is_ready for node in self._nodes if node.is_running)

    def ready_again(self, then: Start | None = None) -> Awaitable[None]:
        """All nodes serve that run, and the operation `then` is done. BrokerFailed after START_SECONDS_MAX."""

        async def ready() -> None:
            await self._await_ready()
            if then is not None:
                await self.wait_async(then)

        if (calls := self._elsewhere()) is not None:
            calls.run(ready)
            return Finished()
        while not self._are_ready() and self._run_soon():
            pass
        if self._are_ready():
            return Finished() if then is None else self.perform(then)
        return Pending(ready())

    # -- in a thread

    def start(self) -> None:
        """Serve from a thread of its own."""
        assert self._loop is None, "the broker runs already"
        loop = new_event_loop(self._prefer_uvloop)
        self._thread = threading.Thread(target=self._run, args=(loop,), name="barnabas", daemon=True)
        try:
            self._begin(loop)
        except BaseException:
            self._stop_nodes()
            self._thread.start()  # drains the loop, which this thread can't where another one runs in it
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._thread = None
            raise
        self._loop_thread = None  # until it turns
        self._thread.start()
        if len(self._nodes) > 1:
            try:
                self.ready_again()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End a broker that was started with `start`. Callers that wait in other threads get BrokerFailed. RuntimeError on its
        own thread, as in a rule's function."""
        thread, calls = self._thread, self._calls
        if thread is None:
            return
        if self.is_here:
            raise RuntimeError("the broker's own thread can't wait for its end")
        try:
            if calls is not None:
                with suppress(BrokerFailed):  # another thread was quicker
                    calls.call(self._stop_nodes)
        finally:
            if calls is not None:
                calls.stop_loop()
            thread.join()
            self._thread = None

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop_thread = threading.get_ident()
        try:
            loop.run_forever()
            loop.run_until_complete(self._drain())
        finally:
            self._ended()
            loop.close()

    # -- in the running loop

    async def enter(self) -> None:
        """Serve in the running loop."""
        from barnabas.testing.watchdog import Watchdog

        assert self._loop is None, "the broker runs already"
        loop = asyncio.get_running_loop()
        try:
            self._begin(loop)
            await self._await_ready()
            self._watchdog = Watchdog(loop, self._waiting_descriptors)
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """End a broker that serves in the running loop."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.stop()
        try:
            self._stop_nodes()
            await self._drain()
        finally:
            self._ended()

    # -- both

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the thread that the loop turns on, or will not turn before it has returned."""
        self._loop, self._loop_thread, self._calls = loop, threading.get_ident(), LoopCalls(loop)
        self._changed = asyncio.Event()
        if len(self._nodes) > 1:
            self._reserve_ports()
        for node in self._nodes:
            node.start(loop)

    def _waiting_descriptors(self) -> list[int]:
        return [each for node in self._nodes for each in node.runtime.waiting_descriptors()]

    def _reserve_ports(self) -> None:
        for node in self._nodes:
            if not node.controller_port:
                node.reserve_ports()
        voters = ",".join(f"{node.node_id}@{HOST}:{node.controller_port}" for node in self._nodes)
        for node in self._nodes:
            node.properties["controller.quorum.voters"] = voters

    def _ended(self) -> None:
        """Nothing is done on the loop any more."""
        if self._calls is not None:
            self._calls.end()
        self._fail_awaited()
        self._loop = self._loop_thread = self._calls = None

    def _stop_nodes(self) -> None:
        if self._calls is not None:
            self._calls.cancel()
        for node in self._nodes:
            node.end()
            node.release_ports()
        self._stopping()
        self._fail_awaited()  # before an operation finds out by itself that its node is gone

    def _fail_awaited(self) -> None:
        for future in tuple(self._awaited):
            _set_result(future, BrokerFailed("the broker has been stopped"))

    async def _await_ready(self) -> None:
        async def ready() -> None:
            while not self._are_ready():
                failures = [node.failure for node in self._nodes if node.failure is not None]
                if failures:
                    raise BrokerFailed(failures[0])
                self._changed.clear()
                await self._changed.wait()

        try:
            await asyncio.wait_for(ready(), START_SECONDS_MAX)
        except TimeoutError:
            waiting = [node.node_id for node in self._nodes if node.is_running and not node.is_ready]
            raise BrokerFailed(f"nodes {waiting} do not serve after {START_SECONDS_MAX:g} s") from None

    def add_runtime(self, runtime: NodeRuntime) -> None:
        """A node starts with it. The loop ends when the tasks of all runtimes have ended."""
        self._runtimes = [each for each in self._runtimes if each.tasks or not each.has_ended]
        self._runtimes.append(runtime)

    async def _drain(self) -> None:
        """Let connections that have been closed go: the loop tells them in the turns that follow."""
        turns = 0
        while turns < DRAIN_TURNS or (turns < DRAIN_TURNS_MAX and any(each.tasks for each in self._runtimes)):
            turns += 1
            await asyncio.sleep(0)
        self._runtimes.clear()

    def node_changed(self) -> None:
        """A node has become ready, or has failed."""
        self._changed.set()


def _set_result(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
