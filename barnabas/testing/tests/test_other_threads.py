"""An in-process broker and threads beside its loop: what they ask for is done on the loop, and they are told of its end."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from barnabas.testing import Broker, BrokerFailed, watchdog
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.faults.engine import Faults
from barnabas.wire.messages.metadata import MetadataRequest

pytestmark = pytest.mark.sockets

METADATA = 3
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def until_failed(function: Callable[[], object]) -> tuple[threading.Thread, list[str]]:
    """Repeat it in a thread until the broker fails it, which is noted."""
    failures: list[str] = []

    def repeat() -> None:
        try:
            while True:
                function()
        except BrokerFailed as error:
            failures.append(str(error))

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    return thread, failures


@LOOPS
def test_a_thread_beside_the_loop_has_things_done_on_it(run: Callable[[Any], None]) -> None:
    def work(broker: Broker, loop_thread: int) -> None:
        assert broker.call(threading.get_ident) == loop_thread
        broker.create_topic("made")
        broker.seed("made", [b"1"])
        assert broker.produce("made", b"2").offset == 1
        broker.clock.advance(1)
        client = RawClient(broker.port)
        with broker.on("Metadata").hold() as rule:
            client.socket.sendall(client.frame(METADATA, 4, MetadataRequest(topics=[])))
            rule.wait_held()
            rule.release()
            assert client.receive(METADATA, 4)[1].topics == []
        client.socket.close()
        broker.reset()
        assert broker.topics() == {}

    async def main() -> None:
        async with Broker() as broker:
            await asyncio.wait_for(asyncio.to_thread(work, broker, threading.get_ident()), 60)

    run(main())


def test_the_loop_of_a_cluster_turns_while_a_thread_waits() -> None:
    async def main() -> None:
        async with Broker(nodes=2) as broker:
            await asyncio.to_thread(broker.seed, "made", [b"1"])
            record = await asyncio.to_thread(broker.produce, "made", b"2")
            assert [each.value for each in broker.records("made")] == [b"1", record.value]

    asyncio.run(main())


@pytest.mark.parametrize("in_thread", [True, False], ids=["thread", "loop"])
def test_who_waits_is_told_of_the_end(in_thread: bool) -> None:
    async def in_loop() -> None:
        async with broker:
            begun = begin()
            await asyncio.to_thread(waiting.wait)
        await asyncio.to_thread(check, begun)

    def begin() -> list[tuple[threading.Thread, list[str]]]:
        for_ever = until_failed(lambda: broker.wait(lambda _: waiting.set()))
        return [for_ever, *(until_failed(lambda: broker.call(int)) for _ in range(4))]

    def check(begun: list[tuple[threading.Thread, list[str]]]) -> None:
        for thread, failures in begun:
            thread.join(30)
            assert len(failures) == 1

    broker, waiting = Broker(), threading.Event()
    if in_thread:
        with broker:
            begun = begin()
            waiting.wait()
        check(begun)
    else:
        asyncio.run(in_loop())
    with pytest.raises(BrokerFailed, match="does not run"):
        broker.topics()


def test_a_way_forward_ends_with_a_reset_and_with_the_broker() -> None:
    with Broker(nodes=2) as broker:  # which goes in small steps
        thread, failures = until_failed(lambda: broker.clock.advance(3000))
        while broker.clock.ahead_s < 1:
            pass
        broker.reset()
        thread.join(30)
        assert len(failures) == 1
        broker.clock.advance(1)
        assert broker.clock.ahead_s == 1
        thread, failures = until_failed(lambda: broker.clock.advance(3000))
        while broker.clock.ahead_s < 2:
            pass
    thread.join(30)
    assert len(failures) == 1
    with broker:
        broker.clock.advance(1)


def test_the_broker_s_own_thread_can_t_stop_it() -> None:
    with Broker() as broker:
        with pytest.raises(RuntimeError, match="own thread"):
            broker.call(broker.stop)
        assert broker.topics() == {}


def test_it_is_stopped_in_several_threads_at_once() -> None:
    broker = Broker().start()
    with ThreadPoolExecutor(4) as executor:
        for stopped in [executor.submit(broker.stop) for _ in range(4)]:
            stopped.result()
    with pytest.raises(BrokerFailed, match="does not run"):
        broker.topics()


def test_what_is_awaited_in_its_loop_is_told_of_the_end() -> None:
    async def main() -> None:
        async with Broker(nodes=3) as broker:
            for node in (1, 2):
                broker.pause_node(node)
            made = broker.create_topic("made")
        with pytest.raises(BrokerFailed, match="has been stopped"):
            await made

    asyncio.run(main())


def test_rules_that_are_made_and_removed_side_by_side() -> None:
    faults = Faults()

    def make_and_remove() -> None:
        for number in range(300):
            rule = faults.on("Fetch").close()
            if number % 2:
                rule.remove()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make_and_remove) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(faults.rules) == 4 * 150
    assert len({rule.number for rule in faults.rules}) == 4 * 150


def test_a_rule_outlives_its_broker() -> None:
    rule = (broker := Broker()).on("Metadata").hold()
    with broker:
        pass
    rule.release()
    rule.remove()
    assert broker.faults.rules == ()


def test_the_watchdog_ends_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(threading.Event):
        """Set while it is said not to be."""

        def wait(self, timeout: float | None = None) -> bool:
            if self.is_set():
                return super().wait(timeout)
            super().wait()
            return turned.wait() and False

    turned = threading.Event()
    events = iter([turned, Late()])
    threads = SimpleNamespace(
        Event=lambda: next(events), Thread=threading.Thread, get_ident=threading.get_ident
    )
    monkeypatch.setattr(watchdog, "threading", threads)
    loop = asyncio.new_event_loop()
    looking = watchdog.Watchdog(loop, list)
    ending = threading.Thread(target=looking.stop, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive()
    loop.close()
