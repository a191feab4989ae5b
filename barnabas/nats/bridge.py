"""The bridge: follows which topics are bound to NATS, and runs the carriers of their bindings on this broker.

It follows the committed metadata. A topic whose configs make a binding gets its carriers as soon as this broker leads a
partition of it, and loses them when it leads none; a change of configs replaces those carriers alone whose part of the
binding has changed. Nothing here waits for a server: carriers go on trying, and the Kafka side never notices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.controller.metadata.image import TOPIC_RESOURCE
from barnabas.nats.bound_topic import BoundTopic
from barnabas.nats.carrier import CarrierStats
from barnabas.nats.carriers import make_carriers, make_core
from barnabas.nats.cluster.positions import Positions
from barnabas.nats.configs import PREFIX
from barnabas.nats.connections import NatsConnections
from barnabas.nats.ingress.barrier import change_of
from barnabas.nats.ingress.gap_tracker import GapLog
from barnabas.nats.ingress.roles import roles_of
from barnabas.nats.ingress.template_ingest import TemplateIngest
from barnabas.nats.jetstream.at_least_once import AtLeastOnce
from barnabas.nats.overview import overview, refused_overview
from barnabas.nats.registry import BindingsService, describe
from barnabas.nats.size_limits import log_size_warnings, size_warning_of
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
        self._positions = Positions(host)  # of what is published
        self.topics: dict[str, BoundTopic] = {}
        self._stored = StoredBindings()
        self._is_stopped = False
        self._gap_checkpoint = gap_checkpoint
        self._timer: Timer | None = None

    def start(self) -> None:
        """Blocking."""
        controller = self._host.controller
        names = _configured(controller.image)
        received = self._gap_checkpoint.load()
        for name in names:
            bound = self._bind(name)
            if bound is not None:
                bound.missed = "the broker was restarted"
                known_ms = received.until_ms.get(bound.topic_id, 0)
                bound.gaps.until_ms = known_ms
                bound.since_ms = known_ms if received.is_valid else 0
        for connection in self.connections.names():
            self._answer_on(connection)
        self._refresh(names)
        controller.add_listener(self._metadata_changed)
        self._timer = self._host.runtime.call_later(CHECKPOINT_EVERY_S, self._note_gap_checkpoint)

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
        """Before `stop`, while there are leaders to produce to: leave the queue groups and the durable consumers, and call
        `left()` when what came here is in the logs; soon in any case."""
        members: list[Callable[[Callable[[], object]], object]] = []
        for bound in self.topics.values():
            if bound.core is not None and bound.binding.queue_group:
                members.append(bound.core.leave_group)
            members += [each.leave for each in bound.carriers if isinstance(each, AtLeastOnce)]
        missing = len(members)
        if not missing:
            left()
            return

        def one_has() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                timer.cancel()
                left()

        def too_late() -> None:
            nonlocal missing
            missing = 0
            log.warning(
                "messages that have come are not stored yet: those of queue groups are lost, streams deliver theirs again"
            )
            left()

        timer = self._host.runtime.call_later(LEAVE_S, too_late)
        for member in members:
            member(one_has)

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Call back when the servers know what is subscribed to, as of the changes so far; soon in any case."""
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
            except Exception:  # other bindings, and other listeners of the metadata, go on
                log.exception("topic %s: its binding can't be carried out", name)
        for templates in self._templates():
            templates.topics_changed(names, is_settled=is_settled)

    def _refresh_one(self, name: str, is_settled: bool) -> None:
        image = self._host.controller.image
        topic = image.topics.get(name)
        binding = self._stored.read(name, image.topic_configs(name)) if topic is not None else None
        bound = self.topics.get(name)
        if bound is not None and (topic is None or binding is None or bound.topic_id != topic.topic_id):
            self._end(
                name, "the topic was deleted" if binding is None and topic is None else "it is bound no more"
            )
            bound = None
        if binding is None:
            return
        if bound is None:
            bound = self._bind(name)
        if bound is not None:
            self._update(bound, binding, is_settled)

    def _templates(self) -> list[TemplateIngest]:
        """Those who follow topics that are not bound themselves."""
        ingests = (bound.core.ingest for bound in self.topics.values() if bound.core is not None)
        return [each for each in ingests if isinstance(each, TemplateIngest)]

    def _bind(self, name: str) -> BoundTopic | None:
        """Nothing is carried out yet."""
        image = self._host.controller.image
        topic = image.topics.get(name)
        binding = self._stored.read(name, image.topic_configs(name)) if topic is not None else None
        if topic is None or binding is None:
            return None
        stats = CarrierStats()
        gaps = GapLog(name, stats, self._host.runtime.time_ms, self._gap_checkpoint_known)
        bound = self.topics[name] = BoundTopic(topic.topic_id, binding, gaps, stats)
        return bound

    def _update(self, bound: BoundTopic, binding: Binding, is_settled: bool) -> None:
        topic = self._host.controller.image.topics[binding.topic]
        roles = roles_of(self._host, topic, is_settled=is_settled)
        again = partial(self._refresh, [binding.topic])
        if bound.waits_to_rest(binding, roles.leading, self._host.runtime, again):
            return
        partition_count = len(topic.partitions)
        change, is_newcomer = None, False
        if bound.binding != binding or bound.partition_count != partition_count:
            change = change_of(self._host, topic, binding)
            is_newcomer = bound.core is None and 0 <= bound.partition_count != partition_count
            bound.change(binding, partition_count, change)
        leading = bound.leading = roles.leading
        if binding.paused and leading and bound.missed and bound.gaps.until_ms:
            bound.gaps.begin(bound.gaps.until_ms, "the binding is paused")
        if binding.paused or (roles.are_none and not self._takes_for_others(binding, topic)):
            bound.stop(why="no partition of it is led or followed here")
            return
        if bound.core is not None:
            bound.core.roles_changed(*roles)
        else:
            bound.core = make_core(self._host, self.connections, binding, bound.core_stats, bound.gaps)
            if bound.core is not None:
                bound.core.start(
                    *roles,
                    missed=bound.missed,
                    since_ms=bound.since_ms,
                    change=change if is_newcomer else None,
                )
            bound.missed, bound.since_ms = "", 0
        if not leading:
            if bound.carriers:
                log.info("topic %s: its partitions are led elsewhere", binding.topic)
            for carrier in bound.carriers:
                carrier.stop()
            bound.carriers = []
        elif bound.carriers:
            for carrier in bound.carriers:
                carrier.roles_changed(leading)
        else:
            bound.carriers = make_carriers(self._host, self.connections, self._positions, binding)
            for carrier in bound.carriers:
                carrier.start(leading)

    def _takes_for_others(self, binding: Binding, topic: TopicImage) -> bool:
        """Whether it takes messages though there is no partition that they may be for here."""
        if binding.topic_template is not None:
            return True
        node_id = self._host.node_id
        return bool(binding.queue_group) and any(
            node_id in state.replicas for state in topic.partitions.values()
        )

    def may_take_over(self, partition: LocalReplica, replica: RemoteReplica) -> bool:
        """A bound partition's leader holds messages that are not in its log yet."""
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

    def overviews(self) -> list[Overview]:
        """The bindings of topics of which partitions are led here, and of those that can't be read."""
        found = [
            overview(
                bound.binding,
                list(bound.leading),
                bound.all(),
                bound.core_stats,
                size_warning_of(bound, self.connections),
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
        """Answer requests for the listing, whether a topic is bound to this connection or not."""
        client = self.connections.outlet(connection)
        assert client is not None
        host = self._host

        def tell(subject: bytes, bytes_max: int) -> bytes:
            return describe(
                self.overviews(),
                host.node_id,
                host.cluster_id,
                subject,
                connection=connection,
                bytes_max=bytes_max,
            )

        BindingsService(client, tell, host.runtime.monotonic)

    def _end(self, name: str, why: str) -> None:
        self.topics.pop(name).stop(why=why)

    # -- since when

    def _received_until(self) -> dict[bytes, int]:
        return {bound.topic_id: bound.gaps.until_ms for bound in self.topics.values() if bound.gaps.until_ms}

    def _gap_checkpoint_known(self) -> None:
        """A binding that is new may not wait for the next second: what is not written down when the broker dies is not
        known after it."""
        if not self._is_stopped:
            self._gap_checkpoint.note(self._received_until())

    def _note_gap_checkpoint(self) -> None:
        log_size_warnings(self.topics, self.connections)
        self._gap_checkpoint.note(self._received_until())
        self._timer = self._host.runtime.call_later(CHECKPOINT_EVERY_S, self._note_gap_checkpoint)


def _configured(image: MetadataImage) -> list[str]:
    """Topics that have a nats.* config."""
    return sorted(
        name
        for (kind, name), configs in image.configs.items()
        if kind == TOPIC_RESOURCE and any(each.startswith(PREFIX) for each in configs)
    )
