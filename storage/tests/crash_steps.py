"""Operations on a log and events of its disk, in a world of crash_world.py."""

from __future__ import annotations

import errno
from collections.abc import Callable

from barnabas.storage.errors import StorageError
from barnabas.storage.log.log import Log
from barnabas.storage.tests.crash_model import Batch, Model, check, check_duplicates
from barnabas.storage.tests.crash_world import PRODUCERS, TOPICS, World
from barnabas.testing.memory_disk import ProcessKilled
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.records import Record, build_batch

Steps = dict[str, tuple[int, Callable[[World, Log, Model], object]]]


def append(world: World, log: Log, model: Model) -> None:
    for _ in range(world.random.randrange(1, 6)):
        append_one(world, log, model)


def follow(world: World, log: Log, model: Model) -> None:
    """Append what another broker has, several batches at once."""
    random = world.random
    model.epoch += random.random() < 0.1
    batches: list[tuple[bytes, int]] = []
    end = model.end
    data = b""
    sequences: dict[int, int] = {}
    for _ in range(random.randrange(1, 7)):
        sent = _batch(world, model, sequences)
        gap = random.choice([0, 0, 0, 0, 3])
        batch = Batch(sent, end + gap, model.epoch)
        data += batch.stored
        end = batch.last + 1
        batches.append((sent, gap))
    cut = data + data[: random.randrange(40)]
    try:
        log.append_as_follower(memoryview(bytearray(cut)))
    except StorageError:
        while batches and model.end < log.log_end_offset:
            model.append(*batches.pop(0))
        assert model.end == log.log_end_offset
        rest, end = [], model.end
        for sent, gap in batches:
            rest.append(Batch(sent, end + gap, model.epoch))
            end = rest[-1].last + 1
        model.left_over = model.end, rest
        return
    except ProcessKilled:
        model.may_follow(batches)
        raise
    for sent, gap in batches:
        model.append(sent, gap)
    assert log.log_end_offset == model.end


def _batch(world: World, model: Model, sequences: dict[int, int]) -> bytes:
    """`sequences`: those of producers whose batches are not in the model yet."""
    random = world.random
    count = random.randrange(1, 5)
    timestamp = world.runtime.time_ms() + random.randrange(-3000, 3000)
    records = [
        Record(index, timestamp, b"k", random.randbytes(random.randrange(60))) for index in range(count)
    ]
    producer_id = random.randrange(-1, PRODUCERS)
    sequence = sequences.get(producer_id, model.next_sequence(producer_id)) if producer_id >= 0 else -1
    sequences[producer_id] = sequence + count
    return build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )


def append_one(world: World, log: Log, model: Model) -> None:
    random = world.random
    count = random.randrange(1, 5)
    timestamp = world.runtime.time_ms() + random.randrange(-3000, 3000)
    records = [
        Record(index, timestamp + index, b"k%d" % random.randrange(4), random.randbytes(random.randrange(60)))
        for index in range(count)
    ]
    producer_id = random.randrange(-2, PRODUCERS)
    sequence = model.next_sequence(producer_id)
    sent = build_batch(
        records,
        codec=random.choice([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP]),
        producer_id=max(producer_id, -1),
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
    )
    model.epoch += random.random() < 0.05
    before = log.log_end_offset
    try:
        result = log.append_as_leader(sent, model.epoch)
    except StorageError as error:
        if log.log_end_offset > before:  # it stands there, but could not be synced
            model.append(sent)
        if error.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:  # what came before has been lost
            model.history = list(model.batches)
        return
    except ProcessKilled:
        model.may_append(sent)
        raise
    assert not result.duplicate
    assert result.base_offset == model.end
    model.append(sent)


def flush(world: World, log: Log, model: Model) -> None:
    try:
        log.flush()
    except StorageError:
        return
    assert log.flusher.recovery_point == model.end
    if not model.doubtful:
        model.promised = model.end


def roll(world: World, log: Log, model: Model) -> None:
    try:
        log.roll()
    except OSError:
        pass


def truncate(world: World, log: Log, model: Model) -> None:
    offset = model.boundary(world.random.random())
    # In front of a gap: that a log ended behind one, without a batch there, no start can know, nor Kafka's.
    before_gap = max((batch.last + 1 for batch in model.batches if batch.last < offset), default=0)
    offset = max(before_gap, model.start)
    if world.disk.fault or world.disk.capacity:
        return
    model.may_truncate(offset)
    before = model.doubtful
    model.doubtful = True  # what is cut but not synced is not there, until power fails
    if world.random.random() < 0.5:
        log.truncate_to(offset)
    else:
        errors: list[BaseException | None] = []
        world.manager.when_truncatable([(log, offset)], errors.append)
        while not errors:
            world.runtime.run_until_idle()
        while log.is_sealing_from(offset):
            world.runtime.run_until_idle()
        make_last = log.cut_to(offset)
        if make_last is not None:
            make_last()
    model.doubtful = before
    model.truncate(offset)
    if (
        model.start_kept < offset
    ):  # nothing says yet that the log ends there, behind records that were removed
        model.sure = min(model.sure, before_gap)
    model.opened_at = model.end  # its producers are those of the last snapshot again


