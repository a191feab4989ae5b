"""Controllers whose steps take half a second now and then while they start, as on a machine that is very busy."""

from __future__ import annotations

import random

import pytest

from barnabas.broker.cluster.tests.test_dynamic_voters import DYNAMIC, STATIC, Controllers, level
from barnabas.controller.operations.features import METADATA_VERSION
from compat_tests.virtual.runtime import VirtualRuntime

STALLS_S = 3.0  # from the start
STALL_S = 0.5
CHANCE = 0.01  # of a stall, each time that a node reads its clock


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [DYNAMIC, STATIC])
def test_a_cluster_begins_after_stalls(quorum: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        chance = random.Random(seed)

        def stalling(runtime: VirtualRuntime, chance: random.Random = chance) -> float:
            if runtime.world.now < STALLS_S and chance.random() < CHANCE:
                runtime.world.now += STALL_S
            return runtime.world.now

        monkeypatch.setattr(VirtualRuntime, "monotonic", stalling)
        world = Controllers(quorum)
        world.advance(5)
        active = world.active()
        for node_id, node in world.nodes.items():
            member, image = node._member, node.services.controller.image
            assert member is not None
            assert member.links.active_controller() == active, (seed, node_id)
            assert METADATA_VERSION in image.features, (seed, node_id)
            assert level(world, node_id) == (1 if quorum == DYNAMIC else 0), (seed, node_id)
