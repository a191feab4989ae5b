"""The real runtime on both loops, through sockets and threads of the operating system."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.runtime.asyncio_runtime import AsyncioRuntime, bind_socket, loop_name, refused_everywhere


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def runtime(request: pytest.FixtureRequest) -> Iterator[AsyncioRuntime]:
    runtime = AsyncioRuntime(prefer_uvloop=request.param)
    yield runtime
    runtime.close()


def both(*callbacks: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for callback in callbacks:
            callback()

    return run


def run_for_at_most(runtime: AsyncioRuntime, seconds: float) -> None:
    timed_out: list[bool] = []
    timer = runtime.call_later(seconds, both(lambda: timed_out.append(True), runtime.stop))
    runtime.run()
    timer.cancel()
    assert not timed_out


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def test_the_wanted_loop_runs() -> None:
    plain, fast = AsyncioRuntime(prefer_uvloop=False), AsyncioRuntime()
    assert loop_name(plain) == "asyncio"
    assert loop_name(fast).startswith("uvloop")
    plain.close()
    fast.close()


def test_timers_run_in_order_and_can_be_cancelled(runtime: AsyncioRuntime) -> None:
    seen: list[str] = []
    runtime.call_later(0.03, both(lambda: seen.append("late"), runtime.stop))
    runtime.call_later(0.01, lambda: seen.append("early"))
    cancelled = runtime.call_later(0.02, lambda: seen.append("never"))
    cancelled.cancel()
    cancelled.cancel()
    runtime.call_soon(lambda: seen.append("soon"))
    run_for_at_most(runtime, 60)
    assert seen == ["soon", "early", "late"]


def test_clocks_agree_with_the_system(runtime: AsyncioRuntime) -> None:
    import time

    assert abs(runtime.time_ms() - time.time() * 1000) < 2000
    before = time.monotonic()
    assert before <= runtime.monotonic() <= time.monotonic()
    assert len(runtime.random_bytes(16)) == 16
    assert runtime.random_bytes(16) != runtime.random_bytes(16)


def test_thread_results_and_errors_come_back_on_the_loop(runtime: AsyncioRuntime) -> None:
    here = threading.get_ident()
    seen: list[tuple[object, object, int]] = []

    def done(result: object, error: BaseException | None) -> None:
        seen.append((result, error, threading.get_ident()))
        if len(seen) == 2:
            runtime.stop()

    def fail() -> int:
        raise OSError(errno.ENOSPC, "full")

    runtime.run_in_thread(threading.get_ident, done)
    runtime.run_in_thread(fail, done)
    run_for_at_most(runtime, 60)
    by_success = {error is None: (result, error, thread) for result, error, thread in seen}
    worked, failed = by_success[True], by_success[False]
    assert worked[0] != here
    assert worked[2] == here
    assert failed[0] is None
    assert isinstance(failed[1], OSError)
    assert failed[1].errno == errno.ENOSPC


def test_work_in_the_background_that_hangs_delays_no_other(runtime: AsyncioRuntime) -> None:
    hung = threading.Event()
    seen: list[bool] = []

    def done(is_remote: bool) -> None:
        seen.append(is_remote)
        if len(seen) == 2:
            runtime.stop()

    for _ in range(100):
        runtime.run_in_thread(hung.wait, lambda _result, _error: None, remote=True, background=True)
    runtime.run_in_thread(lambda: True, lambda _result, _error: done(True), remote=True)
    runtime.run_in_thread(lambda: False, lambda _result, _error: done(False))
    run_for_at_most(runtime, 60)
    hung.set()
    assert sorted(seen) == [False, True]


@pytest.mark.parametrize("limits", [(1,), (5,), (5, 1), (1, 5)])
def test_so_much_remote_work_is_done_at_a_time(runtime: AsyncioRuntime, limits: Sequence[int]) -> None:
    for limit in limits:
        runtime.limit_remote_threads(limit)
        together = threading.Barrier(limit)
        running: list[int] = []
        seen: list[int] = []

        def work(together: threading.Barrier = together, running: list[int] = running) -> int:
            together.wait(60)  # as many as may run at a time
            running.append(1)
            count = len(running)
            together.wait(60)
            running.pop()
            return count

        def done(found: int | None, _error: object, seen: list[int] = seen, limit: int = limit) -> None:
            seen.append(found or 0)
            if len(seen) == 4 * limit:
                runtime.stop()

        for _ in range(4 * limit):
            runtime.run_in_thread(work, done, remote=True)
        runtime.limit_remote_threads(limit + 1)  # what was asked for before is done as before
        run_for_at_most(runtime, 60)
        assert max(seen) == limit


def test_a_result_after_close_is_dropped_and_close_waits_for_the_work() -> None:
    runtime = AsyncioRuntime()
    finished: list[int] = []
    called: list[object] = []
    release = threading.Event()
    runtime.run_in_thread(
        both(lambda: release.wait(5), lambda: finished.append(1)), lambda *outcome: called.append(outcome)
    )
    release.set()
    runtime.close()
    runtime.close()
    assert finished == [1]
    assert called == []


@pytest.mark.sockets
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "", "0.0.0.0"])
def test_listen_picks_a_port_and_serves(runtime: AsyncioRuntime, host: str) -> None:
    server = runtime.listen(host, 0, Echo)
    assert server.port > 0
    answers: list[bytes] = []

    def client() -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
            sock.sendall(b"hello")
            return sock.recv(16)

    def done(result: bytes | None, error: BaseException | None) -> None:
        assert error is None
        assert result is not None
        answers.append(result)
        server.close()
        runtime.stop()

    runtime.run_in_thread(client, done)
    run_for_at_most(runtime, 60)
    assert answers == [b"hello"]
    runtime.call_later(0.05, runtime.stop)
    runtime.run()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


@pytest.mark.sockets
def test_a_port_in_use_is_an_error_at_the_caller(runtime: AsyncioRuntime) -> None:
    first = runtime.listen("127.0.0.1", 0, Echo)
    with pytest.raises(OSError, match="in use") as raised:
        runtime.listen("127.0.0.1", first.port, Echo)
    assert raised.value.errno == errno.EADDRINUSE
    first.close()
    runtime.listen("127.0.0.1", first.port, Echo).close()


@pytest.mark.sockets
def test_a_listener_that_is_closed_in_the_turn_that_it_begins(runtime: AsyncioRuntime) -> None:
    """Its descriptor may belong to the next listener at once."""
    failures: list[Any] = []
    runtime.loop.set_exception_handler(lambda _, context: failures.append(context))
    client = socket.socket()
    client.setblocking(False)

    class Connected(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            runtime.stop()

    def begin() -> None:
        server = runtime.listen("127.0.0.1", 0, Echo)
        runtime.call_soon(both(server.close, lambda: follow(server.port)))

    def follow(port: int) -> None:
        runtime.listen("127.0.0.1", port, Connected)
        client.connect_ex(("127.0.0.1", port))

    runtime.call_soon(begin)
    run_for_at_most(runtime, 60)
    client.close()
    assert not failures


def test_a_name_that_does_not_resolve_is_an_error_at_the_caller() -> None:
    with pytest.raises(OSError, match=r".+"):
        bind_socket("host.invalid", 0)


def test_signals_arrive_on_the_loop(runtime: AsyncioRuntime) -> None:
    seen: list[int] = []
    runtime.on_signal(signal.SIGUSR1, both(lambda: seen.append(threading.get_ident()), runtime.stop))
    runtime.call_soon(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    run_for_at_most(runtime, 60)
    assert seen == [threading.get_ident()]


def test_writers_are_called_until_removed(runtime: AsyncioRuntime) -> None:
    ours, peer = socket.socketpair()
    seen: list[int] = []

    def writable() -> None:
        seen.append(1)
        runtime.remove_writer(ours.fileno())
        runtime.call_later(0.02, runtime.stop)

    runtime.add_writer(ours.fileno(), writable)
    run_for_at_most(runtime, 60)
    assert seen == [1]
    ours.close()
    peer.close()


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_work_in_threads_reports_the_error_of_each_piece(runtime: AsyncioRuntime, count: int) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number % 3 == 0:
            raise OSError(str(number))

    errors = runtime.run_all([partial(work, number) for number in range(count)])
    assert [str(error) if error else "" for error in errors] == [
        str(number) if number % 3 == 0 else "" for number in range(count)
    ]
    assert sorted(done) == list(range(count))


@pytest.mark.slow
def test_a_sending_socket_that_is_forgotten_leaves_its_descriptor_to_the_transport(
    runtime: AsyncioRuntime,
) -> None:
    ours, peer = socket.socketpair()
    transport = SimpleNamespace(get_extra_info=lambda _name: ours)
    runtime.sending_socket(transport).send(b"beside")
    gc.collect()
    ours.send(b" it")
    copy = runtime.sending_socket(transport).dup()
    gc.collect()
    ours.close()
    copy.send(b" all")
    copy.close()
    assert b"".join(iter(lambda: peer.recv(100), b"")) == b"beside it all"
    peer.close()


class Greeter:
    """Both ends of a connection: notes what happens to it."""

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def connection_made(self, transport: Any) -> None:
        self._seen.append("made")
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self._seen.append(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._seen.append("lost")


@pytest.mark.sockets
def test_a_connection_is_made_refused_or_cancelled(runtime: AsyncioRuntime) -> None:
    served: list[object] = []
    connected: list[object] = []
    refused: list[OSError] = []
    cancelled: list[object] = []
    server = runtime.listen("127.0.0.1", 0, lambda: Greeter(served))
    runtime.connect("127.0.0.1", server.port, lambda: Greeter(connected), cancelled.append)
    unused = bind_socket("127.0.0.1", 0)
    port = unused.getsockname()[1]
    unused.close()
    runtime.connect("127.0.0.1", port, lambda: Greeter(cancelled), refused.append)
    runtime.connect("127.0.0.1", server.port, lambda: Greeter(cancelled), cancelled.append).cancel()
    runtime.call_later(0.2, runtime.stop)
    runtime.run()
    server.close()
    assert connected == ["made", b"hello"]
    assert served[:2] == ["made", b"hello"]
    assert [type(error) for error in refused] == [ConnectionRefusedError]
    assert cancelled == []


def test_a_name_whose_addresses_all_refuse_is_refused() -> None:
    both_refuse = OSError(
        "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9), [Errno 111] Connect call failed ('127.0.0.1', 9)"
    )
    assert isinstance(refused_everywhere(both_refuse), ConnectionRefusedError)
    one_is_unknown = OSError(
        "Multiple exceptions: [Errno 111] Connect call failed, [Errno 113] No route to host"
    )
    assert refused_everywhere(one_is_unknown) is one_is_unknown
    unknown_name = socket.gaierror(-2, "Name or service not known")
    assert refused_everywhere(unknown_name) is unknown_name
