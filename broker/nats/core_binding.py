"""A core binding: subscriptions on subjects, whose messages become records of the partitions led here.

What core NATS does not deliver is gone, so every time in which that may have happened is noted (gaps.py):

- without a connection: from the last answer of the server to the subscriptions of the next connection;
- before a partition came to be led here that this broker did not follow in sync, ready to lead: from its last message in
  the log, or from what was written down before a restart;
- while the server refuses a subscription.

Who leads nothing has no gaps: what others lead is theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.nats.alignment import Alignment
from barnabas.broker.nats.budget import Budget
from barnabas.broker.nats.client import ClientListener
from barnabas.broker.nats.dead_letters import DeadLetters
from barnabas.broker.nats.ingest import Ingest
from barnabas.broker.nats.jetstream_positions import find_last
from barnabas.broker.nats.jetstream_steps import Steps
from barnabas.broker.nats.record_parts import SUBJECT_HEADER
from barnabas.broker.nats.subscribing import changed_subscriptions
from barnabas.broker.nats.template_ingest import TemplateIngest
from barnabas.controller.nats.subjects import compile_subscriptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.broker.nats.carrier import CarrierStats
    from barnabas.broker.nats.client import Subscription
    from barnabas.broker.nats.connections import Intake
    from barnabas.broker.nats.errors import Cause, NatsError
    from barnabas.broker.nats.gaps import GapLog
    from barnabas.broker.nats.protocol import ServerInfo
    from barnabas.broker.partition import Partition
    from barnabas.broker.services import Services
    from barnabas.controller.nats.bound import Binding
    from barnabas.controller.nats.subjects import Filter
    from barnabas.storage.runtime import Timer
    from barnabas.wire.record_batch import Record

log = logging.getLogger("barnabas.nats")

ASK_REFUSED_AGAIN_S: Final = 5.0  # for a subscription
# A leader may have been so far behind with reading when it took its last message: then the server cuts it off.
BEHIND_MS_MAX: Final = 10_000
_SUBJECT: Final = SUBJECT_HEADER.decode()
_NOTHING: Final[Mapping[int, Partition]] = {}
_NONE: Final[frozenset[int]] = frozenset()

# With another one of these it is another binding.
_WHAT_IT_IS: Final = ("topic", "mode", "connection", "queue_group")


class CoreBinding(ClientListener):
    """A Carrier."""

    def __init__(
        self,
        services: Services,
        intake: Intake,
        binding: Binding,
        partition_count: int,
        stats: CarrierStats,
        gaps: GapLog,
    ) -> None:
        runtime, cluster_id = services.runtime, services.cluster_id
        self.binding = binding
        self.stats = stats
        self.gaps = gaps
        gaps.estimate = intake.monitoring.estimate if intake.monitoring is not None else None
        self._budget = Budget(binding.buffer_bytes, self._full)
        self._rejects = DeadLetters(services, binding.topic, stats, self._budget)
        self._rejects.topic = binding.dead_letter_topic
        self._alignment: Alignment | None = None
        self.ingest: Ingest | TemplateIngest
        if binding.topic_template is not None:
            self.ingest = TemplateIngest(
                services, intake.client, binding, partition_count, stats, self._budget, self._rejects
            )
        else:
            self.ingest = Ingest(
                runtime,
                binding,
                partition_count,
                stats,
                cluster_id,
                intake.client.publish_encoded,
                self._budget,
                self._rejects,
            )
            self._alignment = Alignment(runtime, intake.client, self.ingest, cluster_id)
        self._runtime = runtime
        self._intake = intake
        self._subscriptions: list[Subscription] = []
        self._is_paused = False
        self._is_stopped = False
        self._is_listening = False  # the server has the subscriptions
        self._absent: tuple[int, str] | None = None  # without a connection: since when, and why
        self._waits_since_ms = 0  # for the first connection
        self._attended: frozenset[int] = frozenset()  # partitions that are led here, or may be at any time
        self._searches: list[Steps] = []
        self._retry: Timer | None = None  # of what the server has refused

    @property
    def state(self) -> str:
        client = self._intake.client
        if self._is_paused:
            return "paused: the log takes nothing, and more waits than nats.buffer.bytes"
        refused = [each.refused for each in self._subscriptions if each.refused]
        if refused:
            return f"blocked: the server refuses the subscription: {refused[0]}"
        if client.is_connected:
            return "running"
        return f"connecting: {client.last_cause}" if client.last_cause else "connecting"

    def count(self) -> None:
        """Bring `stats` up to date with what is kept elsewhere: nothing is counted for each message."""
        stats = self.stats
        stats.messages_in = stats.appended + stats.duplicates + stats.refused + stats.looped
        stats.bytes_in = stats.appended_bytes
        stats.ack_latency_ms = self.ingest.ack_stats.latency_s * 1000

    @property
    def heard_until_ms(self) -> int:
        """What the server had taken by then has come here."""
        return self._intake.heartbeat.until_ms or self._runtime.time_ms()

    def start(
        self,
        leading: Mapping[int, Partition],
        following: Mapping[int, Partition] = _NOTHING,
        coming: frozenset[int] = _NONE,
        *,
        missed: str = "",
        since_ms: int = 0,
    ) -> None:
        """As `roles_changed`; from here on it listens. `missed`: the binding is older than this, and why nobody has
        listened; since when, where that is known."""
        binding, intake = self.binding, self._intake
        client = intake.client
        if not client.is_connected:
            self._waits_since_ms = self._runtime.time_ms()
            if client.last_cause is not None:
                self._absent = self._waits_since_ms, str(client.last_cause)
        intake.heartbeat.on_beat.append(self._beat)
        intake.closers.append(self.ingest.close)
        intake.client.listeners.append(self)
        self._subscribe(compile_subscriptions(binding.patterns, binding.unwanted))
        if not missed:
            self._attended = frozenset(leading)
        self._serve(leading, following, coming, missed, since_ms)
        if self._alignment is not None and not binding.queue_group:
            self._alignment.start()
        if client.is_connected:
            client.flush(self._flushed)
        log.info(
            "topic %s takes %s for its partitions %s",
            binding.topic,
            ", ".join(binding.patterns),
            ", ".join(map(str, sorted(leading))),
        )

    def roles_changed(
        self,
        leading: Mapping[int, Partition],
        following: Mapping[int, Partition] = _NOTHING,
        coming: frozenset[int] = _NONE,
    ) -> None:
        """`following`: the partitions that this broker is in sync with, and may have to lead at any time; `coming`: those
        that it is a replica of, and that are about to be opened."""
        self._serve(leading, following, coming, "nobody who was in sync led")

    def rebind(self, binding: Binding, partition_count: int) -> bool:
        """The binding or the number of partitions has changed: go on with that from the next message on, without a gap.
        Whether that can be done; if not, nothing has changed here."""
        before = self.binding
        if any(getattr(before, name) != getattr(binding, name) for name in _WHAT_IT_IS) or (
            (before.topic_template is None) != (binding.topic_template is None)
        ):
            return False
        self.binding = binding
        self._budget.bytes_max = binding.buffer_bytes
        self._rejects.topic = binding.dead_letter_topic
        self.ingest.rebind(binding, partition_count)
        patterns = [each.subject for each in self._subscriptions]
        self._subscribe(changed_subscriptions(patterns, binding.patterns, binding.unwanted))
        log.info("topic %s takes %s, as its configs are now", binding.topic, ", ".join(binding.patterns))
        return True

    def _subscribe(self, wanted: Sequence[tuple[str, Filter | None]]) -> None:
        """To these, with these filters. What there is of them stays; what is new comes before what is old goes."""
        current = {each.subject: each for each in self._subscriptions}
        subscriptions: list[Subscription] = []
        for pattern, is_taken in wanted:
            take = self.ingest.encoder(is_taken).take
            subscription = current.pop(pattern, None)
            if subscription is None:
                client, queue = self._intake.client, self.binding.queue_group
                subscription = client.subscribe(pattern, take, queue=queue)
            else:
                subscription.hand_over(take)
            subscriptions.append(subscription)
        for subscription in current.values():
            subscription.unsubscribe()
        self._subscriptions = subscriptions
        self._intake.subscriptions_changed()

    def stop(self) -> None:
        self._is_stopped = True
        for search in self._searches:
            search.cancel()
            self.gaps.found(None)
        if self._retry is not None:
            self._retry.cancel()
        self._intake.heartbeat.on_beat.remove(self._beat)
        for subscription in self._subscriptions:
            subscription.unsubscribe()
        if self._alignment is not None:
            self._alignment.stop()
        self.ingest.end()
        self._rejects.close()
        self._intake.closers.remove(self.ingest.close)
        self._intake.client.listeners.remove(self)
        self._intake.let_go(self)

    def _full(self, is_full: bool) -> None:
        self._is_paused = is_full
        if is_full:
            log.warning(
                "topic %s: more than nats.buffer.bytes=%d wait for the log; nothing is read from NATS until they are less, "
                "and the server cuts slow readers off after 10 s or 64 MiB",
                self.binding.topic,
                self.binding.buffer_bytes,
            )
            self._intake.hold(self)
        else:
            self._intake.let_go(self)

    # -- the connection

    def connected(self, _info: ServerInfo) -> None:
        self.ingest.subscribed_anew()
        self._waits_since_ms = 0
        if self._absent is not None:
            self._absent = None
            self.stats.reconnects += 1
        self._listening()

    def disconnected(self, cause: Cause) -> None:
        self._is_listening = False
        self._absent = self.heard_until_ms, str(self._intake.heartbeat.explained(cause))
        wanted = compile_subscriptions(self.binding.patterns, self.binding.unwanted)
        if [each.subject for each in self._subscriptions] != [pattern for pattern, _ in wanted]:
            self.ingest.rebind(self.binding, self.ingest.partition_count)
            self._subscribe(wanted)  # what has stayed so as not to miss anything
        if self.ingest.lanes:
            self.gaps.begin(*self._absent)

    def unreachable(self, cause: Cause) -> None:
        """The first connection takes longer than whoever made the binding has waited for it."""
        if self._waits_since_ms and self._absent is None:
            self._absent = self._waits_since_ms, str(cause)
            if self.ingest.lanes:
                self.gaps.begin(*self._absent)

    def refused(self, _text: str) -> None:
        """The server has refused something; what, the subscriptions know."""
        refused = next((each.refused for each in self._subscriptions if each.refused), "")
        if not refused:
            return
        if self.ingest.lanes:
            self.gaps.begin(self.heard_until_ms, refused)
        if self._retry is None:
            self._retry = self._runtime.call_later(ASK_REFUSED_AGAIN_S, self._ask_again)

    def _ask_again(self) -> None:
        """What the server has refused it may allow now; it does not tell when."""
        self._retry = None
        if self._intake.client.is_connected:
            for subscription in self._subscriptions:
                if subscription.refused:
                    subscription.again()
            self._intake.client.flush(self._flushed)

    def _flushed(self, error: NatsError | None) -> None:
        """The server knows the subscriptions that were made on a connection that was there; else `connected` tells."""
        if error is None and not self._is_stopped:
            self._listening()

    def _listening(self) -> None:
        self._is_listening = True
        if not any(each.refused for each in self._subscriptions):
            self.gaps.end()

    def _beat(self, until_ms: int) -> None:
        """What the server had taken by then has been read."""
        if self._is_listening and self.gaps.open is None and self.ingest.is_whole:
            self.gaps.until_ms = until_ms

    # -- partitions

    def _serve(
        self,
        leading: Mapping[int, Partition],
        following: Mapping[int, Partition],
        coming: frozenset[int],
        missed: str,
        since_ms: int = 0,
    ) -> None:
        begun = [leading[index] for index in sorted(leading) if index not in self._attended]
        self._attended = frozenset((*leading, *following, *(coming if self._is_listening else ())))
        self.ingest.serve(leading, following, coming)
        if leading and self._absent is not None:
            self.gaps.begin(*self._absent)
        begun = [each for each in begun if since_ms or each.log.log_end_offset > each.log.log_start_offset]
        if begun:
            is_alone = all(len(each.state.replicas) == 1 for each in begun)
            if since_ms and is_alone:
                self.gaps.begin(since_ms, missed)
            else:  # another may have led since
                self.gaps.begin(self._runtime.time_ms(), missed)
                self._search(begun, since_ms)
            if self._is_listening:
                self.gaps.end()

    def _search(self, begun: list[Partition], since_ms: int) -> None:
        """Each of these has had all messages up to its last one, and up to `since_ms`."""
        found: list[int] = []
        is_over = False
        steps: Steps | None = None

        async def search() -> None:
            for partition in begun:
                time_ms = await find_last(self._runtime, partition, SUBJECT_HEADER, _time_of)
                if time_ms is not None:
                    found.append(time_ms)

        def ended(error: Exception | None) -> None:
            nonlocal is_over
            is_over = True
            if steps is not None:
                self._searches.remove(steps)
            if error is not None:
                log.warning(
                    "topic %s: where its gap begins can't be seen in the log: %s", self.binding.topic, error
                )
            begins_ms = max(since_ms, min(found) - BEHIND_MS_MAX) if found else since_ms
            self.gaps.found(begins_ms or None)

        self.gaps.search()
        steps = Steps(search(), ended)
        if not is_over:
            self._searches.append(steps)


def _time_of(record: Record) -> int | None:
    """When a message came; None for a record that was none."""
    is_message = any(name == _SUBJECT for name, _ in record.headers)
    return record.timestamp if is_message else None
