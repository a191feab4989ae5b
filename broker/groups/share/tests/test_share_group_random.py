"""Share groups under random members, topics, lost answers, moves to other brokers, and slow or failing logs and share coordinators, in
seeds.

A partition is assigned only while the share coordinator has a state of it, which nothing resets from then on; epochs never go back; a
coordinator that loads the group has the same; and once all is quiet each partition of a subscribed topic has a member.
"""

from __future__ import annotations

from random import Random

import pytest

from barnabas.broker.groups.share.group import ShareGroup
from barnabas.broker.groups.share.tests.members import (
    SESSION_MS,
    Partition,
    ShareGroups,
    ShareMember,
)
from barnabas.broker.groups.tests.conftest import GROUP
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.wire.errors import ErrorCode as E

STEPS = 80
TOPICS = ("orders", "lines", "stock")
READ = 1000  # in place of a start offset: the partition is in use
FAILURES = (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS)


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.groups = ShareGroups(seed=seed, interval_ms=self.random.choice([0, 0, 1000]))
        self.states = self.groups.share_states
        self.members: list[ShareMember] = []
        self.in_use: set[SharePartitionKey] = set()
        self.epoch = 0  # of the group, as far as it is committed
        self.made = 0
        for name in TOPICS[:2]:
            self.create_topic(name)

    def step(self) -> None:
        actions = [self.heartbeat] * 12 + [
            self.join,
            self.join,
            self.leave,
            self.silence,
            self.wait,
            self.resubscribe,
        ]
        actions += [
            self.lose_answer,
            self.reload,
            self.change_topic,
            self.hold_or_settle,
            self.hold_or_settle,
        ]
        actions += [self.hold_or_answer, self.hold_or_answer, self.fail_append, self.fail_or_mend_states]
        self.random.choice(actions)()
        self.check()

    # -- members

    def join(self) -> None:
        if len(self.members) < 6:
            self.made += 1
            member = ShareMember(self.groups, f"m{self.made}", *self.some_topics())
            self.members.append(member)
            self.beat(member)

    def some_topics(self) -> list[str]:
        return self.random.sample(TOPICS, self.random.randint(1, len(TOPICS)))

    def pick(self) -> ShareMember | None:
        return self.random.choice(self.members) if self.members else None

    def beat(self, member: ShareMember, *, is_lost: bool = False) -> None:
        """A heartbeat. What is not answered at once counts as lost."""
        response = self.groups.heartbeat_of(member.request()).response
        member.says_all = response is None or is_lost or response.error_code in FAILURES
        if not member.says_all:
            member.follow(response)
            if response.assignment is not None:
                self.check_assigned(member.assigned)

    def check_assigned(self, assigned: set[Partition]) -> None:
        existing = {topic.topic_id for topic in self.groups.image.topics.values()}
        for found, index in assigned:
            if found in existing:
                key = SharePartitionKey(GROUP, found, index)
                assert (found, index) in self.groups.initialized()
                assert key in self.states.states
                self.in_use.add(key)
                self.states.states[key] = self.states.states[key][0], READ

    def heartbeat(self) -> None:
        if member := self.pick():
            self.beat(member)

    def lose_answer(self) -> None:
        if member := self.pick():
            self.beat(member, is_lost=True)

    def resubscribe(self) -> None:
        if member := self.pick():
            member.topics, member.says_all = self.some_topics(), True
            self.beat(member)

    def leave(self) -> None:
        if member := self.pick():
            self.members.remove(member)
            self.groups.heartbeat_of(member.request(member_epoch=-1))

    def silence(self) -> None:
        if member := self.pick():
            self.members.remove(member)

    def wait(self) -> None:
        self.groups.clock.pass_ms(self.random.choice([10, 1000, 4000, 31_000]))

    # -- topics

    def create_topic(self, name: str) -> None:
        self.made += 1
        self.groups.create_topic(name, self.random.randint(1, 4), identity=f"{name}{self.made}")

    def change_topic(self) -> None:
        name = self.random.choice(TOPICS)
        topic = self.groups.image.topics.get(name)
        if topic is None:
            self.create_topic(name)
        elif self.random.random() < 0.4:
            self.groups.delete_topic(name)
            for states in (self.states.states, self.in_use):
                for key in [key for key in states if key.topic_id == topic.topic_id]:
                    states.pop(key) if isinstance(states, dict) else states.discard(key)
        elif len(topic.partitions) < 8:
            count = len(topic.partitions)
            self.groups.create_topic(
                name, count + 2, since=count, identity=topic.topic_id.decode().rstrip("-")
            )

    # -- the log, and the share coordinator

    def hold_or_settle(self) -> None:
        log = self.groups.log
        if not log.held:
            log.hold = not log.hold
            return
        log.hold = False
        error = self.random.choice([E.NONE, E.NONE, E.NOT_ENOUGH_REPLICAS])
        while log.held:
            log.settle(error)
        self.groups.clock.run_until_idle()

    def fail_append(self) -> None:
        log = self.groups.log
        if log.hold or log.held:
            return
        log.error = E.NOT_ENOUGH_REPLICAS
        before = self.values()
        if member := self.pick():
            self.beat(member, is_lost=True)
            assert before == self.values(), "what could not be written has no effect"
        log.error = E.NONE

    def hold_or_answer(self) -> None:
        states = self.states
        if not states.held:
            states.hold = not states.hold
            return
        for _ in range(self.random.randint(1, len(states.held))):
            if states.held:
                states.answer_one(self.random.randrange(len(states.held)))
        self.groups.clock.run_until_idle()

    def fail_or_mend_states(self) -> None:
        if self.states.errors:
            self.states.errors.clear()
            return
        topic = self.groups.image.topics.get(self.random.choice(TOPICS))
        if topic is None:
            return
        for index in topic.partitions:
            error = self.random.choice([E.NONE, E.UNKNOWN_SERVER_ERROR, E.COORDINATOR_NOT_AVAILABLE])
            if error:
                self.states.errors[SharePartitionKey(GROUP, topic.topic_id, index)] = error

    def reload(self) -> None:
        """What was not committed may be in the log or not."""
        log = self.groups.log
        is_committed = not log.held
        before = self.values()
        for batch, _ in log.held[: self.random.randint(0, len(log.held))]:
            log.batches.append(batch)
        log.held.clear()
        self.groups.reload()
        if is_committed:
            assert before == self.values()

    # -- what holds

    def values(self) -> dict[str, object]:
        return {
            group_id: dict(group.values)
            for group_id, group in self.groups.shard.groups.items()
            if isinstance(group, ShareGroup)
        }

    def check(self) -> None:
        group = self.groups.shard.share_groups.find(GROUP)
        if group is not None and not self.groups.log.held:
            assert group.epoch >= self.epoch
            self.epoch = group.epoch
            assert all(group.current(member_id).epoch <= group.epoch for member_id in group.members)
        for key in self.in_use:
            assert self.states.states[key][1] == READ, f"{key} was reset"

    def end(self) -> None:
        """All is quiet: silent members are gone, and each partition that is read has a member."""
        log, states = self.groups.log, self.states
        log.hold = states.hold = False
        states.errors.clear()
        while log.held:
            log.settle()
        while states.held:
            states.answer_one()
        for _ in range(30):
            self.groups.clock.pass_ms(5000)
            for member in self.members:
                self.beat(member)
            self.check()
        wanted = {
            (topic.topic_id, index)
            for member in self.members
            for name in member.topics
            if (topic := self.groups.image.topics.get(name)) is not None
            for index in topic.partitions
        }
        assert {each for member in self.members for each in member.assigned} == wanted
        for member in self.members:
            topics = {
                topic.topic_id for name in member.topics if (topic := self.groups.image.topics.get(name))
            }
            assert {found for found, _ in member.assigned} <= topics


@pytest.mark.parametrize("seed", range(60))
def test_walk(seed: int) -> None:
    walk = Walk(seed)
    walk.join()
    for _ in range(STEPS):
        walk.step()
    walk.end()
    values = walk.values()
    walk.reload()
    assert values == walk.values()


@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_ends_at_any_record(seed: int) -> None:
    """A coordinator that loads a part of the log serves the members of that time on."""
    walk = Walk(1000 + seed)
    for _ in range(STEPS):
        walk.step()
    batches = list(walk.groups.log.batches)
    for end in range(0, len(batches), 2):
        groups = ShareGroups()
        for topic in walk.groups.image.topics.values():
            groups.create_topic(
                topic.name, len(topic.partitions), identity=topic.topic_id.decode().rstrip("-")
            )
        groups.log.batches = batches[:end]
        groups.load()
        members = [ShareMember(groups, name, *TOPICS) for name in "xy"]
        for _ in range(4):
            groups.clock.pass_ms(SESSION_MS / 2)
            for member in members:
                member.heartbeat()
        wanted = {
            (topic.topic_id, index) for topic in groups.image.topics.values() for index in topic.partitions
        }
        assert {each for member in members for each in member.assigned} == wanted
