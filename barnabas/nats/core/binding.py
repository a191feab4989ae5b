"""A core binding: subscriptions on subjects, whose messages become records of the partitions led here.

Whether it was there for all of them is another matter (core/presence.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.announcements import for_whom
from barnabas.nats.binding.subjects import compile_subscriptions
from barnabas.nats.client.client import ClientListener
from barnabas.nats.cluster.roles import NO_ROLES, Roles
from barnabas.nats.cluster.turns import Turns
from barnabas.nats.core.alignment import Alignment
from barnabas.nats.core.overflow import Overflow
from barnabas.nats.core.presence import Presence
from barnabas.nats.core.subscribed import Subscribed
from barnabas.nats.core.subscribing import changed_subscriptions
from barnabas.nats.dead_letters import DeadLetters
from barnabas.nats.ingest.budget import Budget
from barnabas.nats.ingest.ingest import Ingest
from barnabas.nats.ingest.queue_group import GroupLanes
from barnabas.nats.templates.ingest import TemplateIngest

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.services import Services
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.binding.subjects import Filter
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.errors import Cause, NatsError
    from barnabas.nats.client.protocol import Sink
    from barnabas.nats.client.server_info import ServerInfo
    from barnabas.nats.cluster.turns import Turn
    from barnabas.nats.connections import Intake
    from barnabas.nats.core.gaps import GapLog

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
        self._overflow = Overflow(runtime, intake, self._step_aside, self._come_back)
        self._budget = Budget(binding.buffer_bytes, self._full)
        self._dead_letters = DeadLetters(services, binding, stats, self._budget)
        self._alignment: Alignment | None = None
        self.turns = Turns(runtime, intake.client, binding.topic, cluster_id)
        self._planned = binding, partition_count  # the last that was heard of
        self._roles_at_turn: Roles | None = None  # nothing is served until then
        self.ingest: Ingest | TemplateIngest
        if binding.topic_template is not None:
            self.ingest = TemplateIngest(
                services, intake.client, binding, partition_count, stats, self._budget, self._dead_letters
            )
        else:
            make_group = None
            if binding.queue_group:
                make_group = partial(
                    GroupLanes, services, binding.topic, intake.client.publish_encoded, stats
                )
            self.ingest = Ingest(
                runtime,
                binding,
                partition_count,
                stats,
                cluster_id,
                intake.client.publish_encoded,
                self._budget,
                self._dead_letters,
                make_group,
            )
            self._alignment = Alignment(
                runtime,
                intake.client,
                self.ingest,
                cluster_id,
                services.partitions.proposals,
                lambda: self._presence.is_listening,
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
        self._presence = Presence(
            runtime,
            intake,
            binding.topic,
            gaps,
            self._has_messages_to_miss,
            lambda: self.ingest.is_whole and self._dead_letters.is_idle,
            has_standbys=self._alignment is not None and not self._is_member,
        )
        if self._alignment is not None:
            self._alignment.refill = self._presence.refill
            self._presence.refill.on_wait = self._wait_for_standbys
            self._presence.refill.on_end = self._wait_no_longer
        self.ingest.on_lapses = self._presence.lapses

    @property
    def state(self) -> str:
        client = self._intake.client
        if self._overflow.is_aside:
            return (
                "waiting: the log takes nothing; not subscribed, so that the connection's other topics go on"
            )
        if self._overflow.is_full:
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
        coming: frozenset[int] = _NONE,
        joining: Mapping[int, Partition] = _NOTHING,
        *,
        missed: str = "",
        since_ms: int = 0,
        turn: Turn | None = None,
    ) -> None:
        """As `roles_changed`; from here on it listens. `missed`: the binding is older than this, and why nobody has
        listened; since when, where that is known. `turn`: it takes messages from there on, others do so far."""
        binding, intake = self.binding, self._intake
        client = intake.client
        whose = for_whom(binding, leading)
        self._presence.start(() if missed else leading)
        intake.closers.append(self.ingest.close)
        intake.client.listeners.append(self)
        self._subscribed.to(compile_subscriptions(binding.patterns, binding.unwanted))
        self.turns.start()
        # A member of a queue group takes what it is given from the first message on: nobody else is.
        if turn is not None and client.is_connected and not self._is_member:
            self._roles_at_turn = Roles(leading, following, coming, joining)
            leading, following, coming, joining = NO_ROLES
            self.turns.plan(turn, self._begin)
        self.ingest.is_new_binding = not missed
        self.ingest.serve(leading, following, coming, joining)
        self._leads = bool(leading)
        if missed and self._is_template:
            self._presence.missed([lane.partition for lane in self.ingest.lanes.values()], missed, since_ms)
        self._presence.serves(leading, following, missed, since_ms)
        if self._alignment is not None and not binding.queue_group:
            self._alignment.start()
        self._ask_server()
        log.info("topic %s takes %s %s", binding.topic, ", ".join(binding.patterns), whose)

    def roles_changed(
        self,
        leading: Mapping[int, Partition],
        following: Mapping[int, Partition] = _NOTHING,
        coming: frozenset[int] = _NONE,
        joining: Mapping[int, Partition] = _NOTHING,
    ) -> None:
        """`following`: the partitions that this broker is in sync with, and may have to lead at any time; `coming`: those
        that it is a replica of, and that are about to be opened; `joining`: those that it follows and is not in sync with."""
        if self._roles_at_turn is not None:
            self._roles_at_turn = Roles(leading, following, coming, joining)
            return
        self._presence.attends(self.ingest.shadows)
        self.ingest.serve(leading, following, coming, joining)
        self._leads = bool(leading)
        self._presence.serves(leading, (*following, *coming))
        if self._alignment is not None and self.ingest.joining:
            self._alignment.roles_changed()

    def may_take_over(self, topic: str, index: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower of a partition that is led here has what a leader needs (core/standbys.py). `topic`: the bound
        one, or one of its template."""
        if isinstance(self.ingest, TemplateIngest):
            return self.ingest.may_take_over(topic, index, broker, broker_epoch)
        if self._alignment is None or self._is_member:
            return True
        return self._alignment.may_take_over(index, broker, broker_epoch)

    def _begin(self) -> None:
        """What was planned at `start`."""
        roles, self._roles_at_turn = self._roles_at_turn, None
        if roles is not None:
            self.roles_changed(*roles)

    def rebind(self, binding: Binding, partition_count: int, turn: Turn | None = None) -> bool:
        """The binding or the number of partitions has changed: go on with that, without a gap, from the next message on;
        with `turn`, if messages change their partitions, together with other brokers. Whether that can be done; if not,
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
        if turn is not None and (moves or self.turns.are_planned):
            self.turns.plan(turn, partial(self._change, binding, partition_count))
        else:
            self._change(binding, partition_count)
        return True

    def _change(self, binding: Binding, partition_count: int) -> None:
        self.binding = binding
        self._budget.bytes_max = binding.buffer_bytes
        self._dead_letters.rebind(binding)
        self.ingest.rebind(binding, partition_count)
        if not self._overflow.is_aside:
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

        self._overflow.stop()  # who comes back, or stands still, is given what nobody will store
        self._subscribed.drain(drained)

    def hear(self, done: Callable[[], object]) -> None:
        """Ask until when all has come, and call back when that is known, or can't be."""
        self._intake.subscriptions_changed()  # who waits for the server waits for this as well
        self._intake.heartbeat.ask(done)

    def stop(self, cause: str = "") -> None:
        """`cause`: why nothing is taken from now on that ought to be; "" when it is for others to take it."""
        self._presence.ends(cause)
        self._is_stopped = True
        self._presence.stop()
        self._subscribed.stop()
        if self._alignment is not None:
            self._alignment.stop()
        self.ingest.end()
        self._dead_letters.close()
        self.turns.stop()
        self._intake.closers.remove(self.ingest.close)
        self._intake.client.listeners.remove(self)
        self._overflow.stop()

    def _full(self, is_full: bool) -> None:
        if is_full:
            log.warning(
                "topic %s: more than nats.buffer.bytes=%d wait for the log; nothing is read from NATS until they are less, "
                "and the server cuts slow readers off after 10 s or 64 MiB",
                self.binding.topic,
                self.binding.buffer_bytes,
            )
        self._overflow.changed(is_full)

    def _wait_for_standbys(self, partitions: Iterable[int]) -> None:
        assert self._alignment is not None
        assert isinstance(self.ingest, Ingest)
        self.ingest.hold(partitions)
        self._alignment.call_standbys()

    def _wait_no_longer(self, is_noted: bool) -> None:
        assert isinstance(self.ingest, Ingest)
        self.ingest.let_go(is_noted=is_noted)

    def _step_aside(self) -> None:
        """Have the server deliver nothing for now."""
        why = f"its log takes nothing, and more waits than nats.buffer.bytes={self.binding.buffer_bytes}"
        log.warning(
            "topic %s: %s; it takes no messages meanwhile, so that the other topics on its connection go on",
            self.binding.topic,
            why,
        )
        self._subscribed.to(())
        self._question = None
        self._presence.stepped_aside(why)
        self.ingest.lapses(self._presence.absent_since_ms, why)

    def _come_back(self) -> None:
        log.info("topic %s: its log takes messages again", self.binding.topic)
        self.ingest.rebind(self.binding, self.ingest.partition_count)
        self.ingest.subscribed_anew()
        self._subscribed.to(compile_subscriptions(self.binding.patterns, self.binding.unwanted))
        if self._intake.client.is_connected:
            self._presence.connected()
            self._ask_server()

    # -- the connection

    def connected(self, _info: ServerInfo) -> None:
        self.ingest.subscribed_anew()
        if self._presence.connected():
            self.stats.reconnects += 1
        if self._overflow.is_aside:
            self._presence.stepped_aside("its log takes nothing")
        self._listening()

    def disconnected(self, cause: Cause) -> None:
        self._presence.disconnected(cause)
        self.ingest.lapses(self._presence.absent_since_ms, self._presence.absence)
        wanted = compile_subscriptions(self.binding.patterns, self.binding.unwanted)
        if self._subscribed.patterns != [pattern for pattern, _ in wanted] and not self._overflow.is_aside:
            self.ingest.rebind(self.binding, self.ingest.partition_count)
            self._subscribed.to(wanted)  # what has stayed so as not to miss anything

    def unreachable(self, cause: Cause) -> None:
        self._presence.unreachable(cause)

    def refused(self, _text: str) -> None:
        """The server has refused something; what, the subscriptions know."""
        if self._subscribed.refused:
            self._presence.refused(self._subscribed.refused)
            self.ingest.lapses(self._presence.heard_until_ms, self._subscribed.refused)
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
        if not self._overflow.is_aside and not self._subscribed.refused:
            self._subscribed.are_in_force()
            self._presence.listens()
            self.ingest.listens(self._runtime.time_ms())

    def _has_messages_to_miss(self) -> bool:
        """A template's messages may be for topics that are yet to come, which whoever leads the bound topic answers for.
        A member's may be for any partition."""
        return bool(self.ingest.lanes) or ((self._is_template or self._is_member) and self._leads)
