"""The bridge: follows which topics are bound to NATS, and runs the carriers of their bindings on this broker.

It follows the committed metadata. A topic whose configs make a binding gets its carriers as soon as this broker leads a
partition of it, and loses them when it leads none; a change of configs replaces only the carriers whose part of the binding
has changed. Nothing here waits for a server: carriers try again, and Kafka's clients are served meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.extension import Report
from barnabas.nats.bound_topic import BoundTopic
from barnabas.nats.carrier_factory import CarrierFactory
from barnabas.nats.cluster.positions import Positions
from barnabas.nats.configs import topics_with_configs
from barnabas.nats.connections import NatsConnections, when_all
from barnabas.nats.ingress.template_ingest import TemplateIngest
from barnabas.nats.jetstream.at_least_once import AtLeastOnce
from barnabas.nats.listing import BindingsService, describe, entry
from barnabas.nats.overview import overview, refused_overview
from barnabas.nats.size_limits import SizeWarnings
from barnabas.nats.stored_bindings import StoredBindings

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.metrics.families import Family
    from barnabas.broker.partitions.replica import LocalReplica, RemoteReplica
    from barnabas.controller.metadata.image import MetadataImage, TopicChanges, TopicImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.client.connection_settings import ConnectionSettings
    from barnabas.nats.ingress.gap_checkpoint import GapCheckpoint
    from barnabas.nats.overview import Overview
    from barnabas.runtime.interface import Timer

log = logging.getLogger("barnabas.nats")

SETTLES_WITHIN_S: Final = 2.0  # an admin client waits no longer than this for a server that does not answer
CHECKPOINT_EVERY_S: Final = 1.0
LEAVE_S: Final = 5.0


class NatsBridge:
    """`start` when the partitions have been opened, `stop` before they are closed. All calls on the loop's thread."""

    def __init__(
        self, host: ExtensionHost, settings: Mapping[str, ConnectionSettings], gap_checkpoint: GapCheckpoint
    ) -> None:
        """`settings` by the name of the connection; "" is that of nats.servers."""
        self._host = host
        self.connections = NatsConnections(host.runtime, settings, host.node_id, host.cluster_id)
        self._positions = Positions(host)
        self._factory = CarrierFactory(host, self.connections, self._positions)
        self._size_warnings = SizeWarnings(self.connections)
        self.topics: dict[str, BoundTopic] = {}
        self._stored = StoredBindings()
        self._is_stopped = False
        self._gap_checkpoint = gap_checkpoint
        self._timer: Timer | None = None

    def start(self) -> None:
        """Blocking."""
        controller = self._host.controller
        names = sorted(topics_with_configs(controller.image))
        received = self._gap_checkpoint.load()
        for name in names:
            topic, binding = self._read(name)
            if topic is not None and binding is not None:
                until_ms = received.until_ms.get(topic.topic_id, 0)
                self._bind(
                    topic,
                    binding,
                    missed="the broker was restarted",
                    received_until_ms=until_ms,
                    since_ms=until_ms if received.is_valid else 0,
                )
        for connection in self.connections.names():
            self._answer_on(connection)
        self._refresh(names)
        controller.add_listener(self._metadata_changed)
        self._timer = self._host.runtime.call_later(CHECKPOINT_EVERY_S, self._checkpoint)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        received = self._received_until()
        for name in sorted(self.topics):
            self.topics[name].gaps.leave()
            self._end(name, "the broker stops")
        self._gap_checkpoint.close(received)
        self._positions.close()
        self.connections.stop()

    def leave(self, left: Callable[[], object]) -> None:
        """Before `stop`, while there are leaders to produce to: leaves the queue groups and the durable consumers, and calls
        `left()` when the messages received are in the logs, or after LEAVE_S."""
        members: list[Callable[[Callable[[], object]], object]] = []
        for bound in self.topics.values():
            if bound.core is not None and bound.binding.queue_group:
                members.append(bound.core.leave_group)
            members += [each.leave for each in bound.carriers if isinstance(each, AtLeastOnce)]

        def has_left(have_all: bool) -> None:
            if not have_all:
                log.warning(
                    "messages that were received are not stored yet: those of queue groups are lost, streams deliver theirs"
                    " again"
                )
            left()

        when_all(self._host.runtime, members, LEAVE_S, has_left)

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Calls back when the servers know the subscriptions of the changes so far, or after SETTLES_WITHIN_S."""
        planned = [
            bound.core.change_barrier
            for bound in self.topics.values()
            if bound.core is not None and bound.core.change_barrier.has_planned
        ]
        if planned:  # one after the other; they are soon done
            planned[0].when_done(lambda: self.when_settled(callback))
        else:
            self.connections.when_flushed(SETTLES_WITHIN_S, callback)

    # -- what is bound

    def _metadata_changed(
        self, image: MetadataImage, topics: TopicChanges, config_topics: Iterable[str]
    ) -> None:
        names = {topic.name for topic_id in topics if (topic := image.topic_by_id(topic_id)) is not None}
        names.update(config_topics)
        names.update(name for name, bound in self.topics.items() if bound.topic_id in topics)
        for templates in self._templates():
            names.update(templates.names_of(topics))
        if not names:
            return
        partitions = self._host.partitions
        refresh = partial(self._refresh, sorted(names))
        partitions.when_roles_taken(lambda: refresh(is_settled=False))
        partitions.when_settled(refresh)  # partitions that are new here have been opened by then

    def _refresh(self, names: Sequence[str], is_settled: bool = True) -> None:
        if self._is_stopped:
            return
        image = self._host.controller.image
        self._stored.forget_others(image.topics)
        for name in names:
            try:
                self._refresh_one(name, is_settled)
            except Exception:  # of one binding; the others, and other listeners, go on
                log.exception("topic %s: its binding can't be carried out", name)
        for templates in self._templates():
            templates.topics_changed(names, is_settled=is_settled)

    def _refresh_one(self, name: str, is_settled: bool) -> None:
        topic, binding = self._read(name)
        bound = self.topics.get(name)
        if bound is not None and (topic is None or binding is None or bound.topic_id != topic.topic_id):
            self._end(name, "the topic was deleted" if topic is None else "it is bound no more")
            bound = None
        if topic is None or binding is None:
            return
        if bound is None:
            bound = self._bind(topic, binding)
        bound.update(topic, binding, is_settled=is_settled)

    def _read(self, name: str) -> tuple[TopicImage | None, Binding | None]:
        image = self._host.controller.image
        topic = image.topics.get(name)
        return topic, self._stored.read(name, image.topic_configs(name)) if topic is not None else None

    def _templates(self) -> list[TemplateIngest]:
        """The ingests of templates, whose topics are not bound themselves."""
        ingests = (bound.core.ingest for bound in self.topics.values() if bound.core is not None)
        return [each for each in ingests if isinstance(each, TemplateIngest)]

    def _bind(
        self,
        topic: TopicImage,
        binding: Binding,
        *,
        missed: str = "",
        received_until_ms: int = 0,
        since_ms: int = 0,
    ) -> BoundTopic:
        bound = self.topics[binding.topic] = BoundTopic(
            self._host,
            self._factory,
            topic,
            binding,
            partial(self._refresh, [binding.topic]),
            self._checkpoint_new_binding,
            missed=missed,
            received_until_ms=received_until_ms,
            since_ms=since_ms,
        )
        return bound

    def may_take_over(self, partition: LocalReplica, replica: RemoteReplica) -> bool:
        """Whether a follower of a bound partition has the messages that its leader has not appended yet."""
        topic = partition.topic
        bound = self.topics.get(topic)
        cores = [each.core for each in self.topics.values()] if bound is None else [bound.core]
        return all(
            core.may_take_over(topic, partition.partition, replica.broker_id, replica.broker_epoch)
            for core in cores
            if core is not None and (bound is not None or core.binding.topic_template is not None)
        )

    # -- listing and metrics

    def metrics(self) -> Iterable[Family]:
        from barnabas.nats.metrics import nats_metrics  # late: only where metrics are served

        return nats_metrics(list(self.overviews()), self.connections.clients(), self._host.runtime.time_ms())

    def report(self) -> Report:
        overviews = self.overviews()  # the rows are made later, one at a time
        return Report("nats", (entry(each) for each in sorted(overviews, key=lambda each: each.topic)))

    def overviews(self) -> list[Overview]:
        """The bindings of topics of which partitions are led here, invalid ones included."""
        found = [
            overview(
                bound.binding,
                list(bound.leading),
                bound.all(),
                bound.core_stats,
                self._size_warnings.of(bound.binding, bound.leading),
            )
            for bound in self.topics.values()
            if bound.leading
        ]
        for name in self._stored.refused:
            partitions = self._host.partitions.of_topic(name)
            leading = [index for index in sorted(partitions) if partitions[index].is_leader]
            if leading:
                found.append(refused_overview(name, self._stored.refused[name], leading))
        return found

    def _answer_on(self, connection: str) -> None:
        """Answers requests for the listing, whether a topic is bound to this connection or not."""
        host = self._host

        def answer(subject: bytes, bytes_max: int) -> bytes:
            return describe(
                self.overviews(),
                host.node_id,
                host.cluster_id,
                subject,
                connection=connection,
                bytes_max=bytes_max,
            )

        BindingsService(self.connections.outlet(connection), answer, host.runtime.monotonic)

    def _end(self, name: str, why: str) -> None:
        self.topics.pop(name).stop(why=why)

    # -- the checkpoint of gaps

    def _received_until(self) -> dict[bytes, int]:
        return {bound.topic_id: bound.gaps.until_ms for bound in self.topics.values() if bound.gaps.until_ms}

    def _checkpoint_new_binding(self) -> None:
        """A new binding does not wait for the next second: after a crash only what is on disk is known."""
        if not self._is_stopped:
            self._gap_checkpoint.note(self._received_until())

    def _checkpoint(self) -> None:
        self._size_warnings.log((bound.binding, bound.leading) for bound in self.topics.values())
        self._gap_checkpoint.note(self._received_until())
        self._timer = self._host.runtime.call_later(CHECKPOINT_EVERY_S, self._checkpoint)
