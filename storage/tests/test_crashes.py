"""Random work on a disk that fails, a broker that is killed and a machine that loses power, against a model.

What was promised is there, what was not is whole or absent, no start is refused, and a second recovery
changes nothing. Every world follows from its seed; BARNABAS_CRASH_SEEDS (how many, or first:last) asks for
other than the usual ones, and `make test-durability` for many.
"""

from __future__ import annotations

import os

import pytest
from barnabas.storage.memory_file import ProcessKilled
from barnabas.storage.tests.crash_model import check_duplicates
from barnabas.storage.tests.crash_steps import step
from barnabas.storage.tests.crash_world import PRODUCERS, Deceived, World

STEPS_MAX = 45


def seeds() -> range:
    first, colon, last = os.environ.get("BARNABAS_CRASH_SEEDS", "200").rpartition(":")
    return range(int(first), int(last)) if colon else range(int(last))


def live(seed: int) -> None:
    """One world from its beginning to its end."""
    world = World(seed)
    try:
        for _ in range(STEPS_MAX):
            if world.random.random() < 0.15:
                world.disk.kill_after = world.random.randrange(40)
                world.disk.torn_bytes = world.random.randrange(300)
            try:
                step(world)
            except ProcessKilled:
                world.note("killed in it")
                world.die(power=world.random.random() < 0.5)
                world.reopen()
        world.die(power=False)
        world.open()
        for key, model in world.models.items():
            log = world.manager.get(*key)
            assert log is not None
            check_duplicates(log, model, PRODUCERS)
    except Deceived:
        return
    except BaseException as error:
        error.add_note(f"seed {seed}: {', '.join(world.history)}")
        raise


@pytest.mark.parametrize("seed", seeds())
def test_nothing_promised_is_lost(seed: int) -> None:
    live(seed)
