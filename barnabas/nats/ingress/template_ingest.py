"""Messages for the topics that a template makes of subjects (nats.topic.template).

Every broker of the cluster subscribes, whichever partitions it has, because any of them may lead one of a topic that does not
exist yet. A topic of the template is one whose config nats.template.of names the bound topic. Each has an ingest, as if it
were bound itself (`Derived`): the leaders of its partitions append, followers in sync are standbys, and others drop the
messages. A `Router` gives each message of a subscription to the topic of its subject.

A subject whose topic does not exist yet has it created; its messages wait in their order, at every broker, until this
broker knows the topic and its roles for it. Only the controller decides which topics there may be (at most nats.topic.max), so
all brokers treat a message alike. A message that has no topic is a dead letter of the leader of the bound topic's partition
that the subject's hash selects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from barnabas.controller.metadata.image import TOPIC_RESOURCE
from barnabas.nats.binding.reader import TEMPLATE_OF
from barnabas.nats.client.errors import NatsError
from barnabas.nats.client.headers import find_header
from barnabas.nats.client.protocol import pub
from barnabas.nats.ingress.acks import AckStats
from barnabas.nats.ingress.barrier import ChangeBarrier, StandbyBarrier, change_of
from barnabas.nats.ingress.ingest import Ingest, OnLapses
from barnabas.nats.ingress.roles import roles_of
from barnabas.nats.ingress.template_topics import PendingTopic, TopicMaker, is_of_template
from barnabas.nats.pub_ack import KAFKA_ACK, NO_ACK, PubAckBytes, ack_level
from barnabas.nats.records.partitioners import positive_murmur2
from barnabas.nats.records.routes import SUBJECT_BYTES_KEPT_MAX, SUBJECTS_KEPT_MAX, Wanted
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.dead_letters import DeadLetters
    from barnabas.nats.ingress.backpressure import Budget
    from barnabas.nats.ingress.barrier import BindingChange, ChangeBarrier, StandbyBarrier
    from barnabas.nats.ingress.ingest import Ingest
    from barnabas.nats.ingress.lane import Lane
    from barnabas.nats.ingress.roles import Roles
    from barnabas.nats.ingress.standby import Standby

log = logging.getLogger("barnabas.nats")

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], object]
# Who takes the messages of a subject, and the ingest that this touches; without one it may be another one next time.
Route: TypeAlias = Callable[[bytes], "tuple[Sink, Ingest | None]"]


class Derived:
    """A topic of the template."""

    def __init__(
        self,
        topic: TopicImage,
        ingest: Ingest,
        standby_barrier: StandbyBarrier,
        change_barrier: ChangeBarrier,
    ) -> None:
        self.topic_id = topic.topic_id
        self.partition_count = ingest.partition_count  # the last that was heard of
        self.ingest = ingest
        self.change_barrier = change_barrier
        self.take: Sink = ingest.encoder().take
        self.standby_barrier = standby_barrier
        self._is_aligned = False
        self._has_change_barrier = False

    def serve(self, roles: Roles) -> None:
        self.ingest.serve(*roles)
        if (self.ingest.standbys or self.ingest.joining) and not self._is_aligned:
            self._is_aligned = True
            self.standby_barrier.start()
        elif self.ingest.joining:
            self.standby_barrier.roles_changed()

    def plan(self, change: BindingChange, apply: Callable[[], object]) -> None:
        if not self._has_change_barrier:
            self._has_change_barrier = True
            self.change_barrier.start()
        self.change_barrier.plan(change, apply)

    def rebind(self, binding: Binding, partition_count: int) -> None:
        self.ingest.rebind(binding, partition_count)
        self.take = self.ingest.encoder().take

    def stop(self) -> None:
        if self._is_aligned:
            self.standby_barrier.stop()
        self.change_barrier.stop()
        self.ingest.end()


class Router:
    """The sink of one subscription: messages go to the ingests of their topics."""

    __slots__ = ("by_subject", "take")

    def __init__(self, route: Route, wanted: Wanted | None, touched: dict[Ingest, None]) -> None:
        """`wanted` says of a subject whether this one takes it; `touched` is where ingests are noted that got something."""
        by_subject: dict[bytes, tuple[Sink, Ingest]] = {}
        bytes_kept = 0

        def take(subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
            nonlocal bytes_kept
            try:
                sink, ingest = by_subject[subject]
            except KeyError:
                if wanted is not None and not wanted(subject):
                    return
                sink, found = route(subject)
                if found is None:  # what becomes of the next one may be something else
                    sink(subject, reply, header_block, payload)
                    return
                if len(by_subject) >= SUBJECTS_KEPT_MAX or bytes_kept > SUBJECT_BYTES_KEPT_MAX:
                    by_subject.clear()
                    bytes_kept = 0
                bytes_kept += len(subject)
                ingest = found
                by_subject[subject] = sink, ingest
            sink(subject, reply, header_block, payload)
            touched[ingest] = None

        self.by_subject = by_subject
        self.take = take


LOOK_EVERY_S: Final = 1.0  # at ingests that nothing comes for
_NOTHING: Final[Mapping[int, Partition]] = {}
_NONE: Final[frozenset[int]] = frozenset()


class TemplateIngest:
    """Of one binding with a template; used as an `Ingest` is, where "its partitions" are those of the bound topic."""

    def __init__(
        self,
        host: ExtensionHost,
        client: NatsClient,
        binding: Binding,
        partition_count: int,
        stats: CarrierStats,
        budget: Budget,
        dead_letters: DeadLetters,
        on_lapses: OnLapses,
    ) -> None:
        self.binding = binding
        self.partition_count = partition_count
        self.stats = stats
        self.ack_stats = AckStats()
        self.touched: dict[Ingest, None] = {}  # since `close`
        self.is_new_binding = False
        self.standbys: Mapping[int, Standby] = {}  # its topics have them
        self.joining: Mapping[int, Partition] = _NOTHING
        self._on_lapses = on_lapses
        self._listens_since_ms = 0
        self._host = host
        self._client = client
        self._budget = budget
        self._dead_letters = dead_letters
        self._topics: dict[str, Derived] = {}
        self._maker = TopicMaker(host, binding, budget, self._resolve)
        self._routers: list[Router] = []
        self._leading: frozenset[int] = _NONE
        self._has_looked = False
        self._look_at_s = 0.0

    # -- as an ingest

    @property
    def lanes(self) -> Mapping[tuple[str, int], Lane]:
        return {
            (name, index): lane
            for name, derived in self._topics.items()
            for index, lane in derived.ingest.lanes.items()
        }

    @property
    def problem(self) -> str:
        """Why messages wait for topics, "" when nothing keeps them from being created."""
        return self._maker.problem

    @property
    def is_whole(self) -> bool:
        """Whether all that came is in the logs, as far as that is this broker's matter."""
        return self._maker.is_idle and all(
            derived.ingest.is_whole for derived in self._topics.values() if derived.ingest.lanes
        )

    def encoder(self, wanted: Wanted | None = None) -> Router:
        """One for each subscription; `wanted` says of a subject whether this one takes it."""
        router = Router(self.route, wanted, self.touched)
        self._routers.append(router)
        return router

    def rebind(self, binding: Binding, partition_count: int) -> None:
        """As Ingest.rebind. Messages that wait for their topic go on doing so, under the name that it had when they came."""
        self.close()
        self.binding = binding
        self.partition_count = partition_count
        self._maker.binding = binding
        self._routers.clear()
        for name, derived in self._topics.items():
            derived.rebind(self._binding_of(name), derived.ingest.partition_count)

    def serve(
        self,
        leading: Mapping[int, Partition],
        following: Mapping[int, Partition] = _NOTHING,  # noqa: ARG002
        opening: frozenset[int] = _NONE,  # noqa: ARG002
        joining: Mapping[int, Partition] = _NOTHING,  # noqa: ARG002
    ) -> None:
        """These partitions of the bound topic are led here: for messages that can't be stored."""
        self._leading = frozenset(leading)
        if not self._has_looked:
            self._has_looked = True
            self.topics_changed(_topics_of(self._host, self.binding.topic), is_settled=True)

    def close(self) -> None:
        """Append what was gathered."""
        now_s = self._host.runtime.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            for derived in self._topics.values():
                derived.ingest.close()
        else:
            for ingest in self.touched:
                ingest.close()
        self.touched.clear()

    def end(self) -> None:
        """For good: append what is gathered, and drop what waits."""
        self.stats.lost_estimate += self._maker.close()
        for name in sorted(self._topics):
            self._topics.pop(name).stop()

    def resubscribed(self) -> None:
        """What was published before is not delivered any more."""
        for derived in self._topics.values():
            derived.ingest.resubscribed()

    def lapses(self, since_ms: int, cause: str) -> None:
        """As Ingest.lapses."""
        self._listens_since_ms = 0
        for derived in self._topics.values():
            derived.ingest.lapses(since_ms, cause)

    def listens(self, now_ms: int) -> None:
        """As Ingest.listens."""
        self._listens_since_ms = now_ms
        for derived in self._topics.values():
            derived.ingest.listens(now_ms)

    def may_take_over(self, topic: str, index: int, broker: int, broker_epoch: int | None) -> bool:
        """As StandbyBarrier.may_take_over, of one of the topics."""
        derived = self._topics.get(topic)
        return derived is None or derived.standby_barrier.may_take_over(index, broker, broker_epoch)

    # -- topics

    def names_of(self, topic_ids: Container[bytes]) -> list[str]:
        """Those of these topics that are of the template, also when they are gone."""
        return [name for name, derived in self._topics.items() if derived.topic_id in topic_ids]

    def topics_changed(self, names: Sequence[str], *, is_settled: bool) -> None:
        """Topics with these names have been created, changed or removed, or have other configs, or other leaders."""
        has_changed = False
        image = self._host.controller.image
        for name in names:
            topic = image.topics.get(name)
            derived = self._topics.get(name)
            is_ours = topic is not None and is_of_template(image, name, self.binding.topic)
            if derived is not None and (topic is None or not is_ours or derived.topic_id != topic.topic_id):
                self._topics.pop(name).stop()
                self.touched.pop(derived.ingest, None)
                derived = None
                has_changed = True
            if topic is not None and is_ours:
                if derived is None:
                    derived = self._topics[name] = self._derive(topic)
                    has_changed = True
                self._serve(derived, topic, is_settled)
        if names:
            self._maker.topics_changed()
        if has_changed:
            self._forget()
        for name in names:
            self._resolve(name)

    def _derive(self, topic: TopicImage) -> Derived:
        host, name = self._host, topic.name
        ingest = Ingest(
            host.runtime,
            self._binding_of(name),
            len(topic.partitions),
            self.stats,
            host.cluster_id,
            self._client.publish_encoded,
            self._budget,
            self._dead_letters,
            self._on_lapses,
            ack_stats=self.ack_stats,
        )
        if self._listens_since_ms:
            ingest.listens(self._listens_since_ms)
        standby_barrier = StandbyBarrier(
            host.runtime,
            self._client,
            ingest,
            host.cluster_id,
            host.partitions.proposals,
            lambda: self._listens_since_ms > 0,
        )
        change_barrier = ChangeBarrier(host.runtime, self._client, name, host.cluster_id)
        return Derived(topic, ingest, standby_barrier, change_barrier)

    def _serve(self, derived: Derived, topic: TopicImage, is_settled: bool) -> None:
        count = len(topic.partitions)
        if derived.partition_count != count:
            derived.partition_count = count

            def grow() -> None:
                derived.rebind(derived.ingest.binding, count)
                self._forget()

            change = change_of(self._host, topic, derived.ingest.binding)
            if change is None:
                grow()
            else:
                derived.plan(change, grow)
        derived.serve(roles_of(self._host, topic, is_settled=is_settled))

    def _binding_of(self, name: str) -> Binding:
        return msgspec.structs.replace(self.binding, topic=name, topic_template=None)

    def _forget(self) -> None:
        for router in self._routers:
            router.by_subject.clear()

    # -- messages

    def route(self, subject: bytes) -> tuple[Sink, Ingest | None]:
        """Who takes the messages of a subject, and the ingest that this touches."""
        template = self.binding.topic_template
        assert template is not None
        name = template.expand(subject)
        if name is None:
            why = f"{template.text} makes no topic's name of the subject"
            return partial(self._reject, ErrorCode.INVALID_TOPIC_EXCEPTION, why), None
        derived = self._topics.get(name)
        if derived is not None:
            return derived.take, derived.ingest
        refused = self._maker.refusal(name, len(self._topics))
        if refused is not None:
            return partial(self._reject, *refused), None
        return self._maker.want(name).take, None

    def _resolve(self, name: str) -> None:
        """If it is clear now what becomes of the messages that wait for this topic, let it."""
        derived = self._topics.get(name)
        if derived is not None:
            pending = self._maker.take(name)
            if pending is not None:
                self._let_go(pending, derived.take)
                derived.ingest.close()
            return
        if not self._maker.is_wanted(name):
            return
        refused = self._maker.refusal(name, len(self._topics))
        if refused is not None:
            pending = self._maker.take(name)
            assert pending is not None
            self._let_go(pending, partial(self._reject, *refused))

    def _let_go(self, pending: PendingTopic, sink: Sink) -> None:
        for message in pending.waiting:
            sink(*message)
        pending.emptied()

    def _reject(
        self,
        error: ErrorCode,
        why: str,
        subject: bytes,
        reply: bytes,
        header_block: bytes,
        payload: bytes,
    ) -> None:
        partition = positive_murmur2(subject) % self.partition_count
        if partition not in self._leading:
            return  # another broker's matter

        def answer(error: ErrorCode, why: str) -> None:
            if ack_level(self.binding.acks)(reply, find_header(header_block, KAFKA_ACK)) == NO_ACK:
                return
            body = PubAckBytes(self.binding.topic, partition).failed(error, why)
            try:
                self._client.publish_encoded(pub(reply, body, b"", b""), 1)
            except (NatsError, ValueError):
                self.ack_stats.unsent += 1
            else:
                self.ack_stats.refused += 1

        message = subject, reply, header_block, payload
        self._dead_letters.put_message(message, error, why, answer, self.binding.topic)


def _topics_of(host: ExtensionHost, bound: str) -> list[str]:
    """The topics that are of this one's template, by name."""
    return sorted(
        name
        for (kind, name), configs in host.controller.image.configs.items()
        if kind == TOPIC_RESOURCE and configs.get(TEMPLATE_OF) == bound
    )
