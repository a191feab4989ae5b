"""Client quotas (KIP-13, KIP-124): what each user and client id may produce, fetch and have done by this broker.

A quota counts for itself on each broker. Of the entities that fit a user and client id the first with a quota of the kind
decides, in Kafka's order, and so it decides who shares it: all clients of a user, or each client id for itself. Who exceeds
a quota is answered at once, with the time for which it is throttled, and is not read from until that has passed.

Client ids are what clients say: at most CLIENTS_MAX are remembered, by their first characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from barnabas.broker.quotas.rate import Rate, TokenBucket
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.quota_names import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.security.caller import Caller
    from barnabas.controller.metadata.image import MetadataImage, QuotaEntity
    from barnabas.runtime.interface import Runtime

CLIENTS_MAX: Final = 10_000  # of each kind; more than these at once share none of their past
CLIENT_ID_MAX: Final = 256  # characters by which client ids are distinguished
_THROTTLE_MS_MAX: Final = 2**31 - 1
_FETCH_BYTES_MAX: Final = 2**31 - 1


class _Shared(Protocol):
    def is_idle(self, now: float) -> bool:
        """Whether it is as if it had never been used."""
        ...


K = TypeVar("K")
S = TypeVar("S", bound=_Shared)


def _in_ms(seconds: float) -> int:
    return round(min(seconds * 1000, _THROTTLE_MS_MAX))


class Quota:
    """The quota of one kind of those that share it."""

    __slots__ = ("_full_windows_s", "_limit", "_rate", "_throttle_s_max", "burst")

    def __init__(self, window_count: int, window_s: float, throttle_s_max: float) -> None:
        self._full_windows_s = (window_count - 1) * window_s
        self._limit = self.burst = 0.0
        self._rate = Rate(window_count, window_s)
        self._throttle_s_max = throttle_s_max

    @property
    def limit(self) -> float:
        """How much is allowed in a second."""
        return self._limit

    @limit.setter
    def limit(self, limit: float) -> None:
        self._limit = limit
        # So much is allowed in the windows at any time, so that the rate need not be computed below it.
        self.burst = limit * self._full_windows_s

    def record(self, amount: float, now: float) -> int:
        """Count an amount. Returns for how many ms to throttle, 0 for none."""
        rate = self._rate
        rate.record(amount, now)
        return 0 if rate.recorded <= self.burst else self._throttle_ms(0.0, now)

    def record_time(self, began: float, now: float) -> int:
        """As `record`, for a quota in percents of the time."""
        return self.record((now - began) * 100, now)

    def throttle_ms(self, now: float) -> int:
        """For how many ms to throttle now, 0 for none."""
        return 0 if self._rate.recorded <= self.burst else self._throttle_ms(0.0, now)

    def has_room_for(self, amount: float) -> bool:
        """Whether the amount can be recorded without throttling, as far as is known without the time."""
        return self._rate.recorded + amount <= self.burst

    def throttle_ms_with(self, amount: float, now: float) -> int:
        """As `record`, without counting the amount. An amount that is alone in its windows is never too large: it could
        not be had at any time."""
        if self.has_room_for(amount) or self._rate.total(now) <= 0:
            return 0
        return self._throttle_ms(amount, now)

    def _throttle_ms(self, more: float, now: float) -> int:
        excess_s = self._rate.excess_s(self._limit, now, more)
        return _in_ms(min(excess_s, self._throttle_s_max)) if excess_s > 0 else 0

    def is_idle(self, now: float) -> bool:
        return self._rate.is_idle(now)


class MutationQuota(TokenBucket):
    """The partitions that those who share it may create and delete."""

    def is_idle(self, now: float) -> bool:
        return self.tokens(now) >= self._windows_s * self.rate


class PartitionPermits:
    """The charge of one request that creates or deletes partitions. Strict: with ApiError while the quota is overdrawn."""

    __slots__ = ("_is_strict", "_now", "_quota", "throttle_ms")

    def __init__(self, quota: MutationQuota | None, now: float, *, is_strict: bool) -> None:
        self._quota = quota
        self._now = now
        self._is_strict = is_strict
        self.throttle_ms = 0  # for the response

    def charge(self, partitions: int) -> None:
        quota = self._quota
        if quota is None:
            return
        if self._is_strict and quota.tokens(self._now) < 0:
            self.throttle_ms = _in_ms(quota.missing_s(self._now))
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, None)  # Kafka says no more either
        quota.take(partitions, self._now)
        if not self._is_strict:
            self.throttle_ms = _in_ms(quota.missing_s(self._now))


class ClientLimits(msgspec.Struct, frozen=True):
    """The quotas of one user and client id; None where there is none. NO_LIMITS, where there is none of any kind."""

    produce: Quota | None
    fetch: Quota | None
    request: Quota | None
    mutation: MutationQuota | None


class ClientQuotas:
    """See the module. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, config: BrokerConfig) -> None:
        self.monotonic = runtime.monotonic
        self._window = config.quota_window_num, float(config.quota_window_size_seconds)
        self._mutation_window = (
            config.controller_quota_window_num,
            float(config.controller_quota_window_size_seconds),
        )
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self.throttled_requests = 0
        self.throttled_s = 0.0
        self._found: dict[tuple[str, str | None], ClientLimits] = {}
        self._shared: dict[tuple[str, QuotaEntity], Quota] = {}  # by kind and those who share it
        self._shared_mutations: dict[QuotaEntity, MutationQuota] = {}
        self._latest: tuple[Caller | None, str | None] = (None, None)
        self._latest_limits = NO_LIMITS

    def load(self, image: MetadataImage) -> bool:
        """Follow the metadata. Returns whether any client has a quota. What was recorded still counts."""
        self._quotas = image.client_quotas
        self._found.clear()
        self._latest = (None, None)
        is_set = any(kind != "ip" for entity in self._quotas for kind, _ in entity)
        if not is_set:
            self._shared.clear()
            self._shared_mutations.clear()
        return is_set

    def count(self, throttle_ms: int) -> None:
        """Count a request that is throttled, for the metrics."""
        self.throttled_requests += 1
        self.throttled_s += throttle_ms / 1000

    def of(self, caller: Caller, client_id: str | None) -> ClientLimits:
        """The quotas of those who send requests so."""
        latest, latest_id = self._latest
        if caller is latest and client_id == latest_id:
            return self._latest_limits
        key = caller.principal.name, client_id
        limits = self._found.get(key)
        if limits is None:
            limits = self._limits(*key)
            if client_id is None or len(client_id) <= CLIENT_ID_MAX:
                if len(self._found) >= CLIENTS_MAX:
                    self._found.clear()
                self._found[key] = limits
        self._latest, self._latest_limits = (caller, client_id), limits
        return limits

    def fetch_max_bytes(self, caller: Caller, client_id: str | None) -> int:
        """How much a client may fetch at once: no more than fits its windows."""
        fetch = self.of(caller, client_id).fetch
        return _FETCH_BYTES_MAX if fetch is None else int(min(fetch.burst, _FETCH_BYTES_MAX))

    def fetch_throttle_ms(self, caller: Caller, client_id: str | None, size: int) -> int:
        """For how many ms to throttle a client in place of sending it `size` bytes of records; 0: send them."""
        limits = self.of(caller, client_id)
        throttle_ms = 0
        if limits.fetch is not None and not limits.fetch.has_room_for(size):
            throttle_ms = limits.fetch.throttle_ms_with(size, self.monotonic())
        if limits.request is not None and not limits.request.has_room_for(0):
            throttle_ms = max(throttle_ms, limits.request.throttle_ms(self.monotonic()))
        return throttle_ms

    def _limits(self, user: str, client_id: str | None) -> ClientLimits:
        window, now = self._window, self.monotonic()

        def quota(kind: str, throttle_s_max: float) -> Quota | None:
            found = self._find(kind, user, client_id or "")
            if found is None:
                return None
            limit, sharing = found
            shared = self._shared.get((kind, sharing))
            if shared is None:
                make_room(self._shared, now)
                shared = self._shared[kind, sharing] = Quota(*window, throttle_s_max)
            shared.limit = limit
            return shared

        limits = ClientLimits(
            produce=quota(PRODUCER_BYTE_RATE, float("inf")),
            fetch=quota(CONSUMER_BYTE_RATE, float("inf")),
            request=quota(REQUEST_PERCENTAGE, window[1]),
            mutation=self._mutation_quota(user, client_id or "", now),
        )
        return NO_LIMITS if limits == NO_LIMITS else limits

    def _mutation_quota(self, user: str, client_id: str, now: float) -> MutationQuota | None:
        found = self._find(CONTROLLER_MUTATION_RATE, user, client_id)
        if found is None:
            return None
        limit, sharing = found
        shared = self._shared_mutations.get(sharing)
        if shared is None:
            make_room(self._shared_mutations, now)
            shared = self._shared_mutations[sharing] = MutationQuota(limit, now, *self._mutation_window)
        shared.rate = limit
        return shared

    def _find(self, kind: str, user: str, client_id: str) -> tuple[float, QuotaEntity] | None:
        """The quota that counts, and who shares it."""
        for entity in _entities(user, client_id):
            limit = self._quotas.get(entity, _NOTHING).get(kind)
            if limit is not None:
                if not math.isfinite(limit):  # Kafka takes them
                    return None
                names = {USER: user, CLIENT_ID: client_id[:CLIENT_ID_MAX]}
                return limit, tuple((part, names[part]) for part, _ in entity)
        return None


def _entities(user: str, client_id: str) -> Iterator[QuotaEntity]:
    """Those that a user and client id fit, in the order in which they count (parts as in QuotaEntity)."""
    for of_user in (user, None):
        yield (CLIENT_ID, client_id), (USER, of_user)
        yield (CLIENT_ID, None), (USER, of_user)
        yield ((USER, of_user),)
    yield ((CLIENT_ID, client_id),)
    yield ((CLIENT_ID, None),)


def make_room(shared: dict[K, S], now: float) -> None:
    """Forget those who have done nothing lately; where all have, those who came first."""
    if len(shared) < CLIENTS_MAX:
        return
    for key in [key for key, quota in shared.items() if quota.is_idle(now)]:
        del shared[key]
    for key in list(shared)[: len(shared) - CLIENTS_MAX // 2]:
        del shared[key]


_NOTHING: Final[Mapping[str, float]] = {}
NO_LIMITS: Final = ClientLimits(None, None, None, None)
