"""The client against a real nats-server, with nats-py on the other side."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import nats
import pytest

from barnabas.nats.client.client import Message
from barnabas.nats.client.errors import (
    LAME_DUCK,
    NOT_REACHED,
    PROTOCOL,
    SERVER_GONE,
    SLOW_CONSUMER,
    STALE,
    STOPPED,
    NoResponders,
    NotConnected,
    OutputFull,
    RequestTimedOut,
)
from barnabas.nats.tests.client_world import ClientWorld, flushed, into, outcome, settled
from barnabas.testing.ports import free_port
from compat_tests.harness.eventually import eventually_async, stays_async
from compat_tests.harness.nats_server import NatsServer

pytestmark = pytest.mark.sockets

BLOCK = b"NATS/1.0\r\nA: 1\r\na: 2\r\nA: \xff\r\n\r\n"
QUIET: Any = {"allow_reconnect": False, "error_cb": None}


async def silent(_error: Exception) -> None:
    """For nats-py, which would print."""


async def nats_py(server: NatsServer, **options: Any) -> Any:
    return await nats.connect(server.url, allow_reconnect=False, error_cb=silent, **options)


@pytest.mark.every_nats_server
def test_messages_come_and_go_as_they_are(both_loops: ClientWorld, shared_nats_server: NatsServer) -> None:
    async def work() -> None:
        theirs = await nats_py(shared_nats_server)
        ours, _ = await both_loops.connected(shared_nats_server.url)
        got: list[tuple[bytes, bytes, bytes, bytes]] = []
        ours.subscribe("come.>", into(got))
        await flushed(ours)
        large = bytes(range(256)) * 4000
        await theirs.publish("come.a", b"")
        await theirs.publish("come.b", b"PING\r\n\x00\xff", reply="back")
        await theirs.publish("come.c", large)
        await theirs.publish("come.d", b"d", headers={"Name": "value"})
        await theirs.flush()
        await eventually_async(lambda: len(got) == 4)
        assert got == [
            (b"come.a", b"", b"", b""),
            (b"come.b", b"back", b"", b"PING\r\n\x00\xff"),
            (b"come.c", b"", b"", large),
            (b"come.d", b"", b"NATS/1.0\r\nName: value\r\n\r\n", b"d"),
        ]

        heard = await theirs.subscribe("go.*")
        await settled(theirs)
        ours.publish(b"go.a", b"")
        ours.publish(b"go.b", large, reply=b"back")
        ours.publish(b"go.c", b"c", headers=b"NATS/1.0\r\nName: value\r\n\r\n")
        there = [await heard.next_msg(30) for _ in range(3)]
        assert [(one.subject, one.reply, one.data) for one in there] == [
            ("go.a", "", b""),
            ("go.b", "back", large),
            ("go.c", "", b"c"),
        ]
        assert there[2].headers == {"Name": "value"}

        # from ours to ours: a block is bytes to the server, whatever nats-py makes of it
        ours.publish(b"come.e", b"e", reply=b"r", headers=BLOCK)
        await eventually_async(lambda: len(got) == 5)
        assert got[4] == (b"come.e", b"r", BLOCK, b"e")
        assert ours.stats.messages_in == 5
        assert ours.stats.messages_out == 4
        await theirs.close()

    both_loops.run(work())


@pytest.mark.every_nats_server
def test_requests(world: ClientWorld, shared_nats_server: NatsServer) -> None:
    async def work() -> None:
        theirs = await nats_py(shared_nats_server)

        async def answer(message: Any) -> None:
            if message.data != b"late":
                await message.respond(b"re: " + message.data)

        await theirs.subscribe("service", cb=answer)
        await settled(theirs)
        ours, _ = await world.connected(shared_nats_server.url)

        async def ask(subject: bytes, payload: bytes, timeout_s: float = 30) -> tuple[Any, ...]:
            return await outcome(lambda done: ours.request(subject, payload, timeout_s=timeout_s, done=done))

        answers = await asyncio.gather(*(ask(b"service", b"%d" % number) for number in range(100)))
        assert [answer[0].payload for answer in answers] == [b"re: %d" % number for number in range(100)]
        assert len({answer[0].subject for answer in answers}) == 100
        assert isinstance(answers[0][0], Message)
        assert isinstance((await ask(b"nobody.is.here", b""))[1], NoResponders)
        assert isinstance((await ask(b"service", b"late", 0.05))[1], RequestTimedOut)
        ours.stop()
        reply, error = await ask(b"service", b"")
        assert reply is None
        assert isinstance(error, NotConnected)
        await theirs.close()

    world.run(work())


def test_a_pending_request_fails_when_the_connection_ends(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server()
        theirs = await nats_py(server)
        await theirs.subscribe("service")
        await settled(theirs)
        ours, _ = await world.connected(server.url)
        asking = asyncio.ensure_future(
            outcome(lambda done: ours.request(b"service", b"", timeout_s=30, done=done))
        )
        await flushed(ours)
        server.kill()
        assert isinstance((await asking)[1], NotConnected)
        await theirs.close()

    world.run(work())


def test_queue_groups_share(world: ClientWorld, shared_nats_server: NatsServer) -> None:
    async def work() -> None:
        ours, _ = await world.connected(shared_nats_server.url)
        other, _ = await world.connected(shared_nats_server.url)
        first: list[Any] = []
        second: list[Any] = []
        ours.subscribe("shared", into(first), queue="group")
        other.subscribe("shared", into(second), queue="group")
        await flushed(ours)
        await flushed(other)
        for number in range(200):
            ours.publish(b"shared", b"%d" % number)
        await eventually_async(lambda: len(first) + len(second) == 200)
        assert first
        assert second
        assert {message[3] for message in first + second} == {b"%d" % number for number in range(200)}

    world.run(work())


def test_unsubscribe_drops_messages_and_drain_loses_none(
    world: ClientWorld, shared_nats_server: NatsServer
) -> None:
    async def work() -> None:
        ours, _ = await world.connected(shared_nats_server.url)
        sender, _ = await world.connected(shared_nats_server.url)
        quiet: list[Any] = []
        drained: list[Any] = []
        one = ours.subscribe("leave", into(quiet))
        two = ours.subscribe("leave", into(drained))
        await flushed(ours)
        for number in range(2000):
            sender.publish(b"leave", b"%d" % number)
        await flushed(sender)  # the server has all of them and sends them now
        one.unsubscribe()
        had = len(quiet)
        assert await outcome(two.drain) == (None,)
        assert len(drained) == 2000
        assert len(quiet) == had
        sender.publish(b"leave", b"more")
        await flushed(sender)
        await flushed(ours)
        assert (len(quiet), len(drained)) == (had, 2000)
        one.unsubscribe()  # once more is harmless
        assert await outcome(two.drain) == (None,)

    world.run(work())


def test_messages_that_fail_are_counted_and_logged_once(
    world: ClientWorld, shared_nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        ours, _ = await world.connected(shared_nats_server.url)
        ours.subscribe("failures", lambda *_message: 1 // 0)
        for _ in range(50):
            ours.publish(b"failures", b"")
        await flushed(ours)
        await eventually_async(lambda: ours.stats.sink_errors == 50)

    world.run(work())
    assert caplog.text.count("processing a message") == 1
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.every_nats_server
def test_subscriptions_beyond_the_servers_limit_are_marked_refused(
    world: ClientWorld, nats_server: Any
) -> None:
    async def work() -> None:
        server = nats_server(config="max_subscriptions: 2")
        ours, events = await world.connected(server.url)
        made = [ours.subscribe(f"a.{number}", into([])) for number in range(4)]
        await eventually_async(lambda: len(events.refusals) == 2)
        assert [bool(each.refused) for each in made] == [False, False, True, True]
        assert "maximum subscriptions" in made[3].refused
        made[0].unsubscribe()
        made[2].again()
        await flushed(ours)
        assert [bool(each.refused) for each in made[1:]] == [False, False, True]

    world.run(work())


@pytest.mark.every_nats_server
def test_echo_off(world: ClientWorld, shared_nats_server: NatsServer) -> None:
    async def work() -> None:
        ours, _ = await world.connected(shared_nats_server.url, echo=False)
        other, _ = await world.connected(shared_nats_server.url)
        got: list[Any] = []
        ours.subscribe("echo", into(got))
        await flushed(ours)
        ours.publish(b"echo", b"own")
        await flushed(ours)
        other.publish(b"echo", b"other")
        await eventually_async(lambda: got)
        await flushed(ours)
        assert [message[3] for message in got] == [b"other"]

    world.run(work())


@pytest.mark.every_nats_server
def test_a_restarted_server_gets_the_subscriptions_again(both_loops: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server()
        ours, events = await both_loops.connected(server.url)
        got: list[Any] = []
        ours.subscribe("kept.*", into(got))
        ours.subscribe("ended", into(got)).unsubscribe()
        for connects, kill in ((2, True), (3, False), (4, True)):
            await flushed(ours)
            server.restart(kill=kill)
            await eventually_async(lambda: len(events.connects) == connects)  # noqa: B023 - awaited here
            theirs = await nats_py(server)
            got.clear()
            await theirs.publish("kept.x", b"x")
            await theirs.publish("ended", b"y")
            await theirs.flush()
            await eventually_async(lambda: got)
            await flushed(ours)
            assert [message[3] for message in got] == [b"x"]
            await theirs.close()
        assert [cause.kind for cause in events.causes] == [SERVER_GONE] * 3
        assert events.names == ["connected", *["disconnected", "connected"] * 3]
        assert ours.stats.reconnects == 3
        ours.stop()
        assert events.causes[-1].kind == STOPPED

    both_loops.run(work())


def test_a_client_starts_without_a_server(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server()
        server.kill()
        ours, events = world.client(server.url)
        got: list[Any] = []
        ours.subscribe("a", into(got))
        with pytest.raises(NotConnected):
            ours.publish(b"a", b"")
        assert isinstance((await outcome(ours.flush))[0], NotConnected)
        await eventually_async(lambda: len(events.failures) > 2)
        assert {cause.kind for cause in events.failures} == {NOT_REACHED}
        assert "refused" in str(ours.last_cause)
        server.start()
        await eventually_async(lambda: ours.is_connected)
        ours.publish(b"a", b"x")
        await eventually_async(lambda: got)
        assert events.causes == []

    world.run(work())


def test_output_is_bounded_and_continues_when_drained(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server()
        ours, events = await world.connected(server.url, output_bytes_max=8_000_000, ping_interval_s=60)
        theirs = await nats_py(server)
        heard = await theirs.subscribe("much", pending_msgs_limit=-1, pending_bytes_limit=-1)
        await settled(theirs)
        server.send_signal(signal.SIGSTOP)
        sent = 0

        def publish(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                ours.publish(b"much", b"x" * 100_000)
                sent += 1

        publish(20)
        await asyncio.sleep(0)
        with pytest.raises(OutputFull):
            publish(1000)
        assert 7_000_000 < ours.output_bytes <= 8_000_000
        server.send_signal(signal.SIGCONT)
        await eventually_async(lambda: "drained" in events.names)
        ours.publish(b"much", b"last")
        sent += 1
        got = [(await heard.next_msg(10)).data for _ in range(sent)]
        assert got[-1] == b"last"
        assert {len(one) for one in got[:-1]} == {100_000}
        await theirs.close()

    world.run(work())


def test_paused_nothing_is_read_and_nothing_lost(
    both_loops: ClientWorld, shared_nats_server: NatsServer
) -> None:
    async def work() -> None:
        got: list[Any] = []
        reads = 0

        def read() -> None:
            nonlocal reads
            reads += 1

        ours, events = await both_loops.connected(
            shared_nats_server.url, on_read=read, read_buffer_bytes=65536
        )
        sender, _ = await both_loops.connected(shared_nats_server.url)
        ours.subscribe("paused", into(got))
        await flushed(ours)
        ours.pause()
        reads = 0
        for number in range(1000):
            sender.publish(b"paused", b"%d" % number + b" " * 1000)
        await flushed(sender)
        await stays_async(lambda: (len(got), reads) == (0, 0), 0.05)
        ours.resume()
        await eventually_async(lambda: len(got) == 1000)
        assert [int(message[3]) for message in got] == list(range(1000))
        assert 0 < reads < 1000
        assert events.causes == []

    both_loops.run(work())


def test_other_callbacks_run_between_large_reads(
    both_loops: ClientWorld, shared_nats_server: NatsServer
) -> None:
    async def work() -> None:
        turn = 0
        reads: list[int] = []
        ours, _ = await both_loops.connected(
            shared_nats_server.url, on_read=lambda: reads.append(turn), read_buffer_bytes=16384
        )
        sender, _ = await both_loops.connected(shared_nats_server.url)
        got: list[Any] = []
        ours.subscribe("flood", into(got))
        await flushed(ours)
        ours.pause()
        for _ in range(2000):
            sender.publish(b"flood", b"x" * 1000)
        await flushed(sender)
        await asyncio.sleep(0.05)  # it lies in the socket by then, as no read shows while reading is paused
        reads.clear()
        ours.resume()
        while len(got) < 2000:
            turn += 1
            await asyncio.sleep(0)
        assert len(reads) > 100
        assert max(reads.count(one) for one in set(reads)) <= 2

    both_loops.run(work())


def test_a_slow_consumer_gets_the_cause_of_the_connections_end(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server(config='write_deadline: "500ms"\nmax_pending: 2MB\n')
        ours, events = await world.connected(server.url)
        sender, _ = await world.connected(server.url)
        got: list[Any] = []
        ours.subscribe("slow", into(got))
        await flushed(ours)
        ours.pause()
        for _ in range(400):
            sender.publish(b"slow", b"x" * 100_000)
            await asyncio.sleep(0)
        await flushed(sender)
        await eventually_async(lambda: events.pauses)
        assert events.pauses[0] > 1.9
        ours.resume()
        await eventually_async(lambda: events.causes)
        assert events.causes[0].kind == SLOW_CONSUMER
        await eventually_async(lambda: ours.is_connected)
        assert 0 < len(got) < 400
        assert "Slow Consumer" in server.log_text()

    world.run(work())


def test_a_pause_outlives_the_connection(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server()
        ours, events = await world.connected(server.url)
        got: list[Any] = []
        ours.subscribe("a", into(got))
        await flushed(ours)
        server.kill()
        await eventually_async(lambda: events.causes)
        ours.pause()
        server.start()
        await eventually_async(lambda: ours.is_connected)
        sender, _ = await world.connected(server.url)
        sender.publish(b"a", b"x")
        await flushed(sender)
        await stays_async(lambda: got == [], 0.05)
        ours.resume()
        await eventually_async(lambda: got)

    world.run(work())


def test_a_stopped_server_is_stale(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server, other = nats_server(), nats_server()
        ours, events = await world.connected(server.url, ping_interval_s=0.4)
        await stays_async(lambda: events.causes == [], 1)  # pings are answered
        ours.stop()
        ours, events = await world.connected(server.url, other.url, ping_interval_s=0.4, connect_timeout_s=1)
        still, left = (server, other) if ours.server.endswith(str(server.port)) else (other, server)
        still.send_signal(signal.SIGSTOP)
        await eventually_async(lambda: events.causes)
        assert events.causes[0].kind == STALE
        await eventually_async(lambda: ours.is_connected)
        assert ours.server.endswith(str(left.port))
        left.kill()
        # the one that stands still takes connections (its kernel does) and says nothing
        await eventually_async(lambda: any("has not answered" in str(cause) for cause in events.failures))
        still.send_signal(signal.SIGCONT)
        await eventually_async(lambda: ours.is_connected)

    world.run(work())


def clustered(nats_server: Any, more: str = "") -> tuple[NatsServer, NatsServer]:
    """Two servers that know of each other."""
    ports = free_port(), free_port()
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    first, second = (
        nats_server(
            config=f'server_name: {name}\ncluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n{more}'
        )
        for name, port in zip(("one", "two"), ports, strict=True)
    )
    return first, second


@pytest.mark.every_nats_server
def test_discovered_servers_are_used(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        first, second = clustered(nats_server)
        ours, events = await world.connected(first.url)
        await eventually_async(lambda: ours.info is not None and len(ours.info.connect_urls) == 2)
        first.kill()
        await eventually_async(lambda: len(events.connects) == 2)
        assert ours.info is not None
        assert ours.info.server_name == "two"
        assert ours.server == f"127.0.0.1:{second.port}"

    world.run(work())


def test_a_lame_duck_is_replaced_by_another_server(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        more = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "15s"\n'
        first, _ = clustered(nats_server, more)
        ours, events = await world.connected(first.url)
        await eventually_async(lambda: ours.info is not None and len(ours.info.connect_urls) == 2)
        got: list[Any] = []
        ours.subscribe("a", into(got))
        await flushed(ours)
        first.send_signal(signal.SIGUSR2)
        await eventually_async(lambda: len(events.connects) == 2)
        assert events.causes[0].kind == LAME_DUCK
        assert ours.info is not None
        assert ours.info.server_name == "two"
        ours.publish(b"a", b"x")
        await eventually_async(lambda: got)

    world.run(work())


@pytest.mark.every_nats_server
def test_a_lame_duck_without_another_server_is_kept_to_the_end(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server(config='lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n')
        ours, events = await world.connected(server.url)
        server.send_signal(signal.SIGUSR2)
        await eventually_async(lambda: ours.info is None or ours.info.ldm)
        await eventually_async(lambda: events.causes)
        assert events.causes[0].kind == LAME_DUCK
        server.kill()
        server.start()
        await eventually_async(lambda: ours.is_connected)

    world.run(work())


class Impostor(asyncio.Protocol):
    """Says something that is no NATS, or too much."""

    def __init__(self, says: bytes) -> None:
        self.says = says

    def connection_made(self, transport: Any) -> None:
        transport.write(self.says)


@pytest.mark.parametrize(
    "says",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"INFO {}\r\nHELLO\r\n",
        b"x" * 100_000,
        b"INFO nothing\r\n",
        b'INFO {"server_id":"x","tls_required":true}\r\nMSG injected 1 1\r\nx\r\n',
        b'INFO {"server_id":"x","max_payload":10}\r\nMSG a 1 40000000\r\n',
    ],
)
def test_a_server_that_does_not_speak_nats_is_skipped(
    world: ClientWorld, shared_nats_server: NatsServer, says: bytes
) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Impostor(says), "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        ours, events = world.client(f"nats://127.0.0.1:{port}")
        got: list[Any] = []
        ours.subscribe("injected", into(got))
        await eventually_async(lambda: len(events.failures) > 2)
        assert {cause.kind for cause in events.failures} == {PROTOCOL}
        assert got == []
        ours.stop()
        both, _ = await world.connected(f"nats://127.0.0.1:{port}", shared_nats_server.url)
        assert both.server == f"127.0.0.1:{shared_nats_server.port}"
        listening.close()

    world.run(work())


def test_a_stopped_client_writes_its_output_and_can_start_again(
    world: ClientWorld, shared_nats_server: NatsServer
) -> None:
    async def work() -> None:
        theirs = await nats_py(shared_nats_server)
        heard = await theirs.subscribe("stop")
        await settled(theirs)
        ours, events = await world.connected(shared_nats_server.url)
        got: list[Any] = []
        ours.subscribe("again", into(got))
        for _ in range(100):
            ours.publish(b"stop", b"x" * 1000)
        ours.stop()  # what was published is still written
        for _ in range(100):
            await heard.next_msg(30)
        assert not ours.is_connected
        assert events.names == ["connected", "disconnected"]
        await stays_async(lambda: len(events.connects) == 1, 0.05)
        ours.start()
        await eventually_async(lambda: ours.is_connected)
        ours.publish(b"again", b"")
        await eventually_async(lambda: got)
        await theirs.close()

    world.run(work())


@pytest.mark.every_nats_server
def test_what_a_server_says_of_itself(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server(jetstream=True)
        ours, _ = await world.connected(server.url)
        assert ours.info is not None
        assert ours.info.version == ".".join(map(str, server.version))
        assert ours.info.jetstream
        reply, _ = await outcome(lambda done: ours.request(b"$JS.API.INFO", b"", timeout_s=30, done=done))
        assert b'"streams":0' in reply.payload

    world.run(work())
