"""The balancer of the active controller (barnabas.balancer): plans at an interval, and makes the moves of the plan.

A move of a replica is a reassignment as a user begins one (KIP-455), so kafka-reassign-partitions.sh lists it, and throttles that are
configured slow it down (KIP-73). A change of a leader is a reassignment to the same replicas in another order and a preferred
election. The two of a swap begin together or not at all. At most MOVES_AT_ONCE partitions of the cluster are being reassigned when
one begins; those of users count, but not those that wait for a broker that is away. A partition that a user reassigns is left alone,
and one that was moved stays for barnabas.balancer.rest.ms.

There is no plan while a load report is missing or older than three intervals, or while a broker has been away for less than the
rest. A controller that has become active makes no move before the rest is over: it does not know what the last one moved. Nor does it
know for how long brokers have been away, so barnabas.balancer.gone.ms begins anew.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.controller.balancer.load_reports import ClusterLoads, LoadReport
from barnabas.controller.balancer.moves import GONE, Group, Key, Move, Plan
from barnabas.controller.balancer.planner import plan
from barnabas.controller.config.topic_configs import observers_of
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.operations.elections import PREFERRED, elect_leaders
from barnabas.controller.operations.reassignments import alter_reassignments
from barnabas.runtime.slices import run_steps
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

if TYPE_CHECKING:
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage, PartitionState
    from barnabas.controller.operations.settings import ControllerSettings
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.wire.errors import ErrorCode

MODE: Final = "barnabas.balancer"
OFF: Final = "off"
PLAN: Final = "plan"
ON: Final = "on"
INTERVAL_MS: Final = "barnabas.balancer.interval.ms"
REPORT_INTERVAL_MS: Final = "barnabas.balancer.report.interval.ms"
REST_MS: Final = "barnabas.balancer.rest.ms"
GONE_MS: Final = "barnabas.balancer.gone.ms"
REPORT_INTERVALS_MAX: Final = 3  # an older report counts as missing

MOVES_AT_ONCE: Final = 5

log = logging.getLogger("barnabas.balancer")


class Balancer:
    """Idle while this node's controller is not the active one. All calls on the loop's thread."""

    def __init__(self, controller: Controller, settings: ControllerSettings, runtime: Runtime) -> None:
        self._controller = controller
        self._settings = settings
        self._runtime = runtime
        self.loads = ClusterLoads()
        self.plan = Plan([])
        self.moved = {True: 0, False: 0}  # moves that are done: of replicas, and of leaders alone
        self._is_active = False
        self._active_since = 0.0
        self._is_planning = False
        self._timer: Timer | None = None
        self._waiting: deque[Group] = deque()  # of the plan
        self._moving: dict[Key, Move] = {}
        self._begun: set[Key] = set()  # of those: reassignments that are committed
        self._is_beginning = False
        self._moved_at: dict[Key, float] = {}
        # Brokers that are fenced, in controlled shutdown, or not registered and have replicas.
        self._away_since: dict[int, float] = {}
        self._unregistered: frozenset[int] = frozenset()  # brokers with replicas as of the last plan
        self._obstacle = ""  # why there was no plan last time

    def start(self) -> None:
        """Follow the controller, which may be active already."""
        self._controller.on_activity(self._activity_changed)
        self._controller.add_image_listener(self._metadata_changed)
        self._activity_changed(self._controller.is_active)

    def close(self) -> None:
        self._activity_changed(False)

    @property
    def is_on(self) -> bool:
        """Whether it plans here."""
        return self._is_active and self._mode() != OFF

    def receive(self, broker_id: int, report: LoadReport) -> None:
        """A load report of a broker."""
        if self.is_on and broker_id in self._controller.image.brokers:
            self.loads.receive(broker_id, report, self._runtime.monotonic())

    def report_ages(self) -> dict[int, float]:
        """Seconds since the last report of each broker that has sent one."""
        now = self._runtime.monotonic()
        return {broker_id: self.loads.age_s(broker_id, now) for broker_id in sorted(self.loads.reports)}

    def leader_loads(self) -> dict[int, float]:
        """Bytes per second, in and out, of what each active broker leads, infinite for slow ones; empty while it is not on or makes no
        plan."""
        if not self._is_active or self._mode() != ON:
            return {}
        image, now = self._controller.image, self._runtime.monotonic()
        if self._find_obstacle(image, now):
            return {}
        slow = self.loads.slow(now)
        return {
            broker_id: math.inf if broker_id in slow else report.bytes_in + report.bytes_out
            for broker_id, report in self.loads.reports.items()
            if _is_active(image, broker_id)
        }

    # -- settings

    def _mode(self) -> str:
        return self._settings.value(MODE) or OFF

    def _seconds(self, name: str, default_ms: int) -> float:
        return float(self._settings.value(name) or default_ms) / 1000

    def _rest_s(self) -> float:
        return self._seconds(REST_MS, 600_000)

    # -- planning

    def _activity_changed(self, is_active: bool) -> None:
        if is_active == self._is_active:
            return
        self._is_active = is_active
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget()
        if is_active:
            self._active_since = self._runtime.monotonic()
            self._later()

    def _forget(self) -> None:
        self.loads.clear()
        self.plan = Plan([])
        self._waiting.clear()
        self._moving.clear()
        self._begun.clear()
        self._moved_at.clear()
        self._away_since.clear()
        self._unregistered = frozenset()
        self._obstacle = ""

    def _later(self) -> None:
        """Plan after the interval, unless it is off; then when it is switched on."""
        self._timer = None
        if self.is_on:
            self._timer = self._runtime.call_later(self._seconds(INTERVAL_MS, 60_000), self._pass)

    def _pass(self) -> None:
        self._later()
        mode, image, now = self._mode(), self._controller.image, self._runtime.monotonic()
        if mode == OFF:
            self.loads.clear()
            self.plan = Plan([])
            self._waiting.clear()
            self._away_since.clear()
            return
        if mode == ON:
            self._cancel_moves_to_absent(image)
        if self._is_planning:
            return
        obstacle = self._find_obstacle(image, now)
        if obstacle and obstacle != self._obstacle:
            log.info("no plan: %s", obstacle)
        self._obstacle = obstacle
        self._waiting.clear()  # what has not begun is planned again
        if obstacle:
            self.plan = Plan([])
            return
        rest_s = self._rest_s()
        self._moved_at = {key: since for key, since in self._moved_at.items() if now - since < rest_s}
        self._is_planning = True
        fixed = {*self._moved_at, *self._moving}
        loads = self.loads
        earlier, gone = [*loads.earlier.values()], self._gone(now)
        steps = plan(image, loads.reports.copy(), loads.slow(now), fixed, earlier, gone)
        run_steps(self._runtime, steps, self._planned)

    def _find_obstacle(self, image: MetadataImage, now: float) -> str:
        """Why there can be no plan now; empty when there can."""
        active = {each.broker_id for each in image.brokers.values() if each.is_active}
        # One that is no longer registered counts from when it was fenced; the next plan tells whether it has replicas.
        self._unregistered |= self._away_since.keys() - image.brokers.keys()
        away = (image.brokers.keys() | self._unregistered) - active
        self._away_since = {each: self._away_since.get(each, now) for each in away}
        age_max_s = self._seconds(REPORT_INTERVAL_MS, 10_000) * REPORT_INTERVALS_MAX
        for broker_id in self.loads.missing(self.loads.reports.keys() - active, now, age_max_s):
            self.loads.forget(broker_id)
        leaving = self._away_since.keys() - self._unregistered - self._away_for(self._rest_s(), now)
        if leaving:
            return f"broker {min(leaving)} is away, and may be back soon"
        missing = self.loads.missing(active, now, age_max_s)
        if missing:
            return f"there is no load report of broker {missing[0]} from the last {age_max_s:g} s"
        return ""

    def _away_for(self, seconds: float, now: float) -> set[int]:
        """Brokers that have been away for so long, and still are."""
        image = self._controller.image
        return {
            each
            for each, since in self._away_since.items()
            if now - since >= seconds and not _is_active(image, each)
        }

    def _gone(self, now: float) -> set[int]:
        """Brokers whose replicas are replaced."""
        gone_s = self._seconds(GONE_MS, 1_800_000)
        return set() if gone_s < 0 else self._away_for(max(gone_s, self._rest_s()), now)

    def _planned(self, found: Plan | None, error: BaseException | None) -> None:
        self._is_planning = False
        if found is None:
            log.error("no plan could be made", exc_info=error)
            return
        if not self.is_on:
            return
        before, self.plan = self.plan, found
        self._unregistered = found.unregistered
        mode = self._mode()
        if found.moves and found.moves != before.moves:
            what = "would move" if mode == PLAN else "moves"
            log.info("the balancer %s %d partitions:\n%s", what, len(found.moves), found.table())
            if mode == PLAN:
                log.info("the same for kafka-reassign-partitions.sh --execute: %s", found.reassignment())
        if mode == ON and self._runtime.monotonic() - self._active_since >= self._rest_s():
            self._waiting.extend(found.groups)
            self._begin_next()

    # -- moving

    def _metadata_changed(self, image: MetadataImage) -> None:
        if self._timer is None:
            self._later()
        has_ended = False
        for key in tuple(self._begun):
            move = self._moving[key]
            state = _state_of(image, move)
            if state is None or not _is_on_its_way(state, move):  # done, or the user has decided otherwise
                if state is not None and _wanted_of(state, move) == move.target:
                    self.moved[True] += 1
                self._end(move)
                has_ended = True
        if has_ended:
            self._begin_next()

    def _begin_next(self) -> None:
        if self._is_beginning:  # a move has ended within `_begin`: the loop below goes on
            return
        if self._mode() != ON:
            self._waiting.clear()
        if not self._waiting or len(self._moving) >= MOVES_AT_ONCE:
            return
        at_once = MOVES_AT_ONCE - self._reassigned_by_others()
        self._is_beginning = True
        try:
            while True:
                room = at_once - len(self._moving)
                group = next((each for each in self._waiting if len(each) <= room), None)
                if group is None:
                    break
                self._waiting.remove(group)
                self._begin(group)
        finally:
            self._is_beginning = False

    def _begin(self, group: Group) -> None:
        for move in group:
            self._moving[move.key] = move
            self._moved_at[move.key] = self._runtime.monotonic()

        def begun(is_begun: bool) -> None:
            for move in group:
                if not is_begun:
                    self._end(move)
                elif not move.copies:
                    self._elect(move)
                elif move.key in self._moving:
                    self._begun.add(move.key)
            self._metadata_changed(self._controller.image)
            self._begin_next()

        self._controller.run(
            lambda image: _reassign(image, self._settings, group), begun, self._failed(*group)
        )

    def _end(self, move: Move) -> None:
        self._moving.pop(move.key, None)
        self._begun.discard(move.key)

    def _elect(self, move: Move) -> None:
        request = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[TopicPartitions(topic=move.topic, partitions=[move.partition])],
        )

        def elected(_: object) -> None:
            self._end(move)
            state = _state_of(self._controller.image, move)
            if state is not None and state.leader == move.target[0]:
                self.moved[False] += 1
            self._begin_next()

        self._controller.run(
            lambda image: elect_leaders(image, self._settings, request), elected, self._failed(move)
        )

    def _failed(self, *moves: Move) -> Callable[[ErrorCode, str], object]:
        def failed(_error: ErrorCode, message: str) -> None:
            for move in moves:
                self._end(move)
                if self._is_active:
                    log.warning("%s-%d could not be moved: %s", move.topic, move.partition, message)

        return failed

    def _reassigned_by_others(self) -> int:
        """How many reassignments copy, or may: those that wait for a broker that has been away for barnabas.balancer.rest.ms don't."""
        away = self._away_for(self._rest_s(), self._runtime.monotonic())
        return sum(
            bool(state.adding_replicas or state.removing_replicas)
            and (topic.topic_id, index) not in self._moving
            and away.isdisjoint(set(state.replicas).difference(state.removing_replicas))
            for topic in self._controller.image.topics.values()
            for index, state in topic.partitions.items()
        )

    def _cancel_moves_to_absent(self, image: MetadataImage) -> None:
        """Cancel moves to brokers that are away, and those of partitions another of whose brokers has been away for
        barnabas.balancer.rest.ms: they would wait for them."""
        away = self._away_for(self._rest_s(), self._runtime.monotonic())
        for key in tuple(self._begun):
            move = self._moving[key]
            state = _state_of(image, move)
            if state is None or not _is_on_its_way(state, move):
                continue
            lost = [each for each in state.adding_replicas if not _is_active(image, each)]
            lost += [each for each in move.target if each in away]
            if lost:
                log.warning(
                    "the move of %s-%d is cancelled: broker %d is away", move.topic, move.partition, lost[0]
                )
                self._controller.run(
                    partial(_cancel, settings=self._settings, move=move),
                    lambda _: None,
                    self._failed(move),
                )


