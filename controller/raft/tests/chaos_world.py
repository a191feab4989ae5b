"""Voters, a bad network, bad disks, and what must be true all the time; everything follows from a seed.

The checks know nothing of Raft: there is one history of groups, every voter's state is a prefix of it, it holds
every group that was acknowledged, a term has one leader. There is one history of sets of voters as well: where two nodes
know an entry to be committed they know the same set from it, and sets in a row differ by one voter. All of it is checked
at every step.

Voters are added and removed, the leader too, and a node that was removed may come back with an empty disk, or with an emptied directory.
"""

from __future__ import annotations

import errno
import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from barnabas.controller.raft import snapshots, transport
from barnabas.controller.raft.commands import voters_in
from barnabas.controller.raft.library import LEADER
from barnabas.controller.raft.messages import COMMAND_KIND
from barnabas.controller.raft.raft_log import RaftMetadataLog
from barnabas.controller.raft.tests.raft_world import RaftWorld, Voter
from barnabas.controller.raft.voters import VoterSet, ids_of, is_single_change, voter_set
from barnabas.testing.memory_disk import ProcessKilled
from compat_tests.virtual.world import Process

STEP_S = 0.01


def digest(groups: Sequence[tuple[bytes, ...]]) -> bytes:
    return hashlib.sha256(repr(groups).encode()).digest()


class ChaosLog(RaftMetadataLog):
    """Reports each set of voters that it applies."""

    _peers: ChaosVoter

    def apply_command(self, payload: bytes) -> None:
        super().apply_command(payload)
        voters = voters_in(COMMAND_KIND + payload)
        if voters is not None:
            self._peers.world.reached_voters(self._engine.library.applied_index + 1, voter_set(voters))


class ChaosVoter(Voter):
    """Every state it reaches is compared with the one history."""

    world: ChaosWorld
    make_log = ChaosLog

    def apply(self, records: Sequence[bytes]) -> None:
        super().apply(records)
        self.world.reached(self)

    def snapshot(self) -> list[bytes]:
        """Small, so that they are taken often: how many groups, and that they are these."""
        return [b"%d" % len(self.groups), digest(self.groups)] if self.groups else []

    def replace(self, records: Sequence[bytes], offset: int) -> None:
        self.offset = offset
        self.groups = self.world.history[: int(records[0])] if records else []
        assert len(self.groups) == (int(records[0]) if records else 0)
        assert not records or digest(self.groups) == records[1]
        if self.is_serving:
            self.world.counters["snapshots from the leader"] += 1


