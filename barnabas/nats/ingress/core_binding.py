"""A core binding: subscriptions to subjects, whose messages become records of the partitions that are led here.

Gaps are tracked by ingress/gap_tracker.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.announcements import for_whom
from barnabas.nats.binding.subjects import compile_subscriptions
from barnabas.nats.client.client import ClientListener
from barnabas.nats.dead_letters import DeadLetters
from barnabas.nats.ingress.backpressure import Backpressure, Budget
from barnabas.nats.ingress.barrier import ChangeBarrier, StandbyBarrier
from barnabas.nats.ingress.gap_tracker import Backfill, GapTracker
from barnabas.nats.ingress.ingest import Ingest
from barnabas.nats.ingress.queue_group import GroupLanes
from barnabas.nats.ingress.roles import NO_ROLES, Roles
from barnabas.nats.ingress.subscriptions import Subscribed, changed_subscriptions
from barnabas.nats.ingress.template_ingest import TemplateIngest

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.binding.subjects import Filter
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.errors import Cause, NatsError
    from barnabas.nats.client.protocol import ServerInfo, Sink
    from barnabas.nats.connections import Intake
    from barnabas.nats.ingress.barrier import BindingChange
    from barnabas.nats.ingress.gap_tracker import GapLog
    from barnabas.nats.ingress.standby import Lapse

log = logging.getLogger("barnabas.nats")

LEAVING_LOOK_S: Final = 0.02
_NOTHING: Final[Mapping[int, Partition]] = {}
_NONE: Final[frozenset[int]] = frozenset()

_MOVES_MESSAGES: Final = ("key", "partitioner", "topic_template")  # to other partitions
# With another one of these it is another binding.
_WHAT_IT_IS: Final = ("topic", "mode", "connection", "queue_group")


class CoreBinding(ClientListener):
    """A Carrier."""

    def __init__(
        self,
        host: ExtensionHost,
        intake: Intake,
        binding: Binding,
        partition_count: int,
        stats: CarrierStats,
        gaps: GapLog,
    ) -> None:
        runtime, cluster_id = host.runtime, host.cluster_id
        self.binding = binding
        self.stats = stats
        self._backpressure = Backpressure(runtime, intake, self._unsubscribe, self._resubscribe)
        self._budget = Budget(binding.buffer_bytes, self._full)
        self._dead_letters = DeadLetters(host, binding, stats, self._budget)
        self._standby_barrier: StandbyBarrier | None = None
        backfill = Backfill(runtime, gaps, self._wait_for_standbys, self._wait_no_longer)
        self.change_barrier = ChangeBarrier(runtime, intake.client, binding.topic, cluster_id)
        self._planned = binding, partition_count  # the last that was heard of
        self._roles_after_change: Roles | None = None  # nothing is served until then
        self.ingest: Ingest | TemplateIngest
        if binding.topic_template is not None:
            self.ingest = TemplateIngest(
                host,
                intake.client,
                binding,
                partition_count,
                stats,
                self._budget,
                self._dead_letters,
                self._lapsed,
            )
        else:
            make_group = None
            if binding.queue_group:
                make_group = partial(GroupLanes, host, binding.topic, intake.client.publish_encoded, stats)
            self.ingest = Ingest(
                runtime,
                binding,
                partition_count,
                stats,
                cluster_id,
                intake.client.publish_encoded,
                self._budget,
                self._dead_letters,
                self._lapsed,
                make_group,
            )
            self._standby_barrier = StandbyBarrier(
                runtime,
                intake.client,
                self.ingest,
                cluster_id,
                host.partitions.proposals,
                lambda: self._gap_tracker.is_listening,
                backfill,
            )
        self._runtime = runtime
        self._intake = intake
        self._subscribed = Subscribed(runtime, intake, binding.queue_group, self._sink, self._asked_again)
        self._is_stopped = False
        # The last one to the server about subscriptions: answers to those before say nothing.
        self._question: object = None
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
            has_standbys=self._standby_barrier is not None and not self._is_member,
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
        if self._subscribed.refused:
            return f"blocked: the server refuses the subscription: {self._subscribed.refused}"
        if client.is_connected and isinstance(self.ingest, TemplateIngest) and self.ingest.problem:
            return f"waiting: {self.ingest.problem}"
        if client.is_connected:
            return "running"
        return f"connecting: {client.last_cause}" if client.last_cause else "connecting"

    def count(self) -> None:
        """Bring `stats` up to date with what is kept elsewhere: nothing is counted for each message."""
        stats = self.stats
        stats.messages_in = (
            stats.appended + stats.duplicates + stats.refused + stats.looped + stats.dead_letters
        )
        stats.bytes_in = stats.appended_bytes
        stats.ack_latency_ms = self.ingest.ack_stats.latency_s * 1000

    def start(
        self,
        leading: Mapping[int, Partition],
        following: Mapping[int, Partition] = _NOTHING,
        opening: frozenset[int] = _NONE,
        joining: Mapping[int, Partition] = _NOTHING,
        *,
        missed: str = "",
        since_ms: int = 0,
        change: BindingChange | None = None,
    ) -> None:
        """As `roles_changed`; from here on it listens. `missed`: the binding is older than this, and why nobody has
        listened; since when, where that is known. `change`: it takes messages from there on, others do so far."""
        binding, intake = self.binding, self._intake
        client = intake.client
        whose = for_whom(binding, leading)
        self._gap_tracker.start(() if missed else leading)
        intake.closers.append(self.ingest.close)
        intake.client.listeners.append(self)
        self._subscribed.to(compile_subscriptions(binding.patterns, binding.unwanted))
        self.change_barrier.start()
        # A member of a queue group takes what it is given from the first message on: nobody else is.
        if change is not None and client.is_connected and not self._is_member:
            self._roles_after_change = Roles(leading, following, opening, joining)
            leading, following, opening, joining = NO_ROLES
            self.change_barrier.plan(change, self._begin)
        self.ingest.is_new_binding = not missed
        self.ingest.serve(leading, following, opening, joining)
        self._leads = bool(leading)
        if missed and self._is_template:
            self._gap_tracker.missed(
                [lane.partition for lane in self.ingest.lanes.values()], missed, since_ms
            )
        self._gap_tracker.serves(leading, following, missed, since_ms)
        if self._standby_barrier is not None and not binding.queue_group:
            self._standby_barrier.start()
        self._ask_server()
        log.info("topic %s takes %s %s", binding.topic, ", ".join(binding.patterns), whose)

    def roles_changed(
        self,
        leading: Mapping[int, Partition],
        following: Mapping[int, Partition] = _NOTHING,
        opening: frozenset[int] = _NONE,
        joining: Mapping[int, Partition] = _NOTHING,
    ) -> None:
        """`following`: the partitions that this broker is in sync with, and may have to lead at any time; `opening`: those
        that it is a replica of, and that are about to be opened; `joining`: those that it follows and is not in sync with."""
        if self._roles_after_change is not None:
            self._roles_after_change = Roles(leading, following, opening, joining)
            return
        self._gap_tracker.covers(self.ingest.standbys)
        self.ingest.serve(leading, following, opening, joining)
        self._leads = bool(leading)
        self._gap_tracker.serves(leading, (*following, *opening))
        if self._standby_barrier is not None and self.ingest.joining:
            self._standby_barrier.roles_changed()

    def may_take_over(self, topic: str, index: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower of a partition that is led here has what a leader needs (ingress/standby.py). `topic`: the bound
        one, or one of its template."""
        if isinstance(self.ingest, TemplateIngest):
            return self.ingest.may_take_over(topic, index, broker, broker_epoch)
        if self._standby_barrier is None or self._is_member:
            return True
        return self._standby_barrier.may_take_over(index, broker, broker_epoch)

    def _begin(self) -> None:
        """What was planned at `start`."""
        roles, self._roles_after_change = self._roles_after_change, None
        if roles is not None:
            self.roles_changed(*roles)

    def rebind(self, binding: Binding, partition_count: int, change: BindingChange | None = None) -> bool:
        """The binding or the number of partitions has changed: go on with that, without a gap, from the next message on;
        with `change`, if messages change their partitions, together with other brokers. Whether that can be done; if not,
        nothing has changed here."""
        before, count_before = self._planned
        if any(getattr(before, name) != getattr(binding, name) for name in _WHAT_IT_IS) or (
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
            current = self._subscribed.patterns
            self._subscribed.to(changed_subscriptions(current, binding.patterns, binding.unwanted))
        log.info("topic %s takes %s, as its configs are now", binding.topic, ", ".join(binding.patterns))

    def _sink(self, is_taken: Filter | None) -> Sink:
        return self.ingest.encoder(is_taken).take

    def leave_group(self, left: Callable[[], object]) -> None:
        """Before `stop`: have the others of the queue group be given the messages, and call `left()` when those that have
        come here are in their logs, which may take for ever."""

        def drained() -> None:
            self.ingest.close()
            look()

        def look() -> None:
            if self.ingest.is_whole or self._is_stopped:
                left()
            else:
                self._runtime.call_later(LEAVING_LOOK_S, look)

        self._backpressure.stop()  # else it would take messages again that will not be stored
        self._subscribed.drain(drained)

    def hear(self, done: Callable[[], object]) -> None:
        """Ask until when all has come, and call back when that is known, or can't be."""
        self._intake.subscriptions_changed()  # who waits for the server waits for this as well
        self._intake.heartbeat.ask(done)

    def stop(self, cause: str = "") -> None:
        """`cause`: why nothing is taken from now on that ought to be; "" when it is for others to take it."""
        self._gap_tracker.ends(cause)
        self._is_stopped = True
        self._gap_tracker.stop()
        self._subscribed.stop()
        if self._standby_barrier is not None:
            self._standby_barrier.stop()
        self.ingest.end()
        self._dead_letters.close()
        self.change_barrier.stop()
        self._intake.closers.remove(self.ingest.close)
        self._intake.client.listeners.remove(self)
        self._backpressure.stop()

    def _full(self, is_full: bool) -> None:
        if is_full:
            log.warning(
                "topic %s: more than nats.buffer.bytes=%d wait for the log; nothing is read from NATS until they are less, "
                "and the server cuts slow readers off after 10 s or 64 MiB",
                self.binding.topic,
                self.binding.buffer_bytes,
            )
        self._backpressure.changed(is_full)

    def _lapsed(self, found: list[tuple[Partition, Lapse]]) -> None:
        self._gap_tracker.lapses(found)

    def _wait_for_standbys(self, partitions: Iterable[int]) -> None:
        assert self._standby_barrier is not None
        assert isinstance(self.ingest, Ingest)
        self.ingest.hold(partitions)
        self._standby_barrier.call_standbys()

    def _wait_no_longer(self, is_noted: bool) -> None:
        assert isinstance(self.ingest, Ingest)
        self.ingest.let_go(is_noted=is_noted)

    def _unsubscribe(self) -> None:
        """Have the server deliver nothing for now."""
        why = f"its log takes nothing, and more waits than nats.buffer.bytes={self.binding.buffer_bytes}"
        log.warning(
            "topic %s: %s; it takes no messages meanwhile, so that the other topics on its connection go on",
            self.binding.topic,
            why,
        )
        self._subscribed.to(())
        self._question = None
        self._gap_tracker.unsubscribed(why)
        self.ingest.lapses(self._gap_tracker.absent_since_ms, why)

    def _resubscribe(self) -> None:
        log.info("topic %s: its log takes messages again", self.binding.topic)
        self.ingest.rebind(self.binding, self.ingest.partition_count)
        self.ingest.resubscribed()
        self._subscribed.to(compile_subscriptions(self.binding.patterns, self.binding.unwanted))
        if self._intake.client.is_connected:
            self._gap_tracker.connected()
            self._ask_server()

    # -- the connection

    def connected(self, _info: ServerInfo) -> None:
        self.ingest.resubscribed()
        if self._gap_tracker.connected():
            self.stats.reconnects += 1
        if self._backpressure.is_unsubscribed:
            self._gap_tracker.unsubscribed("its log takes nothing")
        self._listening()

    def disconnected(self, cause: Cause) -> None:
        self._gap_tracker.disconnected(cause)
        self.ingest.lapses(self._gap_tracker.absent_since_ms, self._gap_tracker.absence)
        wanted = compile_subscriptions(self.binding.patterns, self.binding.unwanted)
        if (
            self._subscribed.patterns != [pattern for pattern, _ in wanted]
            and not self._backpressure.is_unsubscribed
        ):
            self.ingest.rebind(self.binding, self.ingest.partition_count)
            self._subscribed.to(wanted)  # what has stayed so as not to miss anything

    def unreachable(self, cause: Cause) -> None:
        self._gap_tracker.unreachable(cause)

    def refused(self, _text: str) -> None:
        """The server has refused something; what, the subscriptions know."""
        if self._subscribed.refused:
            self._gap_tracker.refused(self._subscribed.refused)
            self.ingest.lapses(self._gap_tracker.heard_until_ms, self._subscribed.refused)
            self._subscribed.ask_again_later()

    def _ask_server(self) -> None:
        """Whether it knows the subscriptions that were made on a connection that is there; else `connected` tells."""

        def flushed(error: NatsError | None) -> None:
            if question is self._question:
                self._asked_again(error)

        question = self._question = object()
        if self._intake.client.is_connected:
            self._intake.client.flush(flushed)

    def _asked_again(self, error: NatsError | None) -> None:
        if error is None and not self._is_stopped:
            self._listening()

    def _listening(self) -> None:
        if not self._backpressure.is_unsubscribed and not self._subscribed.refused:
            self._subscribed.are_in_force()
            self._gap_tracker.listens()
            self.ingest.listens(self._runtime.time_ms())

    def _has_messages_to_miss(self) -> bool:
        """A template's messages may be for topics that are yet to come, which whoever leads the bound topic answers for.
        A member's may be for any partition."""
        return bool(self.ingest.lanes) or ((self._is_template or self._is_member) and self._leads)