def _state_of(image: MetadataImage, move: Move) -> PartitionState | None:
    topic = image.topic_by_id(move.topic_id)
    return None if topic is None else topic.partitions.get(move.partition)


def _wanted_of(state: PartitionState, move: Move) -> list[int]:
    """The replicas that the partition will have, without observers, which are behind the others."""
    return [replica for replica in state.replicas if replica not in state.removing_replicas][
        : len(move.target)
    ]


def _is_on_its_way(state: PartitionState, move: Move) -> bool:
    """Whether the partition is being reassigned, and to what the move wants."""
    return bool(state.adding_replicas or state.removing_replicas) and _wanted_of(state, move) == move.target


def _is_active(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_active


def _request(move: Move, replicas: list[int] | None) -> ReassignableTopic:
    return ReassignableTopic(
        name=move.topic,
        partitions=[ReassignablePartition(partition_index=move.partition, replicas=replicas)],
    )


def _alter(
    image: MetadataImage, settings: ControllerSettings, topics: list[ReassignableTopic]
) -> Decision[bool]:
    """Alter all of these reassignments, or none. The response is whether they are altered."""
    request = AlterPartitionReassignmentsRequest(allow_replication_factor_change=False, topics=topics)
    decision = alter_reassignments(image, settings, request)
    if any(each.error_code for topic in decision.response.responses for each in topic.partitions):
        return Decision([], False)
    return Decision(decision.records, True)


def _cancel(image: MetadataImage, settings: ControllerSettings, move: Move) -> Decision[bool]:
    """Take the move back, if the partition is still on its way."""
    state = _state_of(image, move)
    if state is None or not _is_on_its_way(state, move):
        return Decision([], False)
    return _alter(image, settings, [_request(move, None)])


def _reassign(image: MetadataImage, settings: ControllerSettings, group: Group) -> Decision[bool]:
    """Begin the moves, if all the partitions are still as they were planned. The response is whether they have begun."""
    if not all(_is_as_planned(image, move) for move in group):
        return Decision([], False)
    return _alter(image, settings, [_request(move, move.target) for move in group])


def _is_as_planned(image: MetadataImage, move: Move) -> bool:
    state = _state_of(image, move)
    topic = image.topics.get(move.topic)
    if state is None or topic is None or topic.topic_id != move.topic_id:
        return False
    observers = observers_of(image.topic_configs(move.topic))
    return (
        [replica for replica in state.replicas if replica not in observers] == move.current
        and state.leader == move.leader
        and not state.adding_replicas
        and not state.removing_replicas
        and all(_is_active(image, each) for each in move.target if each not in move.current)
        and not (move.reason == GONE and any(_is_active(image, each) for each in _left_by(move)))
    )


def _left_by(move: Move) -> set[int]:
    """Brokers that lose their replica."""
    return {*move.current}.difference(move.target)
