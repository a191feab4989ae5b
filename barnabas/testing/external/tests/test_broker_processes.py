"""Nodes that are processes of their own: killed, held, stopped and started again; and nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.testing import Broker, BrokerFailed, BrokerProcesses
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.ports import free_port
from barnabas.testing.steering.nodes import UnknownNode
from barnabas.wire.messages.metadata import MetadataRequest
from compat_tests.harness.eventually import TIMEOUT_S, eventually

pytestmark = pytest.mark.sockets

METADATA = 3


def is_there(pid: int) -> bool:
    """Whether it runs: one that has ended and that nobody has asked about does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def values(broker: BrokerProcesses | Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


@pytest.mark.own_process
def test_a_leader_dies_and_nothing_that_was_acknowledged_is_lost() -> None:
    free_port()  # the file of claims stays open
    before = set(os.listdir("/proc/self/fd"))
    with BrokerProcesses(nodes=3) as broker:
        folder = broker.folder
        pids = [node.pid for node in broker.nodes]
        assert len({*pids, os.getpid()}) == 4
        broker.create_topic("orders")
        acknowledged = [b"%d" % number for number in range(20)]
        broker.seed("orders", acknowledged)
        leader = broker.partition("orders").leader
        victim = broker.nodes[leader - 1]
        broker.kill_node(leader)
        assert (victim.is_running, victim.pid) == (False, None)
        assert values(broker, "orders") == acknowledged
        now = broker.partition("orders")
        assert now.leader != leader
        assert broker.produce("orders", b"after", key=b"k").offset == 20
        address = broker.bootstrap_servers
        broker.start_node(leader)
        assert victim.is_running
        assert victim.pid not in pids
        assert broker.bootstrap_servers == address
        assert victim.log_text().count("was not stopped cleanly: recovered") == 1
        broker.wait_until_in_sync()
        assert sorted(broker.partition("orders").isr) == [1, 2, 3]
        broker.move_leader("orders", node=leader)
        assert broker.partition("orders").leader == leader
        assert values(broker, "orders") == [*acknowledged, b"after"]
        pids += [victim.pid]
    assert not folder.exists()
    assert not [pid for pid in pids if pid is not None and is_there(pid)]
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_node_that_dies_by_itself_takes_nobody_along() -> None:
    with BrokerProcesses(nodes=3) as broker:
        broker.seed("orders", [b"1"])
        for victim in broker.nodes:  # one of them is the one that it is connected to
            pid = victim.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            eventually(lambda victim=victim: not victim.is_running)
            assert broker.topics() == {"orders": 1}
            assert [node.is_running for node in broker.nodes].count(True) == 2
            broker.start_node(victim.node_id)
            broker.wait_until_in_sync()
        assert values(broker, "orders") == [b"1"]


def test_a_node_that_stands_still_keeps_its_connections_and_answers_later() -> None:
    with BrokerProcesses() as broker:
        [node] = broker.nodes
        broker.seed("orders", [b"1"])
        client = RawClient(node.port)
        client.socket.settimeout(0.3)
        broker.pause_node(1)
        assert node.is_running
        client.socket.sendall(client.frame(METADATA, 8, MetadataRequest(topics=[])))
        with pytest.raises(TimeoutError):
            client.receive_bytes(1)
        with pytest.raises(BrokerFailed, match="no node of the broker runs"):
            broker.topics()
        broker.resume_node(1)
        client.socket.settimeout(TIMEOUT_S)
        assert [each.node_id for each in client.receive(METADATA, 8)[1].brokers] == [1]
        client.socket.close()
        assert broker.topics() == {"orders": 1}
        broker.pause_node(1)
        broker.stop_node(1)
        assert not node.is_running, "to stop it, it is woken"
        assert "stopping" in node.log_text()
        broker.start_node(1)
        assert values(broker, "orders") == [b"1"]
        broker.pause_node(1)


def test_a_directory_is_kept_and_found_again_by_either_kind(tmp_path: Path) -> None:
    with BrokerProcesses(directory=tmp_path) as broker:
        broker.seed("orders", [b"kept"])
        broker.restart_node(1)
        assert values(broker, "orders") == [b"kept"]
        pid = broker.nodes[0].pid
    assert pid is not None
    assert not is_there(pid)
    assert (tmp_path / "node-1" / "data" / ".kafka_cleanshutdown").exists(), "it was stopped in order"
    with Broker(directory=tmp_path / "node-1" / "data") as other:
        assert values(other, "orders") == [b"kept"]
    with broker:
        assert values(broker, "orders") == [b"kept"]
        broker.kill_node(1)
    assert not (tmp_path / "node-1" / "data" / ".kafka_cleanshutdown").exists()


def test_in_a_coroutine() -> None:
    async def run() -> None:
        async with BrokerProcesses({"num.partitions": 2}) as broker:
            await broker.create_topic("orders")
            await broker.seed("orders", [b"1"])
            assert broker.topics() == {"orders": 2}
            await broker.stop_node(1)

    asyncio.run(run())


PROGRAM = """
import os, sys, time
from barnabas.testing import BrokerProcesses
broker = BrokerProcesses(nodes=2).start()
broker.pause_node(2)
print(broker.folder, *(node.pid for node in broker.nodes), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["time.sleep(600)", "raise KeyboardInterrupt"])
def test_nothing_outlives_the_process_that_started_it(end: str) -> None:
    """However it ends, and though one of the nodes can't look after it."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdout is not None
        folder, *pids = program.stdout.readline().split()
        if "sleep" in end:
            assert all(is_there(int(pid)) for pid in pids)
            assert Path(folder).is_dir()
            program.send_signal(signal.SIGKILL)
    eventually(lambda: not any(is_there(int(pid)) for pid in pids))
    eventually(lambda: not Path(folder).exists())


def test_it_ends_though_somebody_else_has_its_pipes() -> None:
    """As who was forked from this process meanwhile has."""
    with BrokerProcesses() as broker:
        pid = broker.nodes[0].pid
        mine = {int(name) for name in os.listdir("/proc/self/fd")}
        copies = [os.dup(descriptor) for descriptor in sorted(mine) if _is_pipe(descriptor)]
    for copy in copies:
        os.close(copy)
    assert pid is not None
    assert not is_there(pid)


def _is_pipe(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    except OSError:
        return False


@pytest.mark.own_process
def test_a_node_that_does_not_start_says_why_and_nothing_is_left(tmp_path: Path) -> None:
    free_port()  # the file of claims stays open
    before = set(os.listdir("/proc/self/fd"))
    taken = {"log.dirs": "/proc/no-such-place"}
    broker = BrokerProcesses(taken, directory=tmp_path)
    with pytest.raises(BrokerFailed, match=r"node 1 does not start: .*/proc/no-such-place"):
        broker.start()
    assert not broker.nodes[0].is_running
    assert set(os.listdir("/proc/self/fd")) <= before
    with pytest.raises(BrokerFailed, match="does not run"):
        broker.start_node(1)


def test_a_port_that_another_has_taken_meanwhile_is_exchanged() -> None:
    broker = BrokerProcesses()
    with Broker(port=broker.nodes[0].port) as other:
        with broker:
            assert broker.bootstrap_servers != other.bootstrap_servers
            broker.create_topic("orders")
        assert other.topics() == {}


def test_variables_of_the_test_s_environment_are_no_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "7")
    with BrokerProcesses() as broker:
        broker.create_topic("orders")
        assert broker.topics() == {"orders": 1}


def test_what_a_process_can_t_have_says_so() -> None:
    broker = BrokerProcesses()
    with pytest.raises(AttributeError, match=r"'on' takes a broker in this process, which .*\.Broker is"):
        broker.on  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match="have no 'snapshot': stop it, and copy its directory"):
        broker.snapshot  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        broker.nonsense  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(UnknownNode, match="there is no node 2"):
        broker.kill_node(2)
    with pytest.raises(ValueError, match="node 1 does not run"):
        broker.pause_node(1)
    with pytest.raises(ValueError, match="nonsense"):
        BrokerProcesses({"nonsense.property": 1})
