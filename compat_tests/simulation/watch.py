"""Observes the nodes of a simulation: the metadata that each applies, and counters.

The checks here run during the simulation, so a violation stops it where it happens.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.image import INTERNAL_TOPICS, MetadataImage, PartitionState
from barnabas.controller.metadata.records import encode_record
from barnabas.controller.raft.messages import SnapshotChunk
from barnabas.controller.raft.transport import GuardedTransport
from barnabas.storage.log.log import Log
from compat_tests.simulation.history import History, name

CUT_TO = Log.cut_to
# Methods of the nodes' code whose calls are counted: (class, method, counter).
COUNTED: tuple[tuple[Any, str, str], ...] = (
    (Log, "cut_to", "truncations"),
    (Log, "restart_behind", "logs that begin behind the tier"),
    (Log, "restart_at", "full truncations"),
    (Controller, "_replace", "metadata snapshots loaded"),
    (Controller, "_snapshot", "metadata snapshots written"),
)


class Watch:
    """Observer of one simulation. The nodes run the real code; `installed` wraps some of its methods."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.leaders: dict[tuple[bytes, int, int], int] = {}  # (topic id, partition, leader epoch) -> leader
        self.states: dict[tuple[bytes, int, int], PartitionState] = {}  # ... partition epoch -> the state
        self.groups: dict[int, tuple[int, int]] = {}  # offset before a group -> (its records, their CRC)
        self.violations: list[str] = []
        self.problems: list[str] = []  # errors in the nodes' own log
        self.newest: dict[tuple[bytes, int], PartitionState] = {}
        self.current_event: Callable[[], str] = lambda: ""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wraps the methods while the simulation runs."""
        handler = _Problems(self)
        logger = logging.getLogger("barnabas")
        propagate, level = logger.propagate, logger.level
        logger.propagate = False
        logger.setLevel(logging.WARNING)
        library = logging.getLogger("pysyncobj")
        for each in (logger, library):
            each.addHandler(handler)
        try:
            with ExitStack() as stack:
                stack.enter_context(mock.patch.object(Controller, "_apply", self._wrap(Controller._apply)))
                stack.enter_context(mock.patch.object(Controller, "open", self._wrap_open(Controller.open)))
                pieces = self._wrap_piece(GuardedTransport._chunk)
                stack.enter_context(mock.patch.object(GuardedTransport, "_chunk", pieces))
                for owner, method, what in COUNTED:
                    if hasattr(owner, method):
                        counted = self._counted(getattr(owner, method), what)
                        stack.enter_context(mock.patch.object(owner, method, counted))
                yield
        finally:
            for each in (logger, library):
                each.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)

    def _wrap(self, apply: Callable[[Controller, Sequence[bytes]], None]) -> Any:
        def applied(controller: Controller, records: Sequence[bytes]) -> None:
            if controller._started and records:
                self._group(controller.image.offset, records)
            apply(controller, records)

        return applied

    def _wrap_piece(self, take_piece: Callable[..., None]) -> Any:
        def taken(transport: GuardedTransport, node_id: int, number: int, piece: SnapshotChunk) -> None:
            if len(piece.data) < piece.size:
                self.history.count("metadata snapshots' pieces")
                if transport._journal.last_index > transport._library.applied_index:
                    self.history.count("metadata snapshots' pieces for voters with uncommitted entries")
            take_piece(transport, node_id, number, piece)

        return taken

    def _wrap_open(self, open_controller: Callable[[Controller], None]) -> Any:
        def opened(controller: Controller) -> None:
            open_controller(controller)
            self._follow(controller)

        return opened

    def _violated(self, what: str) -> None:
        """Stores a violation for the simulation: the code under test would handle an exception as its own."""
        self.violations.append(f"{self.current_event()}: {what}")

    def _counted(self, method: Callable[..., Any], what: str) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            if method is not CUT_TO or arguments[1] < arguments[0].log_end_offset:
                self.history.count(what)
            return method(*arguments, **named)

        return called

    def _group(self, offset: int, records: Sequence[bytes]) -> None:
        """Checks a committed group that a node applies: all nodes apply the same groups."""
        crc = 0
        for record in records:
            crc = zlib.crc32(record, crc)
        found = self.groups.setdefault(offset, (len(records), crc))
        if found != (len(records), crc):
            self._violated(
                f"{self.current_event()} applies {len(records)} records with CRC {crc:08x} after metadata offset {offset}, "
                f"another node applied {found[0]} with CRC {found[1]:08x}"
            )

    def _follow(self, controller: Controller) -> None:
        """Follows the metadata of a node that has started."""
        controller.add_listener(self._changed)
        controller.on_activity(self._activity)
        for topic in controller.image.topics.values():
            self._look(controller.image, topic.topic_id)

    def _activity(self, is_active: bool) -> None:
        if is_active:
            self.history.count("controller elections")

    def _changed(self, image: MetadataImage, topic_ids: Iterable[bytes], _names: set[str]) -> None:
        for topic_id in sorted(topic_ids):
            self._look(image, topic_id)

    def _look(self, image: MetadataImage, topic_id: bytes) -> None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            return
        for index, state in topic.partitions.items():
            partition = topic_id, index
            known = self.states.get((*partition, state.partition_epoch))
            if known is state or known == state:
                continue
            if known is not None:
                self._violated(
                    f"{self.current_event()}: {name(partition)} in partition epoch {state.partition_epoch} is {state}, "
                    f"on another node {known}"
                )
            self.states[(*partition, state.partition_epoch)] = state
            if state.leader >= 0:
                leader = self.leaders.setdefault((*partition, state.leader_epoch), state.leader)
                if leader != state.leader:
                    self._violated(
                        f"{name(partition)} has the leaders {leader} and {state.leader} in epoch {state.leader_epoch}"
                    )
                if state.leader not in state.isr:
                    self._violated(f"{name(partition)} is led by {state.leader}, its ISR is {state.isr}")
            if not set(state.isr) <= set(state.replicas):
                self._violated(f"the ISR of {name(partition)} is {state.isr}, its replicas {state.replicas}")
            self._count(topic.name, partition, state)

    def _count(self, topic: str, partition: tuple[bytes, int], state: PartitionState) -> None:
        before = self.newest.get(partition)
        if before is None:
            self.newest[partition] = state
            return
        if before.partition_epoch >= state.partition_epoch:
            return
        self.newest[partition] = state
        count = self.history.count
        if len(state.isr) < len(before.isr):
            count("ISR shrinks")
        if len(state.isr) > len(before.isr):
            count("ISR growths")
        if state.leader != before.leader and state.leader >= 0:
            count("coordinator moves" if topic in INTERNAL_TOPICS else "leader changes")
        if state.leader < 0 <= before.leader:
            count("partitions without a leader")
        if state.leader >= 0 and state.leader not in before.isr:
            clean = state.leader in before.eligible_leader_replicas
            count("elections from the ELR" if clean else "unclean elections")
        if state.replicas != before.replicas:
            count("replica changes")
        if state.eligible_leader_replicas and not before.eligible_leader_replicas:
            count("ELR in use")


def digest(image: MetadataImage) -> int:
    """CRC of everything in an image."""
    crc = 0
    for record in image.records():
        crc = zlib.crc32(encode_record(record), crc)
    return crc


class _Problems(logging.Handler):
    """Collects bugs from the log: exceptions, also handled ones, and errors without an explanation."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.WARNING)
        self._watch = watch
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{self._watch.current_event()} {record.levelname} {record.name}: {record.getMessage()}"
        short = record.getMessage()[:60]
        if short != self._last:  # a full disk logs the same line very often
            self._watch.history.log.append(text)
        self._last = short
        if record.name.startswith("pysyncobj") and record.levelno >= logging.ERROR:
            # pysyncobj logs an error when it truncates applied entries.
            self._watch.violations.append(text)
        if record.exc_info and record.exc_info[0] is not None:
            self._watch.problems.append(f"{text}\n{logging.Formatter().formatException(record.exc_info)}")
