"""Random members that join, sync, heartbeat, leave, fall silent and restart, against what must always hold.

The members behave like clients: they use the ids and generations they were told, at times old ones. After
every step: at most one generation is current and its leader is a member; every request is answered at most
once, and in the end exactly once; whoever syncs in a generation gets what its leader assigned; a shard that
is loaded from the log says the same as the living one about every group that is settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.state import GroupState
from barnabas.wire.errors import ErrorCode as E


@dataclass
class Client:
    instance: str | None
    version: int
    member_id: str = ""
    generation: int = -1
    leader: bool = False
    roster: list[str] = field(default_factory=list)
    joining: Any = None
    syncing: Any = None


class World:
    def __init__(self, bench: Any, clients: int, *, steady: bool = True) -> None:
        self.bench = bench
        self.steady = steady  # appends are committed at once and never fail
        self.clients = [
            Client(f"i{n}" if n % 3 == 2 else None, 3 if n % 4 == 3 else 9) for n in range(clients)
        ]
        self.answers: list[Any] = []
        self.assigned: dict[int, dict[str, bytes]] = {}  # by generation, what its leader handed in
        # by generation and members, who was told to lead
        self.leaders: dict[tuple[int, frozenset[str]], set[str]] = {}

    def step(self, action: str, index: int, amount: int) -> None:
        client = self.clients[index % len(self.clients)]
        getattr(self, action)(client, amount)
        self.settle()
        self.check()

    def join(self, client: Client, amount: int) -> None:
        answer = self.bench.join(
            client.member_id,
            instance=client.instance,
            version=client.version,
            protocols=[("range", b"m%d" % (amount % 2))],
            rebalance_ms=5_000 + amount,
            session_ms=6_000,
        )
        client.joining = answer
        self.answers.append(answer)

    def sync(self, client: Client, amount: int) -> None:
        if client.generation < 0:
            return
        assignments = {}
        if client.leader:
            assignments = {member: f"{client.generation}:{member}".encode() for member in client.roster}
            self.assigned.setdefault(client.generation, assignments)
        answer = self.bench.sync(client.member_id, client.generation, assignments, instance=client.instance)
        client.syncing = (client.generation, client.member_id, answer)
        self.answers.append(answer)

    def heartbeat(self, client: Client, amount: int) -> None:
        self.bench.heartbeat(client.member_id, client.generation - amount % 2, client.instance)

    def leave(self, client: Client, amount: int) -> None:
        self.bench.leave((client.member_id, client.instance))

    def restart_client(self, client: Client, amount: int) -> None:
        client.member_id, client.generation, client.leader = "", -1, False

    def wait(self, client: Client, amount: int) -> None:
        self.bench.clock.pass_ms(amount)

    def commit(self, client: Client, amount: int) -> None:
        self.bench.commit(
            {("t", amount % 3): amount}, member_id=client.member_id, generation=client.generation
        )

    def hold(self, client: Client, amount: int) -> None:
        self.bench.log.hold = amount % 3 != 0

    def committed(self, client: Client, amount: int) -> None:
        if self.bench.log.held:
            self.bench.log.settle()

    def failed(self, client: Client, amount: int) -> None:
        if self.bench.log.held:
            self.bench.log.settle(E.NOT_ENOUGH_REPLICAS)

    def settle(self) -> None:
        """Clients take in what they were answered."""
        for client in self.clients:
            answer = client.joining
            if answer is not None and not answer.waiting:
                client.joining = None
                if answer.error is E.MEMBER_ID_REQUIRED:
                    client.member_id = answer.member_id
                elif answer.error is E.NONE:
                    self.joined(client, answer)
                elif answer.error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
                    client.member_id, client.generation = "", -1
            if client.syncing is not None:
                generation, member_id, synced = client.syncing
                if not synced.waiting:
                    client.syncing = None
                    if self.steady and synced.error is E.NONE and generation in self.assigned:
                        expected = self.assigned[generation].get(member_id, b"")
                        # A returning static member takes over what its predecessor was given.
                        assert synced.assignment == expected or client.instance is not None

    def joined(self, client: Client, answer: Any) -> None:
        client.member_id, client.generation = answer.member_id, answer.generation_id
        client.leader = answer.leader == answer.member_id and bool(answer.members)
        client.roster = [member.member_id for member in answer.members]
        if client.leader:
            assert client.member_id in client.roster
            if not answer.skip_assignment:
                # A group that could not be written begins anew in generation 1, with other members.
                told = self.leaders.setdefault((answer.generation_id, frozenset(client.roster)), set())
                told.add(client.instance or client.member_id)
                assert len(told) == 1

    def check(self) -> None:
        for group in self.bench.shard.groups.values():
            waiting = [member for member in group.members.values() if member.join_reply is not None]
            assert group.awaiting_join_count == len(waiting)
            assert group.leader_id is None or group.leader_id in group.members
            assert bool(group.members) == (group.leader_id is not None)
            assert set(group.static_members.values()) <= set(group.members)
            assert group.pending_syncs <= set(group.members)
            assert not set(group.pending_joins) & set(group.members)
            if group.state is GroupState.EMPTY:
                assert not group.members
            if group.state in (GroupState.STABLE, GroupState.EMPTY):
                assert not any(member.sync_reply for member in group.members.values())
                if self.steady:
                    self.compare(group)
            if waiting and self.steady:
                assert group.state is GroupState.PREPARING_REBALANCE
            if group.state is GroupState.PREPARING_REBALANCE:
                assert group.join_timer.armed

    def compare(self, group: Any) -> None:
        loaded = self.bench.restarted().shard.groups[group.group_id]
        assert (loaded.state, loaded.generation_id) == (group.state, group.generation_id)
        assert (loaded.leader_id, loaded.static_members) == (group.leader_id, group.static_members)
        assert loaded.protocol_name == group.protocol_name
        if group.state is GroupState.STABLE:
            assert {member.member_id: member.assignment for member in loaded.members.values()} == {
                member.member_id: member.assignment for member in group.members.values()
            }

    def finish(self) -> None:
        self.bench.log.hold = False
        while self.bench.log.held:
            self.bench.log.settle()
        self.bench.clock.pass_ms(20 * 60_000)
        self.settle()
        assert not any(answer.waiting for answer in self.answers)
        for group in self.bench.shard.groups.values():
            assert group.state is GroupState.EMPTY


ACTIONS = ["join", "join", "join", "sync", "sync", "heartbeat", "leave", "restart_client", "wait", "commit"]


@given(
    seed=st.integers(0, 1000),
    delay=st.sampled_from([0, 0, 2_000]),
    steps=st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, 4), st.integers(0, 4_000)), min_size=5, max_size=60
    ),
)
def test_invariants(make_bench: Any, seed: int, delay: int, steps: list[tuple[str, int, int]]) -> None:
    world = World(make_bench(GroupSettings(group_initial_rebalance_delay_ms=delay), seed), clients=5)
    for action, index, amount in steps:
        world.step(action, index, amount)
    world.finish()


@given(
    seed=st.integers(0, 1000),
    steps=st.lists(
        st.tuples(
            st.sampled_from([*ACTIONS, "hold", "committed", "committed", "failed"]),
            st.integers(0, 4),
            st.integers(0, 4_000),
        ),
        min_size=5,
        max_size=60,
    ),
)
def test_invariants_while_appends_wait_and_fail(
    make_bench: Any, seed: int, steps: list[tuple[str, int, int]]
) -> None:
    """The log may fall behind or fail: nobody is answered twice or never, and no group gets stuck."""
    world = World(make_bench(seed=seed), clients=5, steady=False)
    for action, index, amount in steps:
        world.step(action, index, amount)
    world.finish()
