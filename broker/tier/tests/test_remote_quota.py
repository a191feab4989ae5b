"""The quotas of remote storage."""

from __future__ import annotations

import pytest

from barnabas.broker.tier import remote_quota
from barnabas.broker.tier.remote_quota import NO_LIMIT, QuotaStopped, RemoteQuota
from barnabas.storage.tests.workshop import InlineRuntime
from barnabas.storage.tier import upload
from barnabas.storage.tier.tests.test_tiered_log import TieredWorkshop, check

MEBIBYTE = 1 << 20


class Throttled:
    """A quota whose waits are those of a virtual clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        self.runtime = InlineRuntime()
        self.limit = limit
        self.quota = RemoteQuota(self.runtime, lambda: self.limit, 11, 1.0)
        monkeypatch.setattr(remote_quota, "pause", self.runtime.advance)

    def transfer(self, size: int, count: int) -> float:
        """The seconds that it takes."""
        began = self.runtime.monotonic()
        for _ in range(count):
            self.quota.wait(size)
        return self.runtime.monotonic() - began


def test_uploads_keep_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = Throttled(monkeypatch, MEBIBYTE)
    assert throttled.transfer(MEBIBYTE, 8) == 0, "a burst of the windows is free"
    throttled.transfer(MEBIBYTE, 20)
    took_s = throttled.transfer(MEBIBYTE, 100)
    assert 85 <= took_s <= 115
    average_ms, max_ms = throttled.quota.throttle_times_ms()
    assert 0 < average_ms <= max_ms
    throttled.runtime.advance(61)
    assert throttled.quota.throttle_times_ms() == (0, 0)


def test_a_part_that_is_larger_than_all_windows_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = Throttled(monkeypatch, 1000)
    throttled.transfer(MEBIBYTE, 1)
    assert throttled.quota.is_exceeded()
    assert throttled.transfer(MEBIBYTE, 2) > 10


def test_a_limit_that_is_raised_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = Throttled(monkeypatch, 1)
    throttled.quota.record(MEBIBYTE)
    assert throttled.quota.is_exceeded()
    throttled.limit = NO_LIMIT
    assert not throttled.quota.is_exceeded()
    assert throttled.transfer(MEBIBYTE, 1000) == 0


def test_an_upload_that_waits_ends_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = Throttled(monkeypatch, 1)
    throttled.quota.record(MEBIBYTE)
    throttled.runtime.call_later(5, throttled.quota.stop)
    with pytest.raises(QuotaStopped):
        throttled.quota.wait(1)
    assert throttled.runtime.monotonic() < 10


def test_an_upload_waits_between_its_parts() -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.manager.stop()
    waits: list[int] = []

    class Counted(RemoteQuota):
        """What is asked of it."""

        def wait(self, size: int) -> None:
            waits.append(size)

    part = upload.CHUNKS_PER_PART * 4 * MEBIBYTE
    segment = workshop.tiered.segments[0]
    quota = Counted(workshop.runtime, lambda: 1, 11, 1.0)
    parts = list(upload._parts(segment.open_for_read(), segment.size, [], quota.wait))
    assert waits == [len(each) for each in parts] == [segment.size]
    assert segment.size < part
    check(workshop)