def move_start(world: World, log: Log, model: Model) -> None:
    offset = world.random.randint(model.start, model.end)
    if world.disk.fault or world.disk.capacity or log.offline:
        return
    model.start = offset
    model.start_largest = max(model.start_largest, offset)
    log.increment_log_start_offset(offset)
    world.moved.append(model)


def checkpoint(world: World, log: Log, model: Model) -> None:
    try:
        world.manager.checkpoint()
    except OSError:
        return
    if world.manager.directories.offline:
        return
    world.starts_are_kept(world.models.values())


def turn(world: World, log: Log, model: Model) -> None:
    """Threads and the loop's next turns get their time."""
    world.runtime.run_until_idle()
    world.after_time()


def wait(world: World, log: Log, model: Model) -> None:
    world.runtime.advance(world.random.choice([1.1, 61]))
    world.after_time()


def restart(world: World, log: Log, model: Model) -> None:
    if world.random.random() < 0.7:
        world.runtime.run_until_idle()
    healthy = not any(log.failure for log in world.manager.logs())
    heal(world, log, model)
    world.closed = None
    world.manager.close()
    world.closed = healthy
    if healthy:
        world.starts_are_kept(world.models.values())
        for one in world.models.values():
            if not one.doubtful:
                one.promised = one.end
    world.die(power=world.random.random() < 0.4)
    world.open()


def kill(world: World, log: Log, model: Model) -> None:
    world.die(power=False)
    world.reopen()


def power_failure(world: World, log: Log, model: Model) -> None:
    world.die(power=True)
    world.reopen()


def fill(world: World, log: Log, model: Model) -> None:
    """The disk is full, or will be after a few bytes more."""
    used = sum(len(content.data) for content in world.disk.files.values())
    world.disk.capacity = used + world.random.choice([0, 10, 300, 2000])


def fail(world: World, log: Log, model: Model) -> None:
    """Some operations fail from now on."""
    random = world.random
    broken = random.choice(["write", "sync", "open", "rename"])
    code = random.choice([errno.EIO, errno.ENOSPC])
    how_often = random.choice([0.2, 1.0])

    def fault(operation: str, _: str) -> int | None:
        if operation != broken or random.random() > how_often:
            return None
        for each in world.models.values() if operation == "sync" else ():
            each.doubtful = True  # each of them may have been synced then
        return code

    world.disk.fault = fault


def shorten(world: World, log: Log, model: Model) -> None:
    world.disk.short_write = world.random.choice([1, 40, None])


def heal(world: World, log: Log, model: Model) -> None:
    world.disk.fault = world.disk.capacity = None


def delete(world: World, log: Log, model: Model) -> None:
    key = (log.topic, log.partition)
    del world.models[key]
    world.manager.delete(*key)
    world.runtime.run_until_idle()


def look(world: World, log: Log, model: Model) -> None:
    if log.failure is not None:
        return
    fault, world.disk.fault = world.disk.fault, None
    check(log, model)
    world.disk.fault = fault
    if fault is None and world.disk.capacity is None:
        check_duplicates(log, model, PRODUCERS)


# name -> (how often, what)
STEPS: Steps = {
    "append": (30, append),
    "follow": (15, follow),
    "roll": (4, roll),
    "flush": (6, flush),
    "turn": (8, turn),
    "wait": (4, wait),
    "checkpoint": (4, checkpoint),
    "truncate": (3, truncate),
    "move_start": (3, move_start),
    "delete": (1, delete),
    "restart": (4, restart),
    "kill": (4, kill),
    "power_failure": (6, power_failure),
    "fill": (2, fill),
    "fail": (2, fail),
    "shorten": (2, shorten),
    "heal": (6, heal),
    "look": (8, look),
}


def step(world: World) -> None:
    """One random step on a random partition, which is made if there is none."""
    random = world.random
    name = random.choices(list(STEPS), [often for often, _ in STEPS.values()])[0]
    world.note(name)
    key = random.choice(TOPICS)
    model = world.models.get(key)
    if model is None:
        world.create(key)
        return
    log = world.manager.get(*key)
    assert log is not None
    STEPS[name][1](world, log, model)
    world.learn_promises()
