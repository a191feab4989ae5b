"""Finds or creates the durable consumer of a binding with nats.delivery=at-least-once.

An existing consumer is used as it is, so an administrator may create it where brokers may not. Only its subjects are changed
to the binding's, and only if nats.durable does not name it. A consumer that does not fit is left alone, and is an error.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.jetstream.api import (
    CONSUMER_NOT_FOUND,
    FILTER_NOT_UNIQUE,
    NANOSECONDS,
    ONE_CONSUMER_ALLOWED,
    ConsumerConfig,
    ConsumerInfo,
    JetStreamApi,
    JetStreamError,
    StreamInfo,
)
from barnabas.nats.jetstream.setup import (
    Blocked,
    Consumer,
    consumer_name,
    create,
    make_consumer,
    needs_filter,
    with_filters,
)
from barnabas.runtime.procedures import Call, pause

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.jetstream.deliveries import Deliveries
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.nats")

SETTLE_S: Final = 0.05  # the server processes acknowledgements and pulls independently
ACK_WAIT_S: Final = 10.0  # after which the messages of a killed broker are redelivered
ACK_PENDING_MAX: Final = 20_000


def durable_name(binding: Binding, cluster_id: str) -> str:
    return binding.durable or consumer_name("barnabas", cluster_id, binding.topic)


async def open_durable(
    api: JetStreamApi, stream: StreamInfo, binding: Binding, name: str, ack_wait_s: float = ACK_WAIT_S
) -> Consumer:
    """The consumer of this name; creates it if there is none. Blocked when it can't be used."""
    try:
        known = await Call[ConsumerInfo](lambda done: api.consumer_info(stream.config.name, name, done))
    except JetStreamError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise
    else:
        return await _fit(api, stream, binding, known)
    try:
        return await make_consumer(api, stream, _config(binding, name, ack_wait_s), binding.patterns)
    except JetStreamError as error:
        if error.err_code not in (FILTER_NOT_UNIQUE, ONE_CONSUMER_ALLOWED):
            raise
        raise Blocked(
            f"another consumer of the work queue {stream.config.name} takes these subjects, and each message has one taker"
            " there: remove it, or bind other subjects"
        ) from error


class OpenDeliveries(msgspec.Struct, frozen=True):
    """The deliveries of a durable consumer that are not acknowledged. `held_by_others`: so many did not arrive here; `is_shared`:
    another client pulls; `next_delivery`: the consumer sequence of the next delivery."""

    held_by_others: int
    is_shared: bool
    next_delivery: int


async def wait_for_others(
    runtime: Runtime,
    client: NatsClient,
    api: JetStreamApi,
    stream: str,
    name: str,
    deliveries: Deliveries,
    shared_s: float,
    open_s: float,
) -> OpenDeliveries:
    """Waits until no other client pulls, for `shared_s` at most, and then until no delivery is open that did not arrive here,
    for `open_s` at most. The previous owner may still be finishing."""
    shared_until = runtime.monotonic() + shared_s
    open_until = runtime.monotonic() + open_s
    is_logged = False
    while True:
        await Call[bool](lambda done: client.flush(lambda error: done(error is None, error)))
        await pause(runtime, SETTLE_S)
        info = await Call[ConsumerInfo](lambda done: api.consumer_info(stream, name, done))
        now = runtime.monotonic()
        held_by_others = max(0, info.num_ack_pending - len(deliveries.failed) - len(deliveries.open))
        found = OpenDeliveries(held_by_others, info.num_waiting > 0, info.delivered.consumer_seq + 1)
        if found.is_shared:
            open_until = now + open_s
            if now >= shared_until:
                return found
        elif not held_by_others or now >= open_until:
            return found
        if not is_logged and held_by_others:
            is_logged = True
            text = "stream %s: consumer %s has delivered %d messages that did not arrive here; waiting for them, up to %.0f s"
            log.info(text, stream, name, held_by_others, max(shared_s, open_s))
        await pause(runtime, 2 * SETTLE_S)


def _config(binding: Binding, name: str, ack_wait_s: float) -> ConsumerConfig:
    start = binding.start
    policies = {"new": "new", "seq": "by_start_sequence", "time": "by_start_time"}
    return ConsumerConfig(
        name=name,
        durable_name=name,
        description=f"topic {binding.topic}, at least once",
        deliver_policy=policies.get(start.kind, "all"),
        opt_start_seq=start.sequence if start.kind == "seq" else 0,
        opt_start_time=start.time if start.kind == "time" else "",
        ack_policy="explicit",
        ack_wait=int(ack_wait_s * NANOSECONDS),
        max_deliver=-1,  # attempts are counted here: the server would drop a message silently
        max_ack_pending=ACK_PENDING_MAX,
    )


async def _fit(api: JetStreamApi, stream: StreamInfo, binding: Binding, known: ConsumerInfo) -> Consumer:
    config, name = known.config, known.name
    if config.deliver_subject:
        raise Blocked(f"the consumer {name} pushes: nats.durable must name one that is pulled from")
    if config.ack_policy != "explicit":
        raise Blocked(f"the consumer {name} has the ack policy {config.ack_policy}: it must be explicit")
    patterns = binding.patterns
    wants_all = not needs_filter(stream, patterns)
    if not config.filters or sorted(config.filters) == sorted(patterns):
        if not config.filters and not wants_all and stream.config.retention != "limits":
            raise Blocked(
                f"the consumer {name} takes, and removes, more than the binding's subjects: filter it"
            )
        return Consumer(known, takes_all=not config.filters)
    if binding.durable:
        raise Blocked(
            f"the consumer {name} takes {', '.join(config.filters)}, the binding {', '.join(patterns)}: change one of them"
        )
    changed = with_filters(config, () if wants_all else patterns)
    made = await create(api, stream.config.name, msgspec.structs.replace(changed, name=name))
    if sorted(made.config.filters) != sorted(changed.filters):
        raise Blocked(f"the server does not let the consumer {name} take other subjects: remove it")
    return Consumer(made, takes_all=not made.config.filters)