class ChaosWorld(RaftWorld):
    """`run_chaos` for a while, then `settle`."""

    def __init__(self, seed: int, voters: int, spares: int = 2) -> None:
        ids = range(1, voters + spares + 1)
        super().__init__(ids[:voters], seed, spares=ids[voters:], start=False)
        self.voter_sets: dict[int, VoterSet] = {}  # index of a committed entry -> the voters that it names
        self.removed: set[int] = set()  # removed for certain, and not added again
        self.history: list[tuple[bytes, ...]] = []
        self.leaders_of: dict[int, int] = {}  # term -> node id
        self.outcomes: list[list[Exception | None]] = []
        self.counters: Counter[str] = Counter()
        self.proposed = 0
        self.until_restart: dict[int, float] = {}
        random = self.random
        self.changes = random.choice([0.0, 0.01, 0.05, 0.2])  # of voters, in a step
        self.loss = random.choice([0.0, 0.0, 0.01, 0.1])
        self.doubling = random.choice([0.0, 0.01, 0.2])
        self.delay_max = random.choice([0.001, 0.005, 0.05, 0.2])
        self.late = random.choice([0.0, 0.02])  # by up to two seconds
        self.spoil = self.spoiled
        self.journal_bytes_min = random.choice([1, 200, 2000, 1 << 20])
        disk_s = random.choice([0.0, 0.001, 0.02])
        self.thread_delay_s = lambda: random.random() * disk_s
        self.world.shuffles = random.random() < 0.5
        self.world.on_killed = self.killed
        self.voters = {node_id: ChaosVoter(self, node_id) for node_id in self.node_ids}
        for voter in self.voters.values():
            voter.disk.sector = random.choice([16, 64, 512])
            voter.disk.ordered_names = random.random() < 0.5
            voter.start()

    def spoiled(self, sender: int, receiver: int, message: bytes) -> Sequence[float]:
        random = self.random
        if random.random() < self.loss:
            return ()
        copies = 2 if random.random() < self.doubling else 1
        return [
            random.random() * (2.0 if random.random() < self.late else self.delay_max) for _ in range(copies)
        ]

    # What must be true

    def reached(self, voter: Voter) -> None:
        length = len(voter.groups)
        if length > len(self.history):
            assert length == len(self.history) + 1
            self.history.append(voter.groups[-1])
        assert voter.groups[-1] == self.history[length - 1], (voter.node_id, length)

    def check(self) -> None:
        for voter in self.voters.values():
            if voter.log is None:
                continue
            library = voter.log._engine.library
            if library.state == LEADER:
                leader = self.leaders_of.setdefault(library.term, voter.node_id)
                assert leader == voter.node_id, f"two leaders in term {library.term}"
            assert voter.log._engine.failure is None, voter.log._engine.failure

    def reached_voters(self, index: int, voters: VoterSet) -> None:
        assert self.voter_sets.setdefault(index, voters) == voters, f"two sets of voters at {index}"
        sets = [voters for _, voters in sorted(self.voter_sets.items())]
        for before, after in pairwise([voter_set(self.configured), *sets]):
            assert is_single_change(before, after), (ids_of(before), ids_of(after))

    def propose_at(self, voter: Voter) -> None:
        """As a controller does: each group names its number, so none equals another."""
        self.proposed += 1
        records = [b"%d.%d" % (self.proposed, part) for part in range(self.random.choice([1, 1, 3]))]
        records[-1] += bytes([65]) * self.random.choice([0, 0, 100, 1000])
        group = tuple(records)
        outcomes: list[Exception | None] = []

        def done(error: Exception | None) -> None:
            outcomes.append(error)
            assert len(outcomes) == 1, "told twice"
            self.counters["committed" if error is None else "failed"] += 1
            if error is None:
                assert group == voter.groups[-1]

        assert voter.log is not None
        self.outcomes.append(outcomes)
        voter.log.propose(records, done)

    def change_voters_at(self, leader: Voter) -> None:
        """Add a node that has caught up, or remove any."""
        log = leader.log
        assert log is not None
        if log.is_voter_change_open and self.random.random() < 0.9:
            return
        voters = {voter.node_id: voter for voter in log.voters}
        spare = [node_id for node_id in self.node_ids if node_id not in voters and log.is_caught_up(node_id)]
        adds = spare and (len(voters) < 2 or self.random.random() < 0.6)
        node_id = self.random.choice(spare if adds else sorted(voters))
        if adds:
            self.removed.discard(node_id)
            voters[node_id] = self.voters[node_id].name
        elif len(voters) > 1:
            del voters[node_id]

        def done(error: Exception | None) -> None:
            self.counters["voter changes" if error is None else "failed voter changes"] += 1
            if error is None and not adds and node_id not in voters:
                self.removed.add(node_id)
                self.counters["leaders that removed themselves"] += node_id == leader.node_id

        log.change_voters(list(voters.values()), done)

    # What happens

    def killed(self, process: Process) -> None:
        voter = next(voter for voter in self.voters.values() if voter.runtime is process)
        self.gone(voter)

    def gone(self, voter: Voter) -> None:
        random = self.random
        power = random.random() < 0.7
        luck = random.choice([0.0, 1.0, 0.5])
        voter.disk.fault = voter.disk.capacity = None
        voter.stop(
            power_fails=power,
            choose=lambda n: random.randint(0, n) if 0 < luck < 1 else round(luck * n),
        )
        self.counters["power failures" if power else "kills"] += 1
        self.until_restart[voter.node_id] = self.world.now + random.choice([0.01, 0.3, 1.5])

    def restart(self, voter: Voter) -> None:
        self.until_restart.pop(voter.node_id, None)
        if voter.node_id in self.removed and self.random.random() < 0.5:
            keeps_directory_id = self.random.random() < 0.5
            (voter.lose_files if keeps_directory_id else voter.wipe)()
            voter.groups, voter.offset = [], -1
            self.counters["emptied" if keeps_directory_id else "wiped"] += 1
        if self.random.random() < 0.2:
            voter.disk.kill_after = self.random.randrange(6)
            voter.disk.torn_bytes = self.random.randrange(30)
        try:
            voter.start()
        except ProcessKilled:
            self.counters["killed in the start"] += 1
            self.gone(voter)
            return
        voter.disk.kill_after = None
        self.check()

    def something(self) -> None:
        random = self.random
        alive = [voter for voter in self.voters.values() if voter.log is not None]
        down = len(self.node_ids) - len(alive)
        voter = random.choice(alive) if alive else None
        what = random.random()
        if voter is None:
            pass
        elif what < 0.25:
            if down <= len(self.node_ids) // 2:
                self.gone(voter)
        elif what < 0.33:
            self.isolate(voter.node_id)
        elif what < 0.40:
            self.split()
        elif what < 0.50:
            other = random.choice(self.node_ids)
            self.cut.add((voter.node_id, other))  # one way
        elif what < 0.60:
            self.disconnect(voter.node_id, random.choice(self.node_ids))
        elif what < 0.75:
            self.heal()
        elif what < 0.85:
            voter.runtime.hold_until(self.world.now + random.choice([0.05, 0.3, 2.0]))
            self.counters["stopped"] += 1
        elif what < 0.90:
            voter.disk.kill_after = random.randrange(20)
            voter.disk.torn_bytes = random.randrange(40)
        elif what < 0.95:
            code = random.choice([errno.ENOSPC, errno.EIO])
            which = random.choice(["write", "sync", "rename"])
            voter.disk.fault = lambda operation, _: code if operation == which else None
            self.counters["disk refuses"] += 1
        else:
            voter.disk.fault = None
        for one in self.node_ids:
            for other in self.node_ids:
                if random.random() < 0.5:
                    self.connect(one, other)

    def split(self) -> None:
        """Two parts that can't reach each other."""
        part = {node_id for node_id in self.node_ids if self.random.random() < 0.5}
        for one in part:
            for other in set(self.node_ids) - part:
                self.cut |= {(one, other), (other, one)}
        self.counters["splits"] += 1

    def run_chaos(self, seconds: float) -> None:
        random = self.random
        end = self.world.now + seconds
        while self.world.now < end:
            self.run(STEP_S)
            self.check()
            for node_id, moment in sorted(self.until_restart.items()):
                if self.world.now >= moment:
                    self.restart(self.voters[node_id])
            if random.random() < 0.03:
                self.something()
            for voter in self.leaders:
                for _ in range(random.choice([0, 0, 0, 1, 1, 5])):
                    if voter.log is not None and voter.log.is_leader:
                        self.propose_at(voter)
            if random.random() < self.changes and self.leaders and self.leaders[-1].log is not None:
                self.change_voters_at(self.leaders[-1])
            if random.random() < 0.002 and self.leaders and self.leaders[0].log is not None:
                self.counters["hand-overs"] += self.leaders[0].log.transfer_leadership()

    def settle(self) -> None:
        """Without faults all voters converge, and no proposal is left open."""
        self.heal()
        self.loss = self.doubling = self.late = 0.0
        self.delay_max = 0.002
        for voter in self.voters.values():
            voter.disk.fault = None
            voter.disk.kill_after = None
            if voter.log is None:
                voter.start()
        self.run(6.0)  # proposals of the past have run into their deadlines
        for one in self.node_ids:
            for other in self.node_ids:
                self.connect(one, other)
        (leader,) = [self.leader()]
        self.run(1.0)
        self.check()
        self.propose_at(leader)
        self.run(0.3)
        assert self.outcomes[-1] == [None]
        for voter in self.voters.values():
            assert voter.groups == self.history, voter.node_id
            assert voter.log is not None
            assert leader.log is not None
            assert voter.log.are_voters_recorded == leader.log.are_voters_recorded
            assert voter.log.voters == leader.log.voters or not leader.log.are_voters_recorded
            self.counters["shortened journals"] += voter.log._engine.journal.first_index > 1
        alive = [outcomes for outcomes in self.outcomes if not outcomes]
        self.counters["never answered"] += len(alive)
        self.counters["elections"] += len(self.leaders_of)
        self.counters["groups"] += len(self.history)


def run_seed(seed: int, seconds: float = 8.0, changes: float | None = None) -> Counter[str]:
    """3 voters or 5; snapshots go in many chunks. `changes`: of the voters, in a step of STEP_S; None: as the seed has it."""
    chunk_bytes, step_bytes = snapshots.CHUNK_BYTES, transport.STEP_BYTES_MAX
    vars(snapshots)["CHUNK_BYTES"] = 40
    vars(transport)["STEP_BYTES_MAX"] = 4000 if seed % 2 else step_bytes
    try:
        world = ChaosWorld(seed, 5 if seed % 3 == 2 else 3)
        world.changes = world.changes if changes is None else changes
        world.run_chaos(seconds)
        world.settle()
    finally:
        vars(snapshots)["CHUNK_BYTES"] = chunk_bytes
        vars(transport)["STEP_BYTES_MAX"] = step_bytes
    return world.counters
