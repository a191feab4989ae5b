"""Random work on a disk that fails, a broker that is killed and a machine that loses power, against a model.

What was promised is there, what was not is whole or absent, no start is refused, and a second recovery
changes nothing. Every world follows from its seed; BARNABAS_CRASH_SEEDS (how many, or first:last) asks for
other than the usual ones, and `make test-durability` for many.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from barnabas.storage.tests.crash_model import check_duplicates
from barnabas.storage.tests.crash_steps import step
from barnabas.storage.tests.crash_world import DATA, PRODUCERS, Deceived, World
from barnabas.storage.tests.test_dump_log import dump
from barnabas.testing.memory_disk import ProcessKilled

STEPS_MAX = 45


def seeds() -> range:
    first, colon, last = os.environ.get("BARNABAS_CRASH_SEEDS", "100").rpartition(":")
    return range(int(first), int(last)) if colon else range(int(last))


def live(seed: int) -> World | None:
    """One world from its beginning to its end; None when it has come to a bad one."""
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
        return world
    except Deceived:
        return None
    except BaseException as error:
        error.add_note(f"seed {seed}: {', '.join(world.history)}")
        raise


@pytest.mark.parametrize("seed", seeds())
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    live(seed)


@pytest.mark.sockets
@pytest.mark.jvm
def test_kafka_accepts_what_is_left(tmp_path: Path) -> None:
    """DumpLogSegments reads every file of forty worlds, each stopped cleanly at its end."""
    files: list[str] = []
    for seed in range(40):
        world = live(seed)
        if world is None:
            continue
        world.manager.close()
        for path, content in world.disk.files.items():
            if path.endswith((".log", ".index", ".timeindex", ".snapshot")) and "-delete/" not in path:
                target = tmp_path / str(seed) / path.removeprefix(DATA + "/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.data)
                files.append(str(target))
    assert len(files) > 300
    output = dump(files, "--deep-iteration")
    for complaint in ("ismatch", "ut of order", "orrupt", "isvalid: false", "not valid", "Exception"):
        position = output.find(complaint)
        assert position < 0, output[max(0, position - 800) : position + 400]
    assert len(re.findall(r"^baseOffset: .* isvalid: true", output, re.MULTILINE)) > 300
