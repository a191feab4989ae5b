"""Streams groups under random members, topics, lost answers, silence and moves to other brokers, in seeds.

At no time is a task active at two live members, or active and a copy in one process; epochs never go back; and once all is quiet each
task runs once.
"""

from __future__ import annotations

from random import Random

import pytest

from barnabas.broker.groups.streams import changes
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.broker.groups.streams.tests.members import (
    SESSION_MS,
    StreamsGroups,
    StreamsMember,
    Task,
    settle,
    topology,
)
from barnabas.wire.errors import ErrorCode as E

STEPS = 60


class Walk:
    def __init__(self, seed: int, *, is_slow: bool = False) -> None:
        """`is_slow`: assignments are computed in slices, between which members go on."""
        self.random = Random(seed)
        self.groups = StreamsGroups(
            seed=seed,
            interval_ms=self.random.choice([0, 0, 1000]),
            delay_ms=self.random.choice([0, 3000]),
            standby=self.random.randint(0, 2),
            is_slow=is_slow,
        )
        self.members: list[StreamsMember] = []
        self.count = self.random.randint(1, 6)
        for name in ("lines", "changelog"):
            self.groups.create_topic(name, self.count)
        self.made = 0

    def step(self) -> None:
        actions = [self.heartbeat] * 9 + [self.join, self.join, self.leave, self.silence, self.wait]
        actions += [self.lose_answer, self.restart, self.add_partitions, self.reload, self.fail_append]
        self.random.choice(actions)()
        self.work(self.random.choice([0, 1, 5, 50]))
        self.check()

    def work(self, steps: int) -> None:
        if self.groups.work is not None:
            self.groups.work.go_on(steps)

    def join(self) -> None:
        if len(self.members) < 6:
            self.made += 1
            reads = topology("lines", changelog="changelog")
            member = StreamsMember(self.groups, f"m{self.made}", self.random.choice("PQR"), reads)
            member.heartbeat()
            self.members.append(member)

    def pick(self) -> StreamsMember | None:
        return self.random.choice(self.members) if self.members else None

    def heartbeat(self) -> None:
        if member := self.pick():
            member.heartbeat()

    def lose_answer(self) -> None:
        """The client then joins again."""
        if member := self.pick():
            member.heartbeat(lose_answer=True)
            member.restart()

    def restart(self) -> None:
        if member := self.pick():
            member.restart()

    def leave(self) -> None:
        if member := self.pick():
            self.members.remove(member)
            member.leave()

    def silence(self) -> None:
        if member := self.pick():
            self.members.remove(member)

    def wait(self) -> None:
        self.groups.clock.pass_ms(self.random.choice([10, 1000, 4000, 20_000]))

    def add_partitions(self) -> None:
        if self.count < 9:
            for name in self.random.sample(("lines", "changelog"), 2):
                self.groups.create_topic(name, self.count + 2, since=self.count)
                self.heartbeat()
            self.count += 2

    def reload(self) -> None:
        self.groups.reload()

    def fail_append(self) -> None:
        self.groups.log.error = E.NOT_ENOUGH_REPLICAS
        if member := self.pick():
            before = self.values()
            member.heartbeat(lose_answer=True)
            assert before == self.values(), "what could not be written has no effect"
        self.groups.log.error = E.NONE

    def values(self) -> dict[str, object]:
        return {
            group_id: dict(group.values)
            for group_id, group in self.groups.shard.groups.items()
            if isinstance(group, StreamsGroup)
        }

    def check(self) -> None:
        self.groups.check_counted()
        now = self.groups.clock.monotonic()
        runs: dict[Task, StreamsMember] = {}
        live = [each for each in self.members if now - each.heard_at < SESSION_MS / 1000]
        for member in live:
            for task in member.active:
                assert task not in runs, f"{member.member_id} and {runs[task].member_id}"
                runs[task] = member
        for group in self.groups.shard.groups.values():
            assert isinstance(group, StreamsGroup)
            for task in group.active:
                process = group.process_of(task)
                assert process is None or not group.has_copy(task, process)

    def end(self) -> None:
        """All is quiet: silent members are gone, the others have everything."""
        for _ in range(30):
            self.groups.clock.pass_ms(5000)
            for member in self.members:
                member.heartbeat()
                self.work(1000)
        if self.members:
            settle(self.groups, *self.members)
            tasks = sorted(task for member in self.members for task in member.active)
            assert tasks == [("0", index) for index in range(self.count)]


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_walk(seed: int, is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_slow:
        monkeypatch.setattr(changes, "ASSIGNED_AT_ONCE", 0)
    walk = Walk(seed, is_slow=is_slow)
    walk.join()
    for _ in range(STEPS):
        walk.step()
    walk.end()
    values = walk.values()
    walk.reload()
    assert values == walk.values()


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_ends_at_any_record(seed: int) -> None:
    """A coordinator that loads a part of the log serves the members of that time on."""
    walk = Walk(1000 + seed)
    for _ in range(STEPS):
        walk.step()
    batches = list(walk.groups.log.batches)
    for end in range(0, len(batches), 3):
        groups = StreamsGroups()
        groups.image.topics.update(walk.groups.image.topics)
        groups.log.batches = batches[:end]
        groups.load()
        for group in groups.shard.groups.values():
            assert isinstance(group, StreamsGroup)
            assert group.state_name
        members = [
            StreamsMember(groups, name, name, topology("lines", changelog="changelog")) for name in "xy"
        ]
        for _ in range(3):
            groups.clock.pass_ms(SESSION_MS / 2)
            for member in members:
                member.heartbeat()
        settle(groups, *members)
        assert sorted(task for member in members for task in member.active) == [
            ("0", index) for index in range(walk.count)
        ]
