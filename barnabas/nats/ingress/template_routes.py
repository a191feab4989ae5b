"""What stands between a subscription with a template and the logs: the topics that the template has made, and who of them
takes which subject."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from barnabas.nats.records.routes import SUBJECT_BYTES_KEPT_MAX, SUBJECTS_KEPT_MAX, Wanted

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import TopicImage
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.ingress.barrier import BindingChange, ChangeBarrier, StandbyBarrier
    from barnabas.nats.ingress.ingest import Ingest
    from barnabas.nats.ingress.roles import Roles

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

    def plan(self, change: BindingChange, take_up: Callable[[], object]) -> None:
        if not self._has_change_barrier:
            self._has_change_barrier = True
            self.change_barrier.start()
        self.change_barrier.plan(change, take_up)

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
