"""Consumer groups under random members, topics, lost answers, silence and moves to other brokers, in seeds.

At no time do two live members own the same partition, epochs never go back, and once all is quiet every partition of a topic that is
read has one owner who reads it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from barnabas.broker.groups.consumer import changes
from barnabas.broker.groups.consumer.tests.members import (
    SESSION_MS,
    ConsumerMember,
    Groups,
    all_partitions,
    settle,
    topic_id,
)
from barnabas.broker.groups.settings import GroupSettings
from barnabas.wire.errors import ErrorCode as E

TOPICS = ("orders", "payments", "people")
STEPS = 60


class Walk:
    def __init__(self, seed: int, *, is_slow: bool = False) -> None:
        """`is_slow`: assignments are computed in slices, between which members go on."""
        self.random = Random(seed)
        self.groups = Groups(seed=seed, interval_ms=self.random.choice([0, 0, 1000]), is_slow=is_slow)
        self.members: list[ConsumerMember] = []
        self.partitions = {name: self.random.randint(1, 5) for name in TOPICS[:2]}
        for name, count in self.partitions.items():
            self.groups.create_topic(name, count)
        self.made = 0

    def step(self) -> None:
        actions = [self.heartbeat] * 8 + [self.join, self.join, self.leave, self.silence, self.wait]
        actions += [self.lose_answer, self.subscribe, self.change_topics, self.reload, self.repeat]
        actions += [self.leave_for_now, self.fail_append]
        self.random.choice(actions)()
        self.work(self.random.choice([0, 1, 5, 50]))
        self.check()

    def work(self, steps: int) -> None:
        if self.groups.work is not None:
            self.groups.work.go_on(steps)

    def join(self) -> None:
        if len(self.members) >= 5:
            return
        self.made += 1
        options: dict[str, Any] = {}
        if self.random.random() < 0.3:
            options["subscribed_topic_regex"] = self.random.choice(["p.*", "o.*|pay.*"])
        if self.random.random() < 0.3:
            taken = {each.options.get("instance_id") for each in self.members}
            options["instance_id"] = next(f"i{n}" for n in range(9) if f"i{n}" not in taken)
        if self.random.random() < 0.3:
            options["server_assignor"] = self.random.choice(["range", "uniform"])
        topics = self.random.sample(TOPICS, self.random.randint(0 if len(options) else 1, 3))
        member = ConsumerMember(self.groups, f"m{self.made}", *topics, **options)
        member.is_slow = self.random.random() < 0.5
        answer = member.heartbeat()
        if answer.error_code == E.NONE:
            self.members.append(member)

    def pick(self) -> ConsumerMember | None:
        return self.random.choice(self.members) if self.members else None

    def heartbeat(self) -> None:
        if member := self.pick():
            member.heartbeat()

    def lose_answer(self) -> None:
        if member := self.pick():
            member.heartbeat(lose_answer=True)

    def repeat(self) -> None:
        """As after a timeout of the client."""
        if member := self.pick():
            member.heartbeat(lose_answer=True)
            member.heartbeat()

    def leave(self) -> None:
        if member := self.pick():
            self.members.remove(member)
            member.leave()

    def leave_for_now(self) -> None:
        static = [each for each in self.members if "instance_id" in each.options]
        if static:
            member = self.random.choice(static)
            member.leave(-2)
            if self.random.random() < 0.5:
                member.member_id += "+"

    def silence(self) -> None:
        if member := self.pick():
            self.members.remove(member)

    def wait(self) -> None:
        self.groups.clock.pass_ms(self.random.choice([10, 1000, 20_000]))

    def subscribe(self) -> None:
        if member := self.pick():
            member.topics = self.random.sample(TOPICS, self.random.randint(1, 3))
            request = member.request()
            request.subscribed_topic_names = member.topics
            member.follow(self.groups.heartbeat_of(request).response)
            member.heard_at = self.groups.clock.monotonic()

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        count = self.partitions.get(name, 0)
        if count and self.random.random() < 0.3:
            del self.partitions[name]
            self.groups.delete_topic(name)
        elif count < 9:
            self.partitions[name] = count + 2
            self.groups.create_topic(name, count + 2, since=count)

    def reload(self) -> None:
        self.groups.reload()

    def fail_append(self) -> None:
        self.groups.log.error = E.NOT_ENOUGH_REPLICAS
        if member := self.pick():
            before = dict(self.groups.consumer_group.values) if self.groups.shard.groups else {}
            response = self.groups.heartbeat_of(member.request()).response
            after = dict(self.groups.consumer_group.values) if self.groups.shard.groups else {}
            assert before == after, "what could not be written has no effect"
            if response.error_code in (E.NONE, E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID):
                member.follow(response)
        self.groups.log.error = E.NONE

    def check(self) -> None:
        self.groups.check_counted()
        now = self.groups.clock.monotonic()
        owners: dict[tuple[bytes, int], str] = {}
        for member in self.members:
            if now - member.heard_at < SESSION_MS / 1000:
                for partition in member.owned:
                    assert partition not in owners, f"{member.member_id} and {owners[partition]}"
                    owners[partition] = member.member_id
        group = self.groups.shard.store.consumer("group")
        if group is not None:
            held = [each for member_id in group.members for each in group.current(member_id).held()]
            assert sorted(held) == sorted(group.owners), "each partition is with one member"

    def end(self) -> None:
        """All is quiet: silent members are gone, the others get everything."""
        for _ in range(30):
            self.groups.clock.pass_ms(5000)
            for member in self.members:
                member.heartbeat()
                self.work(1000)
        if not self.members:
            return
        settle(self.groups, *self.members)
        read = {
            name
            for member in self.members
            for name in self.groups.consumer_group.topics_of(
                self.groups.consumer_group.members[member.member_id]
            )
            if name in self.partitions
        }
        owned = [partition for member in self.members for partition in member.owned]
        assert sorted(owned) == sorted(all_partitions(self.groups, *read))
        for member in self.members:
            described = self.groups.consumer_group.members[member.member_id]
            topics = {topic_id(name) for name in self.groups.consumer_group.topics_of(described)}
            assert {topic for topic, _ in member.owned} <= topics


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
    values = {group: found.values for group, found in walk.groups.shard.groups.items()}  # type: ignore[union-attr]
    walk.reload()
    assert values == {group: found.values for group, found in walk.groups.shard.groups.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_ends_at_any_record(seed: int) -> None:
    """Kafka appends what belongs together as one batch; compaction may still leave any part of it."""
    walk = Walk(1000 + seed)
    for _ in range(STEPS):
        walk.step()
    batches = list(walk.groups.log.batches)
    for end in range(0, len(batches), 3):
        groups = Groups(GroupSettings())
        groups.image = walk.groups.image
        groups.log.batches = batches[:end]
        groups.load()
        for group in groups.shard.groups.values():
            assert group.state_name
