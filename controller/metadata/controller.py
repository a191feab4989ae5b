"""The controller: decide -> propose -> commit -> replay -> call the listeners -> answer.

Operations are decided one after the other, each against an image that has the effects of all decisions before it, so several
can wait for the same commit. That image (`_decided`) is ahead of the committed one (`image`), which is the only one that other
parts see. When a commit fails, decisions made on top of it fail as well, and `_decided` starts again from the committed image.

An operation that may change every partition is decided in steps, each when the one before it is committed: no turn of the loop is
long, and no group too large for the log. Other operations wait for its last step.

Every node has a controller, and its image follows what is committed; only the active one decides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from barnabas.controller.metadata.decision import Decision, Steps
from barnabas.controller.metadata.errors import MetadataError, NotController
from barnabas.controller.metadata.image import TOPIC_RESOURCE, MetadataDelta, MetadataImage, TopicChanges
from barnabas.controller.metadata.metadata_log import MetadataLog
from barnabas.controller.metadata.records import decode_record, encode_record
from barnabas.wire.errors import ErrorCode

R = TypeVar("R")

TopicListener = Callable[[MetadataImage, TopicChanges, set[str]], object]
BrokerListener = Callable[[MetadataImage, set[int]], object]
QuotaListener = Callable[[MetadataImage], object]
ConfigListener = Callable[[MetadataImage, set[tuple[int, str]]], object]
Failed = Callable[[ErrorCode, str], object]
Operation = Callable[[MetadataImage], Decision[R] | Steps[R]]

STEP_RECORDS: Final = 2500  # some 50 ms to decide and encode

log = logging.getLogger("barnabas.controller")


class _Group(msgspec.Struct, frozen=True):
    """Records that are committed together, as the log gets them and as they are read from there."""

    encoded: list[bytes]
    records: list[msgspec.Struct]


class _Waiting(msgspec.Struct, frozen=True):
    """An operation that is run after the steps of another one."""

    operation: Operation[Any]
    done: Callable[[Any], object]
    failed: Failed | None


class Controller:
    """Decides changes of the cluster's metadata and follows committed ones. All calls on the loop's thread."""

    def __init__(
        self,
        metadata_log: MetadataLog,
        answer_after: Callable[[Callable[[], object]], object] = lambda answer: answer(),
    ) -> None:
        """`answer_after(answer)` calls `answer` once the work that the listeners have begun is done; changes are answered
        then."""
        self.image = MetadataImage()
        self._decided = MetadataImage()
        self._log = metadata_log
        self._topic_listeners: list[TopicListener] = []
        self._config_listeners: list[ConfigListener] = []
        self._broker_listeners: list[BrokerListener] = []
        self._quota_listeners: list[QuotaListener] = []
        self._acl_listeners: list[Callable[[], object]] = []
        self._image_listeners: list[Callable[[MetadataImage], object]] = []
        self._activity_listeners: list[Callable[[bool], object]] = []
        self._interruption_listeners: list[Callable[[], object]] = []
        self._in_flight: deque[_Group] = deque()  # proposed on top of `image`, in order
        self._is_stepping = False  # a step is in flight, and not the last one
        self._waiting: deque[_Waiting] = deque()
        self._generation = 0  # of `_decided`: grows when what was decided on top of the image has failed
        self.unclean_elections = 0  # committed since the start
        self._started = False
        self._answer_after = answer_after

    @property
    def is_active(self) -> bool:
        """Whether this node's controller decides for the cluster."""
        return self._log.is_leader

    @property
    def epoch(self) -> int:
        return self._log.term

    def open(self) -> None:
        """Blocking: replay what is known to be committed. MetadataError, OSError."""
        self._log.on_leadership(self._leadership_changed)
        offset = self._log.open(self._apply, self._snapshot, self._replace)
        self.image.offset = offset
        self._reset_decided()
        self._started = True

    def serve(self) -> None:
        """The loop is about to run: from now on commits take place off it."""
        self._log.serve()

    def close(self) -> None:
        self._log.close()

    def add_listener(self, listener: TopicListener) -> None:
        """Call `listener(image, topics, topic names)` after each committed group: topics created, changed or removed
        (id -> partitions created or changed), and topics whose configs changed (by name; all of them when a broker's
        did)."""
        self._topic_listeners.append(listener)

    def add_config_listener(self, listener: ConfigListener) -> None:
        """Call `listener(image, resources)` after each committed group that changed configs;
        a resource is (ConfigResource.Type, name)."""
        self._config_listeners.append(listener)

    def add_broker_listener(self, listener: BrokerListener) -> None:
        """Call `listener(image, broker ids)` after each committed group that registered, changed or unregistered
        brokers, after the listeners of topics and configs."""
        self._broker_listeners.append(listener)

    def add_quota_listener(self, listener: QuotaListener) -> None:
        """Call `listener(image)` after each committed group that changed client quotas."""
        self._quota_listeners.append(listener)

    def add_acl_listener(self, listener: Callable[[], object]) -> None:
        """Call `listener()` after each committed group that added or removed ACLs."""
        self._acl_listeners.append(listener)

    def add_image_listener(self, listener: Callable[[MetadataImage], object]) -> None:
        """Call `listener(image)` after each committed group, after the other listeners."""
        self._image_listeners.append(listener)

    def on_activity(self, listener: Callable[[bool], object]) -> None:
        """Call `listener(is_active)` whenever that changes."""
        self._activity_listeners.append(listener)

    def on_interruption(self, listener: Callable[[], object]) -> None:
        """Call `listener()` when an operation in steps has failed of which a part may have been committed."""
        self._interruption_listeners.append(listener)

    def run(self, operation: Operation[R], done: Callable[[R], object], failed: Failed | None = None) -> None:
        """Decide an operation and call `done(response)` when its records are committed and replayed, or
        `failed(error, message)` when they could not be; exactly one of them, once.

        `operation` must be pure: it reads the image, and its decision is its only effect. One in steps that fails may have been
        committed in part.
        """
        if not self._log.is_leader:
            self._fail(failed, NotController("this node is not the active controller"))
            return
        if self._is_stepping:
            self._waiting.append(_Waiting(operation, done, failed))
            return
        decision = operation(self._decided)
        if isinstance(decision, Decision):
            self._finish(decision.records, decision.response, done, failed)
        else:
            self._step(decision, done, failed)

    def _step(
        self, steps: Steps[R], done: Callable[[R], object], failed: Failed | None, *, is_first: bool = True
    ) -> None:
        """Decide the next records of an operation, and go on when they are committed."""
        records: list[msgspec.Struct] = []
        try:
            while len(records) < STEP_RECORDS:
                records.append(next(steps))
        except StopIteration as end:
            self._finish(records, end.value, done, failed, is_whole=is_first)
            return
        generation = self._generation

        def finished(error: Exception | None) -> None:
            self._is_stepping = False
            if error is None and generation != self._generation:
                error = NotController("the metadata has changed in between")
            if error is None:
                try:
                    self._step(steps, done, failed, is_first=False)
                except Exception as raised:
                    log.exception("an operation of the controller failed")
                    error = raised
            if error is not None:
                self._interrupted(failed, error)
            while self._waiting and not self._is_stepping:
                self._run_waiting(self._waiting.popleft())

        self._is_stepping = True
        try:
            self._commit(records, finished)
        except BaseException:
            self._is_stepping = False
            raise

    def _interrupted(self, failed: Failed | None, error: Exception) -> None:
        """An operation fails after its first step, or within it."""
        self._fail(failed, error)
        for listener in self._interruption_listeners:
            self._call(listener)

    def _run_waiting(self, waiting: _Waiting) -> None:
        """As `run`, for a caller that has returned: what the operation raises is logged, and fails it."""
        try:
            self.run(
                waiting.operation,
                lambda response: self._call(lambda: waiting.done(response)),
                waiting.failed,
            )
        except Exception as error:
            log.exception("an operation of the controller failed")
            self._fail(waiting.failed, error)

    def _finish(
        self,
        records: Sequence[msgspec.Struct],
        response: R,
        done: Callable[[R], object],
        failed: Failed | None,
        *,
        is_whole: bool = True,
    ) -> None:
        """Commit the records of an operation, or the last ones, and answer."""

        def finished(error: Exception | None) -> None:
            if error is None:
                self._answer_after(lambda: self._call(lambda: done(response)))
            elif is_whole:
                self._fail(failed, error)
            else:
                self._interrupted(failed, error)

        if records or self._in_flight:
            self._commit(records, finished)
        elif is_whole:
            done(response)
        else:
            finished(None)

    def _commit(
        self, records: Sequence[msgspec.Struct], finished: Callable[[Exception | None], object]
    ) -> None:
        """Propose a group; what is decided from now on is decided on top of it."""
        encoded = [encode_record(record) for record in records]
        # What is replayed is what was read from the bytes, here as after a restart.
        group = _Group(encoded, [decode_record(record) for record in encoded])
        try:
            _replay(self._decided, group.records)
        except MetadataError:
            self._reset_decided()
            raise
        self._in_flight.append(group)
        generation = self._generation

        def proposed(error: Exception | None) -> None:
            if error is not None and generation == self._generation:
                if self._in_flight and self._in_flight[-1] is group:
                    self._in_flight.pop()  # the log has refused it; earlier proposals are still in flight
                else:  # later proposals were decided on top of it, and fail with it
                    self._in_flight.clear()
                    self._generation += 1
                self._reset_decided()
            finished(error)

        self._log.propose(encoded, proposed)

    def _fail(self, failed: Failed | None, error: Exception) -> None:
        if failed is None:
            log.error("a change of the metadata was not committed: %s", error)
            return
        code = ErrorCode.NOT_CONTROLLER if isinstance(error, NotController) else ErrorCode.KAFKA_STORAGE_ERROR
        self._call(lambda: failed(code, str(error)))

    def _leadership_changed(self, _is_leader: bool, _term: int) -> None:
        """The log fails the proposals of another term."""
        for listener in self._activity_listeners:
            self._call(partial(listener, self._log.is_leader))

    def _reset_decided(self) -> None:
        """Start again from what is committed and proposed."""
        self._decided = self.image.copy()
        for group in self._in_flight:
            _replay(self._decided, group.records)

    def _apply(self, records: Sequence[bytes]) -> None:
        """One committed group, here or at start."""
        in_flight = self._in_flight[0] if self._in_flight else None
        is_own = in_flight is not None and (
            in_flight.encoded is records or in_flight.encoded == list(records)
        )
        if in_flight is not None and is_own:
            decoded = in_flight.records
        else:
            decoded = [decode_record(record) for record in records]
        delta = _replay(self.image, decoded)
        if self._started:
            if is_own:
                self._in_flight.popleft()
            elif not self._in_flight:
                _replay(self._decided, decoded)  # so that it stays equal to the committed image
            else:  # decided on another node: proposals of this one no longer fit
                self._in_flight.clear()
                self._generation += 1
                self._reset_decided()
            self.unclean_elections += delta.unclean_elections
            self._notify(delta)

    def _replace(self, records: Sequence[bytes], offset: int) -> None:
        """Replace the image by a snapshot."""
        old, image = self.image, MetadataImage()
        delta = _replay(image, [decode_record(record) for record in records])
        image.offset = offset
        self.image = image
        self._in_flight.clear()
        self._generation += 1
        self._reset_decided()
        if self._started:
            for topic in old.topics.values():
                delta.topic(topic.topic_id)
            delta.broker_ids.update(old.brokers)
            delta.resources.update(old.configs)
            delta.client_quotas = True
            delta.acls = True
            self._notify(delta)

    def _notify(self, delta: MetadataDelta) -> None:
        names = {name for kind, name in delta.resources if kind == TOPIC_RESOURCE}
        if any(kind != TOPIC_RESOURCE for kind, _ in delta.resources):
            names.update(self.image.topics)
        if delta.resources:  # first, as topics inherit from brokers
            for config_listener in self._config_listeners:
                self._call(partial(config_listener, self.image, delta.resources))
        if delta.topics or names:
            for topic_listener in self._topic_listeners:
                self._call(partial(topic_listener, self.image, delta.topics, names))
        if delta.broker_ids:
            for broker_listener in self._broker_listeners:
                self._call(partial(broker_listener, self.image, delta.broker_ids))
        if delta.client_quotas:
            for quota_listener in self._quota_listeners:
                self._call(partial(quota_listener, self.image))
        if delta.acls:
            for acl_listener in self._acl_listeners:
                self._call(acl_listener)
        for image_listener in self._image_listeners:
            self._call(partial(image_listener, self.image))

    def _call(self, callback: Callable[[], object]) -> None:
        """The change is committed: a listener that raises stops neither the log nor the other listeners."""
        try:
            callback()
        except Exception:
            log.exception("a listener failed on a committed change of the metadata")

    def _snapshot(self) -> list[bytes]:
        return [encode_record(record) for record in self.image.records()]


def _replay(image: MetadataImage, records: Sequence[msgspec.Struct]) -> MetadataDelta:
    delta = MetadataDelta()
    for record in records:
        image.replay(record, delta)
    image.offset += len(records)
    return delta
