"""Brokers follow what the voters have committed: every group once, whole and in order, whatever happens to links
and voters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from barnabas.controller.link.followed_log import FollowedMetadataLog, VoterUpdates
from barnabas.controller.link.metadata_feed import MetadataFeed
from barnabas.controller.link.tests.link_nodes import PORT, LinkedNode, LinkWorld
from barnabas.controller.metadata.committed_groups import CommittedGroup, CommittedGroups
from barnabas.controller.metadata.errors import MetadataError, NotController
from barnabas.controller.raft.voters import Voter

Group = list[bytes]


class Committed:
    """What one voter knows of the cluster's groups; a snapshot is simply all records."""

    def __init__(self, history: list[Group], bytes_max: int) -> None:
        self.history = history
        self.bytes_max = bytes_max
        self.count = len(history)  # groups known here
        self.groups = CommittedGroups(sum(map(len, history)) - 1, bytes_max)
        self.callbacks: list[Callable[[], object]] = []

    def on_commit(self, callback: Callable[[], object]) -> None:
        self.callbacks.append(callback)

    def read_committed(self, after_offset: int, bytes_max: int = 1 << 20) -> Sequence[CommittedGroup] | None:
        return self.groups.after(after_offset, bytes_max)

    def read_snapshot(self) -> tuple[list[bytes], int]:
        records = [record for group in self.history[: self.count] for record in group]
        return records, len(records) - 1

    def advance(self, count: int | None = None) -> None:
        """Learn of more groups."""
        end = len(self.history) if count is None else min(len(self.history), self.count + count)
        for group in self.history[self.count : end]:
            self.groups.append(group)
        self.count = end
        for callback in self.callbacks:
            callback()


class Follower:
    """A broker, and what it has applied."""

    def __init__(self, node: LinkedNode) -> None:
        self.node = node
        self.records: list[bytes] = []
        self.replaced = 0
        self.errors: list[Exception] = []
        self.log = FollowedMetadataLog(node.links, self.errors.append)
        assert self.log.open(self.apply, lambda: self.records, self.replace) == -1
        self.log.serve()

    @property
    def source_id(self) -> int:
        """Node id of the followed voter, -1 for none."""
        source = self.log._source
        return -1 if source is None else source.node_id

    def apply(self, records: Sequence[bytes]) -> None:
        if records[0] == b"poison":
            raise MetadataError("a record of an unknown type")
        self.records += records

    def replace(self, records: Sequence[bytes], offset: int) -> None:
        assert offset == len(records) - 1
        self.records = list(records)
        self.replaced += 1


class Cluster:
    """Voters 1 to 3 with their logs, and a follower."""

    def __init__(self, *, bytes_max: int = 1 << 20, seed: int = 0, shuffles: bool = False) -> None:
        self.world = LinkWorld(seed=seed, shuffles=shuffles)
        self.history: list[Group] = []
        self.bytes_max = bytes_max
        self.voters: dict[int, tuple[LinkedNode, Committed]] = {}
        for node_id in (1, 2, 3):
            self.start_voter(node_id)

    def start_voter(self, node_id: int) -> None:
        node = self.world.node(node_id)
        committed = Committed(self.history, self.bytes_max)
        MetadataFeed(node.links, committed, lambda: committed.groups.end_offset)
        self.world.start(node)
        self.voters[node_id] = node, committed

    def start_follower(self, node_id: int = 9) -> Follower:
        node = self.world.node(node_id)
        follower = Follower(node)
        self.world.start(node)
        return follower

    def lead(self, node_id: int, term: int) -> None:
        self.voters[node_id][0].links.leader.announce(term, node_id)

    def commit(self, *groups: Group) -> None:
        self.history += groups
        for _, committed in self.voters.values():
            committed.advance()

    @property
    def records(self) -> list[bytes]:
        return [record for group in self.history for record in group]


def test_a_committed_group_is_applied_by_followers_at_once() -> None:
    cluster = Cluster()
    cluster.world.network.delay_s = lambda _source, _target: 0.001
    follower = cluster.start_follower()
    cluster.world.run(1)
    cluster.lead(2, 1)
    cluster.world.run(0.1)
    assert follower.source_id == 2
    assert follower.log.term == 1
    cluster.commit([b"a", b"b"], [b"c"])
    cluster.world.run(0.0011)
    assert follower.records == [b"a", b"b", b"c"]
    assert follower.log.offset == 2
    assert follower.replaced == 0


def test_a_late_follower_gets_everything_without_a_snapshot() -> None:
    cluster = Cluster(bytes_max=1 << 26)
    cluster.commit(*[[b"%d" % n, bytes(1000)] for n in range(5000)])
    follower = cluster.start_follower()
    cluster.world.run(1)
    assert follower.records == cluster.records
    assert follower.replaced == 0


def end_of(committed: Committed) -> int:
    return committed.groups.end_offset


def test_nothing_comes_from_a_voter_that_has_no_metadata_yet() -> None:
    cluster = Cluster()
    cluster.commit([b"a"])
    begun = False
    for node, committed in cluster.voters.values():
        MetadataFeed(node.links, committed, partial(end_of, committed), lambda: begun)
    follower = cluster.start_follower()
    cluster.world.run(1)
    assert follower.records == []
    begun = True
    cluster.commit([b"b"])
    cluster.world.run(1)
    assert follower.records == [b"a", b"b"]


