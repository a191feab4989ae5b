"""Messages for the topics that a template makes of subjects (nats.topic.template).

Every broker of the cluster subscribes, whichever partitions it has, because any of them may lead one of a topic that does not
exist yet. A topic of the template is one whose config nats.template.of names the bound topic. Each has an ingest, as if it
were bound itself (`DerivedTopic`): the leaders of its partitions append, followers in sync are standbys, and other brokers drop
the messages. A `Router` gives each message of a subscription to the topic of its subject.

The first message under a subject creates its topic; messages wait in their order, on every broker, until this broker knows the
topic and its roles for it. Only the controller decides which topics there may be (at most nats.topic.max), so all brokers treat
a message alike. A message without a topic goes to the dead letters, by the leader of the bound topic's partition that the
subject's hash selects.
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
from barnabas.nats.ingress.change_barrier import ChangeBarrier, change_of
from barnabas.nats.ingress.ingest import Ingest
from barnabas.nats.ingress.roles import roles_of
from barnabas.nats.ingress.template_topics import PendingTopic, TopicCreator, is_of_template
from barnabas.nats.pub_ack import KAFKA_ACK, NO_ACK, PubAckBytes, ack_level
from barnabas.nats.records.partitioners import positive_murmur2
from barnabas.nats.records.routes import SUBJECT_BYTES_KEPT_MAX, SUBJECTS_KEPT_MAX, Wanted
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.dead_letters import DeadLetters
    from barnabas.nats.ingress.backpressure import Budget
    from barnabas.nats.ingress.change_barrier import BindingChange
    from barnabas.nats.ingress.lane import Lane
    from barnabas.nats.ingress.roles import Roles
    from barnabas.nats.ingress.standbys import OnLapses

log = logging.getLogger("barnabas.nats")

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], object]
# The sink of a subject's messages, and the ingest behind it; without an ingest the next message may have another sink.
Route: TypeAlias = Callable[[bytes], "tuple[Sink, Ingest | None]"]


class DerivedTopic:
    """A topic of the template."""

    def __init__(self, topic: TopicImage, ingest: Ingest, change_barrier: ChangeBarrier) -> None:
        self.topic_id = topic.topic_id
        self.partition_count = ingest.partition_count  # the latest, perhaps to be applied at a mark
        self.ingest = ingest
        self.take: Sink = ingest.encoder().take
        self._change_barrier = change_barrier
        self._has_started_barrier = False

    def change_partition_count(
        self, count: int, change: BindingChange | None, on_changed: Callable[[], object]
    ) -> None:
        """Changes it now, or at the mark of `change`, and calls back."""
        self.partition_count = count

        def grow() -> None:
            self.rebind(self.ingest.binding, count)
            on_changed()

        if change is None:
            grow()
            return
        if not self._has_started_barrier:
            self._has_started_barrier = True
            self._change_barrier.start()
        self._change_barrier.plan(change, grow)

    def rebind(self, binding: Binding, partition_count: int) -> None:
        self.ingest.rebind(binding, partition_count)
        self.take = self.ingest.encoder().take

    def stop(self) -> None:
        self._change_barrier.stop()
        self.ingest.end()


class Router:
    """The sink of one subscription: messages go to the ingests of their topics."""

    __slots__ = ("by_subject", "take")

    def __init__(self, route: Route, wanted: Wanted | None, touched: dict[Ingest, None]) -> None:
        """`wanted` says of a subject whether this subscription takes it; `touched` collects the ingests that got messages."""
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
                if found is None:  # the next message may have another sink
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


CLOSE_ALL_EVERY_S: Final = 1.0  # also ingests without new messages: their standbys need it


class TemplateIngest:
    """The ingest of a binding with a template. CoreBinding uses it as an `Ingest`, with the roles for the bound topic."""

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
        self._on_lapses = on_lapses
        self._subscribed_ms = 0
        self._host = host
        self._client = client
        self._budget = budget
        self._dead_letters = dead_letters
        self._topics: dict[str, DerivedTopic] = {}
        self._creator = TopicCreator(host, binding, budget, self._resolve)
        self._routers: list[Router] = []
        self._leading: frozenset[int] = frozenset()
        self._has_topics = False
        self._close_all_at_s = 0.0

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
        """Why topics that messages wait for can't be created yet, or ""."""
        return self._creator.problem

    @property
    def is_whole(self) -> bool:
        """Whether all messages for topics that have leaders here are in their logs."""
        return self._creator.is_idle and all(
            derived.ingest.is_whole for derived in self._topics.values() if derived.ingest.lanes
        )

    def encoder(self, wanted: Wanted | None = None) -> Router:
        """Makes the router of a subscription; `wanted` says of a subject whether this one takes it."""
        router = Router(self.route, wanted, self.touched)
        self._routers.append(router)
        return router

    def rebind(self, binding: Binding, partition_count: int) -> None:
        """As Ingest.rebind. Messages that wait for their topic keep its name."""
        self.close()
        self.binding = binding
        self.partition_count = partition_count
        self._creator.binding = binding
        self._routers.clear()
        for name, derived in self._topics.items():
            derived.rebind(self._binding_of(name), derived.ingest.partition_count)

    def serve(self, roles: Roles) -> None:
        """The roles for partitions of the bound topic: their leaders put messages that can't be stored into dead letters."""
        self._leading = frozenset(roles.leading)
        if not self._has_topics:
            self._has_topics = True
            self.topics_changed(_topics_of(self._host, self.binding.topic), is_settled=True)

    def close(self) -> None:
        """Appends the messages that were gathered."""
        now_s = self._host.runtime.monotonic()
        if now_s >= self._close_all_at_s:
            self._close_all_at_s = now_s + CLOSE_ALL_EVERY_S
            for derived in self._topics.values():
                derived.ingest.close()
        else:
            for ingest in self.touched:
                ingest.close()
        self.touched.clear()

    def end(self) -> None:
        """Ends for good: appends the messages that were gathered, and drops those that wait."""
        self.stats.lost_estimate += self._creator.close()
        for name in sorted(self._topics):
            self._topics.pop(name).stop()

    def resubscribed(self) -> None:
        for derived in self._topics.values():
            derived.ingest.resubscribed()

    def interrupted(self, since_ms: int, cause: str) -> None:
        self._subscribed_ms = 0
        for derived in self._topics.values():
            derived.ingest.interrupted(since_ms, cause)

    def subscribed(self, now_ms: int) -> None:
        self._subscribed_ms = now_ms
        for derived in self._topics.values():
            derived.ingest.subscribed(now_ms)

    def may_take_over(self, topic: str, index: int, broker: int, broker_epoch: int | None) -> bool:
        derived = self._topics.get(topic)
        return derived is None or derived.ingest.may_take_over(topic, index, broker, broker_epoch)

    # -- topics

    def names_of(self, topic_ids: Container[bytes]) -> list[str]:
        """The topics of the template among these, also deleted ones."""
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
            self._creator.topics_changed()
        if has_changed:
            self._forget_routes()
        for name in names:
            self._resolve(name)

    def _derive(self, topic: TopicImage) -> DerivedTopic:
        host, name = self._host, topic.name
        ingest = Ingest(
            host,
            self._client,
            self._binding_of(name),
            len(topic.partitions),
            self.stats,
            self._budget,
            self._dead_letters,
            self._on_lapses,
            ack_stats=self.ack_stats,
        )
        if self._subscribed_ms:
            ingest.subscribed(self._subscribed_ms)
        return DerivedTopic(topic, ingest, ChangeBarrier(host.runtime, self._client, name, host.cluster_id))

    def _serve(self, derived: DerivedTopic, topic: TopicImage, is_settled: bool) -> None:
        count = len(topic.partitions)
        if derived.partition_count != count:
            change = change_of(self._host, topic, derived.ingest.binding)
            derived.change_partition_count(count, change, self._forget_routes)
        derived.ingest.serve(roles_of(self._host, topic, is_settled=is_settled))

    def _binding_of(self, name: str) -> Binding:
        return msgspec.structs.replace(self.binding, topic=name, topic_template=None)

    def _forget_routes(self) -> None:
        for router in self._routers:
            router.by_subject.clear()

    # -- messages

    def route(self, subject: bytes) -> tuple[Sink, Ingest | None]:
        """The sink of a subject's messages, and the ingest behind it."""
        template = self.binding.topic_template
        assert template is not None
        name = template.expand(subject)
        if name is None:
            why = f"{template.text} makes no topic name of the subject"
            return partial(self._reject, ErrorCode.INVALID_TOPIC_EXCEPTION, why), None
        derived = self._topics.get(name)
        if derived is not None:
            return derived.take, derived.ingest
        refused = self._creator.refusal(name, len(self._topics))
        if refused is not None:
            return partial(self._reject, *refused), None
        return self._creator.request(name).take, None

    def _resolve(self, name: str) -> None:
        """Takes or refuses the messages that wait for this topic, if that is decided."""
        derived = self._topics.get(name)
        if derived is not None:
            pending = self._creator.take(name)
            if pending is not None:
                self._take_waiting(pending, derived.take)
                derived.ingest.close()
            return
        if not self._creator.is_pending(name):
            return
        refused = self._creator.refusal(name, len(self._topics))
        if refused is not None:
            pending = self._creator.take(name)
            assert pending is not None
            self._take_waiting(pending, partial(self._reject, *refused))

    def _take_waiting(self, pending: PendingTopic, sink: Sink) -> None:
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
            return  # another broker handles it

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
    """The topics of this one's template, by name."""
    return sorted(
        name
        for (kind, name), configs in host.controller.image.configs.items()
        if kind == TOPIC_RESOURCE and configs.get(TEMPLATE_OF) == bound
    )
