"""The log against a list: random appends, rolls, reads, truncations, restarts and crashes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.errors import OffsetOutOfRange
from barnabas.storage.tests.workshop import max_timestamp_offset, offset_for_timestamp
from barnabas.wire.record_batch import read_header

RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

appends = st.tuples(
    st.just("append"), st.integers(1, 5), st.integers(0, 300), st.integers(-3000, 3000), st.integers(0, 2)
)
operations = st.lists(
    st.one_of(
        appends,
        appends,
        appends,
        st.tuples(st.just("roll")),
        st.tuples(st.just("read"), st.sampled_from([1, 700])),
        st.tuples(st.just("flush")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("kill")),
        st.tuples(st.just("power"), st.integers(0, 10_000)),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("start"), st.floats(0, 1)),
    ),
    max_size=40,
)
SETTINGS: dict[str, Any] = {"segment_bytes": 1500, "index_interval_bytes": 200, "max_message_bytes": 1400}


class Model:
    """Batches as (base offset, last offset, epoch, bytes as stored); the slow and obvious log."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, bytes]] = []
        self.start = 0
        self.end = 0

    def append(self, batch: bytes, epoch: int) -> None:
        header = read_header(batch)
        stored = struct.pack(">q", self.end) + batch[8:12] + struct.pack(">i", epoch) + batch[16:]
        self.batches.append((self.end, self.end + header.last_offset_delta, epoch, stored))
        self.end += header.record_count

    def truncate(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch[1] < offset]
        self.end = min(self.end, offset)
        self.start = min(self.start, offset)

    def visible(self) -> list[bytes]:
        return [stored for _, last, _, stored in self.batches if last >= self.start]

    def first_at(self, timestamp: int) -> int | None:
        for base, _, _, stored in self.batches:
            header = read_header(stored)
            for index in range(header.record_count):
                if header.base_timestamp + index >= timestamp and base + index >= self.start:
                    return base + index
        return None


def check(workshop: Any, log: Any, model: Model) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
    for base, last, _, stored in reversed(model.batches):  # backwards, so that no read helps the next one
        for offset in (base, last):
            if offset >= model.start:
                assert log.read(offset, len(stored)).regions[0].read() == stored
    for max_bytes in (1, 700, 1 << 20):
        assert workshop.content(log, max_bytes) == model.visible()
    for outside in (model.start - 1, model.end + 1):
        with pytest.raises(OffsetOutOfRange):
            log.read(outside, 100)
    for segment in log.segments:
        assert segment.size == workshop.disk.size(segment.path)


def check_times(workshop: Any, log: Any, model: Model) -> None:
    times = {read_header(stored).base_timestamp for *_, stored in model.batches}
    for timestamp in sorted(times)[:6]:
        for near in (timestamp - 1, timestamp, timestamp + 2):
            found = offset_for_timestamp(log, near)
            assert (found.offset if found is not None else None) == model.first_at(near)
    largest = max_timestamp_offset(log)
    in_sight = [read_header(batch).max_timestamp for batch in model.visible()]
    if in_sight and model.start == model.batches[0][0]:
        assert largest.timestamp == max(in_sight)
        assert largest.offset == model.first_at(max(in_sight))


@RELAXED
@given(steps=operations)
def test_the_log_is_a_list(make_workshop: Callable[[], Any], steps: list[tuple[Any, ...]]) -> None:
    workshop = make_workshop()
    log = workshop.log(**SETTINGS)
    model = Model()
    epoch = 0
    for step in steps:
        match step:
            case ("append", count, size, ahead, epochs):
                epoch += epochs
                batch = workshop.batch(count, size=size, timestamp=workshop.now + ahead)
                if len(batch) <= 1400:
                    log.append_as_leader(batch, epoch)
                    model.append(batch, epoch)
            case ("roll",):
                log.roll()
            case ("read", max_bytes):  # which leaves behind where its reader would go on
                assert workshop.content(log, max_bytes) == model.visible()
            case ("flush",):
                log.flush()
                assert log.flusher.recovery_point == model.end
            case ("restart",):
                log.close()
                log = workshop.log(start=model.start, **SETTINGS)
            case ("kill",):
                point = log.flusher.recovery_point
                log = workshop.log(clean=False, recovery_point=point, start=model.start, **SETTINGS)
            case ("power", random_bytes):
                point = log.flusher.recovery_point
                workshop.disk = workshop.disk.crash(lambda count, limit=random_bytes: min(count, limit))
                log = workshop.log(
                    clean=False, recovery_point=point, start=min(model.start, point), **SETTINGS
                )
                assert log.log_end_offset >= point
                if model.start <= log.log_end_offset:
                    log.increment_log_start_offset(model.start)
                model.truncate(log.log_end_offset)
            case ("truncate", part):
                offset = model.start + round((model.end - model.start) * part)
                whole = [base for base, *_ in model.batches if base <= offset and base >= model.start]
                offset = max(whole, default=model.end)
                log.truncate_to(offset)
                model.truncate(offset)
            case ("start", part):
                offset = model.start + round((model.end - model.start) * part)
                log.increment_log_start_offset(offset)
                model.start = offset
    check(workshop, log, model)
    check_times(workshop, log, model)
    recovered = workshop.log(clean=False, start=model.start, **SETTINGS)
    check(workshop, recovered, model)
    check_times(workshop, recovered, model)