def test_the_newest_voters_are_called() -> None:
    world = LinkWorld()
    one, two = (world.started(node_id) for node_id in (1, 2))
    broker = world.node(9)
    targets: list[tuple[str, int, int | None]] = [(f"n{node_id}", PORT, node_id) for node_id in (1, 2, 3)]
    updates = {node: VoterUpdates(node.links, targets) for node in (one, two, broker)}
    world.start(broker)
    world.run(1)

    def voters(*node_ids: int) -> list[Voter]:
        return [Voter(node_id, f"n{node_id}", PORT) for node_id in node_ids]

    updates[one].announce(20, voters(1, 2, 5))
    updates[two].announce(10, voters(1, 2, 4))
    world.run(1)
    called = {address for address, _, _ in broker.links.addresses()}
    assert ("n5", PORT) in called
    assert ("n4", PORT) not in called, "it is older"
    assert broker.links.voter_ids == {1, 2, 5}
    assert one.links.identity.dynamic
    late = world.node(8)
    VoterUpdates(late.links, targets)
    world.start(late)
    world.run(1)
    assert late.links.voter_ids == {1, 2, 5}, "each new link begins with them"


def test_a_follower_far_behind_starts_from_a_snapshot() -> None:
    cluster = Cluster(bytes_max=2000)
    cluster.commit(*[[b"%d" % n, bytes(1000)] for n in range(5000)])
    follower = cluster.start_follower()
    cluster.world.run(1)
    assert follower.records == cluster.records
    assert follower.replaced == 1
    cluster.commit([b"one more"])
    cluster.world.run(0.1)
    assert follower.records == cluster.records
    assert follower.replaced == 1


def test_a_follower_continues_with_another_voter() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    follower = cluster.start_follower()
    cluster.world.run(1)
    cluster.commit([b"a"])
    cluster.world.run(0.1)
    assert follower.source_id == 1
    cluster.voters.pop(1)[0].runtime.end()
    cluster.commit([b"b"])
    cluster.world.run(0.1)
    assert follower.records == [b"a", b"b"]
    cluster.lead(3, 2)
    cluster.commit([b"c"])
    cluster.world.run(0.1)
    assert follower.source_id == 3
    assert follower.records == [b"a", b"b", b"c"]
    assert follower.replaced == 0


def test_an_unknown_record_stops_the_follower() -> None:
    cluster = Cluster()
    follower = cluster.start_follower()
    cluster.commit([b"a"], [b"poison"], [b"c"])
    cluster.world.run(3)
    assert [str(error) for error in follower.errors] == ["a record of an unknown type"]
    assert follower.records == [b"a"]
    assert follower.source_id == -1


def test_proposals_to_a_followed_log_fail() -> None:
    cluster = Cluster()
    follower = cluster.start_follower()
    outcome: list[Exception | None] = []
    follower.log.propose([b"x"], outcome.append)
    assert isinstance(outcome[0], NotController)
    assert not follower.log.is_leader


def test_unacknowledged_bytes_to_a_slow_follower_are_bounded() -> None:
    cluster = Cluster(bytes_max=1 << 26)
    slow = cluster.start_follower()
    cluster.world.run(1)
    slow.node.runtime.hold_until(cluster.world.world.now + 2)
    voter = cluster.voters[slow.source_id][0]
    for n in range(200):
        cluster.commit([b"%d" % n, bytes(100_000)])
        cluster.world.run(0.001)
    peer = voter.links.peer(9)
    assert peer is not None
    assert peer.connection._queue_bytes < 4 << 20
    cluster.world.run(3)
    assert slow.records == cluster.records


@pytest.mark.parametrize("seed", range(60))
def test_a_follower_has_a_prefix_at_any_time_and_everything_at_the_end(seed: int) -> None:
    cluster = Cluster(bytes_max=(300, 2000, 1 << 20)[seed % 3], seed=seed, shuffles=True)
    choose = cluster.world.world.random
    network = cluster.world.network
    network.delay_s = lambda _source, _target: choose.uniform(0.0001, 0.02)
    network.cuts_pieces = lambda size: choose.randint(1, size)
    follower = cluster.start_follower()
    term = made = 0
    for _ in range(60):
        action = choose.randint(0, 9)
        node_id = choose.randint(1, 3)
        if action <= 3:
            for _ in range(choose.randint(1, 5)):
                made += 1
                cluster.history.append([b"%d.%d" % (made, n) for n in range(choose.randint(1, 4))])
            cluster.voters[node_id][1].advance()
        elif action <= 6:
            cluster.voters[node_id][1].advance(choose.randint(1, 4))
        elif action == 7:
            term += 1
            cluster.voters[node_id][1].advance()
            cluster.lead(node_id, term)
        elif action == 8:
            network.reset("n9", f"n{node_id}")
        else:
            cluster.voters[node_id][0].runtime.end()
            cluster.world.run(choose.uniform(0, 0.3))
            cluster.start_voter(node_id)
        cluster.world.run(choose.choice([0.0, 0.001, 0.01, 0.05]))
        assert follower.records == cluster.records[: len(follower.records)]
        assert follower.log.offset == len(follower.records) - 1
    for _, committed in cluster.voters.values():
        committed.advance()
    cluster.world.run(5)
    assert follower.records == cluster.records
    assert not follower.errors
