"""The simulator with all nodes far from each other."""

from __future__ import annotations

import pytest

from compat_tests.simulation.simulation import Simulation

pytestmark = pytest.mark.barnabas_only

FAR_S = 0.1  # of one message, about


class FarApart(Simulation):
    """Messages take as long as between continents."""

    def _choose_network(self) -> None:
        super()._choose_network()
        self.network.delay_s = lambda _source, _target: FAR_S * self.world.random.uniform(0.9, 1.1)


@pytest.mark.parametrize("seed", range(3))
def test_nodes_far_apart_are_a_cluster(seed: int) -> None:
    simulation = FarApart(seed)
    simulation.run()
    assert simulation.history.counts["batches acked"] > 50
