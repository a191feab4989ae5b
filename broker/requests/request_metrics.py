"""What is measured of requests: how many of each API and version, how long they took, and the errors in their answers.

A request's time begins with the turn of its connection, when its bytes have been received, and ends when its answer is encoded;
writing follows in the same turn. Most requests are answered in that turn: `at_once` counts their times. Others wait, for replicas,
records or the disk: theirs are counted in two parts, Kafka's LocalTimeMs and RemoteTimeMs, when they are answered.

Times are counted in buckets: one for each microsecond below SHORT_US, behind that eight for each power of two, so that a quantile
is at most an eighth too large. The lists only grow; what shows a window of time subtracts an earlier copy (broker/metrics/requests.py).
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT_US: Final = 256
_SHORT_BITS: Final = 9  # of the first time that is not short
_LONGEST_BITS: Final = 48  # nine years
BUCKETS: Final = SHORT_US + 8 * (_LONGEST_BITS - _SHORT_BITS + 1)


def count_time(buckets: list[int], seconds: float) -> None:
    microseconds = int(seconds * 1e6)
    if microseconds >= SHORT_US:
        bits = microseconds.bit_length()  # the bucket tells these, and the three bits behind the leading one
        microseconds = SHORT_US + 8 * (bits - _SHORT_BITS) + (microseconds >> (bits - 4) & 7)
    buckets[microseconds] += 1


def upper_bound_s(bucket: int) -> float:
    """The end of a bucket in seconds."""
    if bucket < SHORT_US:
        return (bucket + 1) / 1e6
    octave, eighth = divmod(bucket - SHORT_US, 8)
    return (8 + eighth + 1 << octave + _SHORT_BITS - 4) / 1e6


def new_buckets() -> list[int]:
    return [0] * BUCKETS


class WaitTimes(NamedTuple):
    """The times of requests that were not answered at once, in buckets."""

    total: list[int]
    local: list[int]  # until they began to wait
    remote: list[int]  # from then on


class RequestMetrics:
    """Of one API in one version, and of followers or of others."""

    __slots__ = ("api_key", "api_version", "at_once", "errors", "of_follower", "waits")

    def __init__(self, api_key: int, api_version: int, *, of_follower: bool = False) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.of_follower = of_follower
        self.at_once = new_buckets()
        self.waits: WaitTimes | None = None  # None: none has waited
        self.errors: dict[int, int] = {}  # error code -> how often it was in an answer

    @property
    def requests(self) -> int:
        """How many have been answered."""
        return sum(self.at_once) + (0 if self.waits is None else sum(self.waits.total))

    def waited(self, total_s: float, local_s: float) -> None:
        waits = self.waits
        if waits is None:
            waits = self.waits = WaitTimes(new_buckets(), new_buckets(), new_buckets())
        count_time(waits.total, total_s)
        count_time(waits.local, local_s)
        count_time(waits.remote, total_s - local_s)

    def count_errors(self, response: msgspec.Struct) -> None:
        """Count the error codes in a response, but for NONE."""
        _count_errors(response, _plan_of(type(response)), self.errors)


class _Plan(NamedTuple):
    """Where error codes are in a struct."""

    has_code: bool
    lists: Sequence[tuple[str, type[msgspec.Struct]]]  # fields with structs that may have error codes


_NO_CODES: Final = _Plan(False, ())
_ERROR_CODE: Final = "error_code"
_LIST_OF: Final = re.compile(r"list\[(\w+)\]")
_plans: dict[type[msgspec.Struct], _Plan] = {}


def _plan_of(kind: type[msgspec.Struct]) -> _Plan:
    plan = _plans.get(kind)
    if plan is None:
        _plans[kind] = _NO_CODES  # of a kind that holds itself
        lists = []
        for field, annotation in kind.__annotations__.items():
            found = _LIST_OF.match(str(annotation))
            element = found and getattr(sys.modules[kind.__module__], found[1], None)
            if not (isinstance(element, type) and issubclass(element, msgspec.Struct)):
                continue
            if _plan_of(element) is not _NO_CODES:
                lists.append((field, element))
        has_code = _ERROR_CODE in kind.__struct_fields__
        plan = _plans[kind] = _Plan(has_code, tuple(lists)) if has_code or lists else _NO_CODES
    return plan


def _count_errors(struct: msgspec.Struct, plan: _Plan, errors: dict[int, int]) -> None:
    if plan.has_code:
        code = struct.error_code  # type: ignore[attr-defined]  # its plan says so
        if code:
            errors[code] = errors.get(code, 0) + 1
    for field, element in plan.lists:
        plan_of_element = _plans[element]
        for each in getattr(struct, field) or ():
            _count_errors(each, plan_of_element, errors)
