"""Rates as Kafka measures them, and token buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.quotas.rate import Rate, TokenBucket

WINDOWS = 11
# Quarters of a second: exact in floating point, so that the model's sums are equal.
steps = st.lists(st.tuples(st.integers(0, 60).map(lambda n: n / 4), st.integers(0, 5000)), min_size=1)


def model_rate(events: Sequence[tuple[float, int]], now: float) -> float:
    """What was recorded in samples of a second, of which those that ended less than 11 s ago count, over the time since the
    first of them, as if at least 10 windows were over."""
    samples: list[list[tuple[float, int]]] = []
    for at, amount in events:
        if samples and at - samples[-1][0][0] < 1:
            samples[-1].append((at, amount))
        else:
            samples.append([(at, amount)])
    living = [sample for sample in samples if now - sample[-1][0] < WINDOWS]
    if not living:
        return 0.0
    elapsed = now - living[0][0][0]
    elapsed += max(WINDOWS - 1 - math.floor(elapsed), 0)
    return sum(amount for sample in living for _, amount in sample) / max(elapsed, 0.001)


@given(steps)
def test_the_excess_follows_from_the_rate(given_steps: list[tuple[float, int]]) -> None:
    rate = Rate(WINDOWS)
    now, limit = 100.0, 250.0
    events: list[tuple[float, int]] = []
    for pause, amount in given_steps:
        now += pause
        rate.record(amount, now)
        events.append((now, amount))
        expected = model_rate(events, now)
        excess_s = rate.excess_s(limit, now)
        assert (excess_s > 1e-9) == (expected > limit * (1 + 1e-12))
        if expected > limit:
            window_s = rate.total(now) / expected
            assert math.isclose(excess_s, (expected - limit) / limit * window_s, abs_tol=1e-9)


@given(
    steps, st.integers(5_000, 20_000)
)  # an amount that alone takes longer than the windows is forgotten, as in Kafka
def test_one_who_waits_as_told_keeps_the_rate(given_steps: list[tuple[float, int]], limit: int) -> None:
    rate = Rate(WINDOWS)
    now = begin = 5.0
    recorded = 0
    for pause, amount in given_steps:
        now += pause
        rate.record(amount, now)
        recorded += amount
        now += max(rate.excess_s(limit, now), 0.0)
    # The windows may be filled at once at the beginning.
    assert recorded <= limit * (now - begin + WINDOWS + 1)


def test_an_amount_that_is_taken_back_does_not_count() -> None:
    rate = Rate(WINDOWS)
    rate.record(1000, 1.0)
    rate.record(-1000, 1.5)
    assert rate.total(1.5) == 0


def test_what_is_recorded_is_forgotten_after_the_windows() -> None:
    rate = Rate(WINDOWS)
    rate.record(1000, 1.0)
    assert not rate.is_idle(1.0 + WINDOWS - 0.01)
    assert rate.is_idle(1.0 + WINDOWS)
    assert rate.total(1.0 + WINDOWS) == 0


@given(st.lists(st.tuples(st.integers(0, 40).map(float), st.integers(1, 300)), min_size=1))
def test_a_token_bucket_has_what_has_come_and_was_not_taken(takes: list[tuple[float, int]]) -> None:
    now, rate = 7.0, 10.0
    bucket = TokenBucket(rate, now)
    expected = rate * WINDOWS
    for pause, count in takes:
        now += pause
        expected = min(expected + pause * rate, rate * WINDOWS)
        assert math.isclose(bucket.tokens(now), expected)
        bucket.take(count, now)
        expected -= count
        assert math.isclose(bucket.missing_s(now), max(-expected / rate, 0.0), abs_tol=1e-9)
