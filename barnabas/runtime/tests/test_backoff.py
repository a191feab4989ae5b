"""The pauses after failures in a row."""

from __future__ import annotations

from barnabas.runtime.backoff import Backoff
from compat_tests.virtual.runtime import VirtualRuntime


def test_pauses_double_up_to_the_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(VirtualRuntime(), first_s=1, longest_s=10)
    for _ in range(2):
        for longest_s in (1, 2, 4, 8, 10, 10):
            assert backoff.is_longest == (longest_s == 10)
            assert longest_s / 2 <= backoff.next_s() <= longest_s
        assert backoff.failures == 6
        backoff.reset()
        assert backoff.failures == 0


def test_no_count_of_failures_overflows() -> None:
    backoff = Backoff(VirtualRuntime())
    assert max(backoff.next_s() for _ in range(5000)) <= 5