@RELAXED
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    cut=st.integers(0, 5000),
    garbage=st.binary(max_size=80),
    data=st.data(),
)
def test_a_torn_tail_is_cut_behind_the_last_whole_batch(
    make_workshop: Callable[[], Any], counts: list[int], cut: int, garbage: bytes, data: st.DataObject
) -> None:
    workshop = make_workshop()
    log = workshop.log(**SETTINGS)
    for count in counts:
        log.append_as_leader(workshop.batch(count, size=60), 0)
    batches = workshop.content(log)
    damaged = data.draw(st.sampled_from(log.segments))
    content = workshop.disk.files[damaged.path].data
    cut %= len(content) + 1
    content[cut:] = garbage
    whole = [batch for batch in batches if read_header(batch).last_offset < damaged.base_offset]
    position = 0
    for batch in batches[len(whole) :]:
        if content[position : position + len(batch)] != batch:
            break
        position += len(batch)
        whole.append(batch)
    if position == len(content):  # cut between two batches, which can't be told from what compaction leaves
        later = [segment.base_offset for segment in log.segments if segment.base_offset > damaged.base_offset]
        if later:
            whole += [batch for batch in batches if read_header(batch).base_offset >= later[0]]
    for _ in range(2):  # a second recovery changes nothing
        log = workshop.log(clean=False, **SETTINGS)
        assert workshop.content(log) == whole
        assert log.log_end_offset == (read_header(whole[-1]).next_offset if whole else 0)
    log.append_as_leader(workshop.batch(), 0)
    assert len(workshop.content(log)) == len(whole) + 1


@RELAXED
@given(flip=st.integers(0, 10**6))
def test_a_flipped_bit_ends_the_log_in_front_of_it(make_workshop: Callable[[], Any], flip: int) -> None:
    workshop = make_workshop()
    log = workshop.log()
    for _ in range(4):
        log.append_as_leader(workshop.batch(2), 0)
    batches = workshop.content(log)
    content = workshop.disk.files[log.segments[0].path].data
    byte = flip // 8 % len(content)
    content[byte] ^= 1 << flip % 8
    batch, within = divmod(byte, len(batches[0]))
    recovered = workshop.log(clean=False)
    # Base offset and leader epoch lie outside the CRC: only an offset that goes back is seen.
    if not (within < 8 or 12 <= within < 16):
        assert workshop.content(recovered) == batches[:batch]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "odd", "wild", "old"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_wrong_indexes_are_rebuilt(workshop: Any, clean: bool, damage: str, suffix: str) -> None:
    log = workshop.log(**SETTINGS)
    for count in range(60):
        log.append_as_leader(workshop.batch(1, size=60, timestamp=workshop.now + count), 0)
    log.close()
    batches = workshop.content(log)
    names = [name for name in workshop.disk.files if name.endswith(suffix)]
    right = {name: bytes(workshop.disk.files[name].data) for name in names}
    for name in names:
        if damage == "missing":
            workshop.disk.remove(name)
        else:
            data = workshop.disk.files[name].data
            data[:] = {"empty": b"", "odd": data + b"abc", "wild": b"\x7f" * len(data), "old": data[:12]}[
                damage
            ]
    reopened = workshop.log(clean=clean, recovery_point=log.log_end_offset, **SETTINGS)
    assert workshop.content(reopened) == batches
    for offset in range(60):
        assert offset_for_timestamp(reopened, workshop.now + offset).offset == offset
    reopened.close()
    if damage in ("missing", "odd"):
        assert {name: bytes(workshop.disk.files[name].data) for name in names} == right


@pytest.mark.parametrize("change", ["truncate", "start over", "roll"])
def test_readers_go_on_where_the_batches_are_now(workshop: Any, change: str) -> None:
    """A reader is expected at the batch behind the one it got; what changes the log takes that back."""
    log = workshop.log()
    for _ in range(5):
        log.append_as_leader(workshop.batch(size=10), 0)
    assert len(workshop.content(log, max_bytes=1)) == 5
    if change == "roll":
        log.roll()
    else:
        log.truncate_to(1 if change == "truncate" else 0)
    while log.log_end_offset < 8:
        log.append_as_leader(workshop.batch(size=300), 0)
    for offset in reversed(range(8)):
        assert read_header(log.read(offset, 1).regions[0].read()).base_offset == offset
