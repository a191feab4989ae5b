"""A voter whose metadata can't be read says so, and ends in order."""

from __future__ import annotations

import re

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.controller.link.quorum_bootstrap import install_genesis, read_genesis
from barnabas.controller.link.quorum_state import FORMED, QuorumState, write_quorum_state
from barnabas.controller.raft.voters import Voter
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.uuids import uuid_from_string
from compat_tests.virtual.runtime import VirtualRuntime

METADATA = "/d/__cluster_metadata-0/barnabas"
SETTINGS = [
    "log.dirs=/d",
    "node.id=1",
    "process.roles=broker,controller",
    "controller.quorum.voters=1@h1:9093,2@h2:9093,3@h3:9093",
    "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names=CONTROLLER",
]


def start(disk: MemoryDisk) -> list[str]:
    """Start a node and stop it again: why it could not go on."""
    runtime = VirtualRuntime()
    fatal: list[str] = []
    node = Node(BrokerConfig.load(None, {}, SETTINGS), runtime, disk, on_fatal=fatal.append)
    node.start()
    runtime.advance(0.2)
    node.stop()
    return fatal


def test_a_damaged_journal_is_named_and_the_node_stops() -> None:
    disk = MemoryDisk()
    assert start(disk) == []
    found = re.search(rb"directory.id=(\S+)", disk.read_file("/d/meta.properties"))
    assert found is not None
    own = uuid_from_string(found[1].decode())
    voters = [Voter(at, f"h{at}", 9093, own if at == 1 else bytes([at]) * 16) for at in (1, 2, 3)]
    genesis = read_genesis(disk, METADATA)
    state = QuorumState(
        stage=FORMED,
        attempt=bytes(16),
        cluster_id="AAAAAAAAAAAAAAAAAAAAAA",
        seed_id=1,
        voters=voters,
        genesis=genesis.fingerprint,
    )
    write_quorum_state(disk, METADATA, state)
    install_genesis(disk, METADATA, genesis.content)
    assert start(disk) == []
    journal = f"{METADATA}/raft.journal"
    disk.write_file(journal, b"x" + disk.read_file(journal)[1:])
    (why,) = start(disk)
    assert journal in why
