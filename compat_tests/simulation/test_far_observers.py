"""The simulator with a broker far away that holds observers of the topics: reads are its only task."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat_tests.simulation.admins import Admin
from compat_tests.simulation.producers import Producer
from compat_tests.simulation.simulation import FORMS_WITHIN_S, HEALS_WITHIN_S, Simulation
from compat_tests.simulation.tasks import Task

pytestmark = pytest.mark.barnabas_only

FAR = 4  # the broker
FAR_S = 0.2  # of one message to it or from it
TOPICS = ("safe", "unclean")
NEAR_S = 0.001
BATCHES = 20


class FarObserver(Simulation):
    """Three nodes with brokers and controllers, and the broker FAR, whose messages take `far_s` longer."""

    def __init__(self, seed: int, far_s: float) -> None:
        self._far_s = far_s
        super().__init__(seed, (*("broker,controller",) * 3, "broker"))

    def _choose_network(self) -> None:
        super()._choose_network()
        assert self.network.delay_s is not None
        self.place_far(self.network.delay_s)

    def place_far(self, near: Callable[[str, str], float]) -> None:
        """Delays of messages: those of `near`, and more to and from FAR."""
        far = self.nodes[FAR - 1].host
        self.network.delay_s = lambda source, target: (
            near(source, target) + (self._far_s if far in (source, target) else 0.0)
        )

    async def _set_up(self, admin: Admin) -> None:
        configs = {"barnabas.observers": str(FAR), "min.insync.replicas": "2"}
        await admin.create("safe", 2, configs)
        await admin.create("unclean", 1, {**configs, "unclean.leader.election.enable": "true"})

    def form(self) -> None:
        """Start the nodes, and create the topics."""
        for node in self.nodes:
            node.start()
        admin = Admin(self.client("setup"), self.history, [1, 2, 3, 4], 3, lambda: True)
        setup = Task(self.client_runtime, self._set_up(admin))
        self._run_until(
            FORMS_WITHIN_S, lambda: setup.is_done and self.is_whole(), "the cluster does not form"
        )

    def latencies(self) -> list[float]:
        """Of batches with acks=all, one after the other, in virtual seconds."""
        producer = Producer(
            self.client("p"),
            self.history,
            acks=-1,
            is_idempotent=True,
            pace_s=0,
            should_continue=lambda: True,
        )
        found: list[float] = []

        async def produce() -> None:
            await producer._become_idempotent()
            topic_id = self.history.topics["safe"].topic_id
            for index in range(2):  # the leaders are known then
                await producer.produce((topic_id, index))
            for number in range(BATCHES):
                begun = self.world.now
                await producer.produce((topic_id, number % 2))
                found.append(self.world.now - begun)

        task = Task(self.client_runtime, produce())
        self._run_until(HEALS_WITHIN_S, lambda: task.is_done, "batches are not acknowledged")
        return found

    def check_roles(self) -> int:
        """The number of committed states of observed partitions; in none of them an observer is more than a replica."""
        ids = {self.history.topics[name].topic_id for name in TOPICS}
        states = [state for (topic_id, _, _), state in self.watch.states.items() if topic_id in ids]
        for state in states:
            assert FAR in state.replicas
            assert FAR not in {
                state.leader,
                *state.isr,
                *state.eligible_leader_replicas,
                *state.last_known_elr,
            }
        return len(states)


@pytest.mark.parametrize("seed", range(2))
def test_an_observer_never_leads_and_no_record_is_lost(seed: int) -> None:
    """The checkers compare all replicas, observers too, with what was acknowledged and what was read."""
    simulation = FarObserver(seed, FAR_S)
    simulation.run()
    assert simulation.history.counts["batches acked"] > 50
    assert simulation.history.counts["leader changes"] > 0
    assert simulation.check_roles() > len(TOPICS)


def test_a_far_observer_delays_no_acknowledgement() -> None:
    found = {}
    for far_s in (0.0, FAR_S):
        simulation = FarObserver(1, far_s)
        simulation.place_far(lambda _source, _target: NEAR_S)
        with simulation.watch.installed():
            simulation.form()
            found[far_s] = simulation.latencies()
            simulation._run_until(HEALS_WITHIN_S, simulation.is_replicated, "followers do not catch up")
    assert len(found[FAR_S]) == BATCHES
    assert max(found[FAR_S]) < 10 * NEAR_S
    assert max(found[FAR_S]) == pytest.approx(max(found[0.0]), abs=NEAR_S)
