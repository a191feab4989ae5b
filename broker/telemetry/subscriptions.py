"""Subscriptions of client metrics: resources of type CLIENT_METRICS, which say which clients shall push what, and how often.

A subscription applies to a client when each of its patterns matches the whole of that attribute; one without patterns applies
to all. Patterns are RE2's, which match in linear time, as clients choose the texts; Kafka's are Java's. A subscription with a
pattern that is none of RE2's applies to no client.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.controller.config.group_configs import CLIENT_METRICS_CONFIGS
from barnabas.wire.checksum import crc32c

if TYPE_CHECKING:
    from barnabas.broker.coordinator.re2_pattern import Pattern

log = logging.getLogger("barnabas.telemetry")

ALL_METRICS: Final = "*"
INTERVAL_MS: Final = 300_000  # of a client without subscriptions


class Subscription:
    """One resource. `match`: attribute -> pattern."""

    def __init__(self, name: str, metrics: Iterable[str], interval_ms: int, match: Mapping[str, str]) -> None:
        self.name = name
        self.metrics = frozenset(metrics)  # prefixes of names
        self.interval_ms = interval_ms
        self._match = match
        self._patterns: dict[str, Pattern] = {}  # compiled, by attribute
        self._is_valid = True

    def applies(self, attributes: Mapping[str, str | None]) -> Generator[None, None, bool]:
        """Whether it applies to the client with these attributes. Yields after each bounded part of the work."""
        for attribute, text in self._match.items():
            value = attributes.get(attribute)
            if value is None or not self._is_valid:
                return False
            pattern = self._patterns.get(attribute)
            if pattern is None:
                pattern = yield from self._compile(text)
                if pattern is None:
                    return False
                self._patterns[attribute] = pattern
            if not (yield from pattern.matches(value)):
                return False
        return True

    def _compile(self, text: str) -> Generator[None, None, Pattern | None]:
        from barnabas.broker.coordinator.re2_parser import PatternError
        from barnabas.broker.coordinator.re2_pattern import Pattern

        try:
            return (yield from Pattern.compile(text))
        except PatternError as error:
            self._is_valid = False
            log.warning(
                "the client metrics subscription %s applies to no client, as RE2 has no pattern %s: %s",
                self.name,
                text,
                error,
            )
            return None


class Wanted(msgspec.Struct, frozen=True):
    """What one client is asked for."""

    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


def parse_subscription(name: str, configs: Mapping[str, str]) -> Subscription:
    """From the stored properties, which the controller has validated."""
    found = {each: CLIENT_METRICS_CONFIGS[each].parse(text) for each, text in configs.items()}
    metrics, match = found.get("metrics", []), found.get("match", [])
    interval_ms = found.get("interval.ms", INTERVAL_MS)
    assert isinstance(metrics, list)
    assert isinstance(match, list)
    assert isinstance(interval_ms, int)
    patterns = (each.partition("=") for each in match)
    return Subscription(
        name,
        metrics,
        interval_ms,
        {attribute.strip(): pattern.strip() for attribute, _, pattern in patterns},
    )


def choose(
    subscriptions: Iterable[Subscription], instance_id: bytes, attributes: Mapping[str, str | None]
) -> Generator[None, None, Wanted]:
    """What the subscriptions ask of the client with these attributes. Yields after each bounded part of the work."""
    metrics: set[str] = set()
    interval_ms = INTERVAL_MS
    for subscription in subscriptions:
        yield
        if (yield from subscription.applies(attributes)):
            metrics |= subscription.metrics
            interval_ms = min(interval_ms, subscription.interval_ms)
    if ALL_METRICS in metrics:
        metrics = {ALL_METRICS}
    names = tuple(sorted(metrics))
    return Wanted(subscription_id(names, interval_ms, instance_id), names, interval_ms)


def subscription_id(metrics: Iterable[str], interval_ms: int, instance_id: bytes) -> int:
    """As Kafka computes it: a CRC-32C of metrics and interval, xor the hash of the client instance id; a signed 32-bit integer."""
    text = f"[{', '.join(metrics)}]{interval_ms}"
    halves = int.from_bytes(instance_id[:8], "big") ^ int.from_bytes(instance_id[8:], "big")
    found = crc32c(text.encode()) ^ (halves >> 32) ^ (halves & 0xFFFFFFFF)
    return found - (1 << 32) if found >> 31 else found
