"""A core binding: subscriptions to subjects, whose messages become records of the partitions that are led here.

Gaps are tracked by ingress/gap_tracker.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.announcements import purpose
from barnabas.nats.binding.subjects import compile_subscriptions
from barnabas.nats.client.client import ClientListener
from barnabas.nats.dead_letters import DeadLetters
from barnabas.nats.ingress.backpressure import Backpressure, Budget
from barnabas.nats.ingress.change_barrier import ChangeBarrier
from barnabas.nats.ingress.gap_tracker import Backfill, GapTracker
from barnabas.nats.ingress.ingest import Ingest
from barnabas.nats.ingress.roles import NO_ROLES, Roles
from barnabas.nats.ingress.subscriptions import CoreSubscriptions, changed_subscriptions
from barnabas.nats.ingress.template_ingest import TemplateIngest

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.binding.subjects import Filter
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.errors import Cause
    from barnabas.nats.client.protocol import ServerInfo, Sink
    from barnabas.nats.connections import Intake
    from barnabas.nats.ingress.change_barrier import BindingChange
    from barnabas.nats.ingress.gap_tracker import GapLog
    from barnabas.nats.ingress.standby import Lapse

log = logging.getLogger("barnabas.nats")

LEAVING_LOOK_S: Final = 0.02

_MOVES_MESSAGES: Final = ("key", "partitioner", "topic_template")  # to other partitions
# A binding that differs in one of these is another binding.
_IDENTITY: Final = ("topic", "mode", "connection", "queue_group")


class CoreBinding(ClientListener):
    """One core binding on this broker: its subscriptions, its ingest, its gaps and its backpressure."""

    def __init__(
        self,
        host: ExtensionHost,
        intake: Intake,
        binding: Binding,
        partition_count: int,
        stats: CarrierStats,
        gaps: GapLog,
        missed: str = "",
        since_ms: int = 0,
    ) -> None:
        """`missed`: why messages may have been missed before, "" when the binding is new; `since_ms`: since when, 0 when that is
        not known."""
        runtime, client = host.runtime, intake.client
        self.binding = binding
        self.stats = stats
        self._missed = missed
        self._missed_since_ms = since_ms
        self._backpressure = Backpressure(runtime, intake, self._unsubscribe, self._resubscribe)
        self._budget = Budget(binding.buffer_bytes, self._full)
        self._dead_letters = DeadLetters(host, binding, stats, self._budget)
        backfill = Backfill(runtime, gaps, self._hold, self._release)
        self.change_barrier = ChangeBarrier(runtime, client, binding.topic, host.cluster_id)
        self._planned = binding, partition_count  # the latest, perhaps to be applied at a mark
        self._roles_after_change: Roles | None = None  # no partitions are served until then
        self.ingest: Ingest | TemplateIngest
        if binding.topic_template is not None:
            self.ingest = TemplateIngest(
                host,
                client,
                binding,
                partition_count,
                stats,
                self._budget,
                self._dead_letters,
                self._lapsed,
            )
        else:
            self.ingest = Ingest(
                host,
                client,
                binding,
                partition_count,
                stats,
                self._budget,
                self._dead_letters,
                self._lapsed,
                is_new=not missed,
                backfill=backfill,
            )
        self._runtime = runtime
        self._intake = intake
        self._subscriptions = CoreSubscriptions(
            runtime, intake, binding.queue_group, self._sink, self._check_subscriptions
        )
        self._is_stopped = False
        self._leads = False
        self._is_template = binding.topic_template is not None
        self._is_member = bool(binding.queue_group)
        self._gap_tracker = GapTracker(
            runtime,
            intake,
            binding.topic,
            gaps,
            backfill,
            self._has_messages_to_miss,
            lambda: self.ingest.is_whole and self._dead_letters.is_idle,
            has_standbys=not self._is_template and not self._is_member,
        )

    @property
    def state(self) -> str:
        client = self._intake.client
        if self._backpressure.is_unsubscribed:
            return (
                "waiting: the log takes nothing; not subscribed, so that the connection's other topics go on"
            )
        if self._backpressure.is_full:
            return "paused: the log takes nothing, and more waits than nats.buffer.bytes"
        if self._subscriptions.refused:
            return f"blocked: the server refuses the subscription: {self._subscriptions.refused}"
        if client.is_connected and isinstance(self.ingest, TemplateIngest) and self.ingest.problem:
            return f"waiting: {self.ingest.problem}"
        if client.is_connected:
            return "running"
        return f"connecting: {client.last_cause}" if client.last_cause else "connecting"

    def count(self) -> None:
        """Updates `stats` by counters that are kept elsewhere; nothing is counted for each message."""
        stats = self.stats
        stats.messages_in = (
            stats.appended + stats.duplicates + stats.refused + stats.looped + stats.dead_letters
        )
        stats.bytes_in = stats.appended_bytes
        stats.ack_latency_ms = self.ingest.ack_stats.latency_s * 1000

    def start(self, roles: Roles, change: BindingChange | None = None) -> None:
        """Subscribes, and takes messages for these roles; with `change` from that change on, as other brokers take them until
        then."""
        binding, client = self.binding, self._intake.client
        for_partitions = purpose(binding, roles.leading)
        self._gap_tracker.start(() if self._missed else roles.leading)
        self._intake.closers.append(self.ingest.close)
        client.listeners.append(self)
        self._subscriptions.replace(compile_subscriptions(binding.patterns, binding.unwanted))
        self.change_barrier.start()
        # A member of a queue group takes its messages at once: no other broker receives them.
        if change is not None and client.is_connected and not self._is_member:
            self._roles_after_change, roles = roles, NO_ROLES
            self.change_barrier.plan(change, self._serve_planned)
        self.ingest.serve(roles)
        self._leads = bool(roles.leading)
        if self._missed and self._is_template:
            self._gap_tracker.missed(
                [lane.partition for lane in self.ingest.lanes.values()], self._missed, self._missed_since_ms
            )
        self._gap_tracker.roles_changed(roles.leading, roles.following, self._missed, self._missed_since_ms)
        self._subscriptions.confirm()
        log.info("topic %s takes %s %s", binding.topic, ", ".join(binding.patterns), for_partitions)

    def roles_changed(self, roles: Roles) -> None:
        if self._roles_after_change is not None:
            self._roles_after_change = roles
            return
        if isinstance(self.ingest, Ingest):
            self._gap_tracker.covers(self.ingest.standbys.by_index)
        self.ingest.serve(roles)
        self._leads = bool(roles.leading)
        self._gap_tracker.roles_changed(roles.leading, (*roles.following, *roles.opening))

    def may_take_over(self, topic: str, index: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower of a partition that is led here may join the ISR: it could lead without a message missing
        (ingress/standbys.py). `topic` is the bound one, or one of its template."""
        return self.ingest.may_take_over(topic, index, broker, broker_epoch)

    def _serve_planned(self) -> None:
        roles, self._roles_after_change = self._roles_after_change, None
        if roles is not None:
            self.roles_changed(roles)

    def rebind(self, binding: Binding, partition_count: int, change: BindingChange | None = None) -> bool:
        """The binding or the number of partitions has changed: this counts from the next message on, without a gap; with
        `change`, if messages move to other partitions, together with other brokers. Returns whether the binding can be changed
        so; if not, it is as before."""
        before, count_before = self._planned
        if any(getattr(before, name) != getattr(binding, name) for name in _IDENTITY) or (
            (before.topic_template is None) != (binding.topic_template is None)
        ):
            return False
        self._planned = binding, partition_count
        moves = partition_count != count_before or any(
            getattr(before, name) != getattr(binding, name) for name in _MOVES_MESSAGES
        )
        if change is not None and (moves or self.change_barrier.has_planned):
            self.change_barrier.plan(change, partial(self._change, binding, partition_count))
        else:
            self._change(binding, partition_count)
        return True

    def _change(self, binding: Binding, partition_count: int) -> None:
        self.binding = binding
        self._budget.bytes_max = binding.buffer_bytes
        self._dead_letters.rebind(binding)
        self.ingest.rebind(binding, partition_count)
        if not self._backpressure.is_unsubscribed:
            current = self._subscriptions.patterns
            self._subscriptions.replace(changed_subscriptions(current, binding.patterns, binding.unwanted))
        log.info("topic %s takes %s, as its configs are now", binding.topic, ", ".join(binding.patterns))

    def _sink(self, is_taken: Filter | None) -> Sink:
        return self.ingest.encoder(is_taken).take

    def leave_group(self, left: Callable[[], object]) -> None:
        """Before `stop`: leaves the queue group, and calls `left()` when the messages received so far are in their logs, which
        may never be."""

        def drained() -> None:
            self.ingest.close()
            look()

        def look() -> None:
            if self.ingest.is_whole or self._is_stopped:
                left()
            else:
                self._runtime.call_later(LEAVING_LOOK_S, look)

        self._backpressure.stop()  # else it would subscribe again and take messages that it will not store
        self._subscriptions.drain(drained)

    def hear(self, done: Callable[[], object]) -> None:
        """Asks the server until when all messages have come, and calls back when that is known, or can't be."""
        self._intake.subscriptions_changed()  # callers of `when_flushed` wait for this answer as well
        self._intake.heartbeat.ask(done)

    def stop(self, cause: str = "") -> None:
        """`cause`: why messages are missed from now on; "" when other brokers take them or the binding ends."""
        self._gap_tracker.ends(cause)
        self._is_stopped = True
        self._gap_tracker.stop()
        self._subscriptions.stop()
        self.ingest.end()
        self._dead_letters.close()
        self.change_barrier.stop()
        self._intake.closers.remove(self.ingest.close)
        self._intake.client.listeners.remove(self)
        self._backpressure.stop()

    def _full(self, is_full: bool) -> None:
        if is_full:
            log.warning(
                "topic %s: more than nats.buffer.bytes=%d wait for the log; nothing is read from NATS until fewer wait, "
                "and the server disconnects slow readers after 10 s or 64 MiB",
                self.binding.topic,
                self.binding.buffer_bytes,
            )
        self._backpressure.changed(is_full)

    def _lapsed(self, found: list[tuple[Partition, Lapse]]) -> None:
        self._gap_tracker.lapsed(found)

    def _hold(self, partitions: Iterable[int]) -> None:
        assert isinstance(self.ingest, Ingest)
        self.ingest.hold(partitions)

    def _release(self, is_noted: bool) -> None:
        assert isinstance(self.ingest, Ingest)
        self.ingest.release(is_noted=is_noted)

    def _unsubscribe(self) -> None:
        why = f"its log takes nothing, and more waits than nats.buffer.bytes={self.binding.buffer_bytes}"
        log.warning(
            "topic %s: %s; it takes no messages meanwhile, so that the other topics on its connection continue",
            self.binding.topic,
            why,
        )
        self._subscriptions.unsubscribe()
        self._gap_tracker.unsubscribed(why)
        self.ingest.interrupted(self._gap_tracker.absent_since_ms, why)

    def _resubscribe(self) -> None:
        log.info("topic %s: its log takes messages again", self.binding.topic)
        self.ingest.rebind(self.binding, self.ingest.partition_count)
        self.ingest.resubscribed()
        self._subscriptions.replace(compile_subscriptions(self.binding.patterns, self.binding.unwanted))
        if self._intake.client.is_connected:
            self._gap_tracker.connected()
            self._subscriptions.confirm()

    # -- the connection

    def connected(self, _info: ServerInfo) -> None:
        self.ingest.resubscribed()
        if self._gap_tracker.connected():
            self.stats.reconnects += 1
        if self._backpressure.is_unsubscribed:
            self._gap_tracker.unsubscribed("its log takes nothing")
        self._check_subscriptions()

    def disconnected(self, cause: Cause) -> None:
        self._gap_tracker.disconnected(cause)
        self.ingest.interrupted(self._gap_tracker.absent_since_ms, self._gap_tracker.absence)
        wanted = compile_subscriptions(self.binding.patterns, self.binding.unwanted)
        if (
            self._subscriptions.patterns != [pattern for pattern, _ in wanted]
            and not self._backpressure.is_unsubscribed
        ):  # subscriptions that have stayed so that no message was missed
            self.ingest.rebind(self.binding, self.ingest.partition_count)
            self._subscriptions.replace(wanted)

    def unreachable(self, cause: Cause) -> None:
        self._gap_tracker.unreachable(cause)

    def refused(self, _text: str) -> None:
        """The server has refused something, perhaps a subscription."""
        refused = self._subscriptions.refused
        if refused:
            self._gap_tracker.refused(refused)
            self.ingest.interrupted(self._gap_tracker.heard_until_ms, refused)
            self._subscriptions.retry_later()

    def _check_subscriptions(self) -> None:
        """The server has answered to all subscriptions."""
        if not self._backpressure.is_unsubscribed and not self._subscriptions.refused:
            self._subscriptions.accepted()
            self._gap_tracker.subscribed()
            self.ingest.subscribed(self._runtime.time_ms())

    def _has_messages_to_miss(self) -> bool:
        """Messages of a template may be for topics that do not exist yet: leaders of the bound topic answer for those. Messages
        of a member may be for any partition."""
        return bool(self.ingest.lanes) or ((self._is_template or self._is_member) and self._leads)
