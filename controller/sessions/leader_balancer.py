"""Periodic elections of the active controller.

Preferred replicas become the leaders again (auto.leader.rebalance.enable). Partitions without a leader get one where that is possible:
when this controller becomes active and when an operation in steps has failed, as the broker may be unfenced already that was to lead
them; when a configuration has changed, as it may allow unclean elections; and periodically.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.controller.operations.elections import balance_leaders, elect_missing_leaders
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.operations.settings import ControllerSettings
    from barnabas.runtime.interface import Runtime, Timer

PAUSED_RETRY_S: Final = 1.0  # a majority has confirmed this controller by then

log = logging.getLogger("barnabas.controller")


class LeaderBalancer:
    """Idle while this node's controller is not the active one. All calls on the loop's thread."""

    def __init__(self, controller: Controller, settings: ControllerSettings, runtime: Runtime) -> None:
        self._controller = controller
        self._settings = settings
        self._runtime = runtime
        self._timers: dict[str, Timer] = {}
        self._is_active = False  # since it was reported; a controller that has paused is not for a moment

    def start(self) -> None:
        """Follow the controller, which may be active already."""
        self._controller.on_activity(self._activity_changed)
        self._controller.on_interruption(partial(self._elect_in, PAUSED_RETRY_S))
        self._controller.add_config_listener(lambda *_: self._elect_in(0.0))
        self._activity_changed(self._controller.is_active)

    def close(self) -> None:
        self._activity_changed(False)

    def _activity_changed(self, is_active: bool) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._is_active = is_active
        if is_active:
            self._later(self._balance_interval_s(), self._balance)
            self._later(0.0, self._elect)

    def _later(self, delay_s: float, task: Callable[[], object]) -> None:
        if self._is_active:
            timer = self._timers.get(task.__name__)
            if timer is not None:  # another one of these has begun meanwhile
                timer.cancel()
            self._timers[task.__name__] = self._runtime.call_later(delay_s, task)

    def _balance_interval_s(self) -> float:
        return float(self._settings.value("leader.imbalance.check.interval.seconds") or 300)

    def _election_interval_s(self) -> float:
        return float(self._settings.value("unclean.leader.election.interval.ms") or 300_000) / 1000

    def _balance(self) -> None:
        if self._settings.value("auto.leader.rebalance.enable") != "true":
            self._later(self._balance_interval_s(), self._balance)
            return

        def balanced(is_more: bool) -> None:
            self._later(0.0 if is_more else self._balance_interval_s(), self._balance)

        self._controller.run(
            lambda image: balance_leaders(image, self._settings), balanced, self._failed(self._balance)
        )

    def _elect(self) -> None:
        def elected(count: int) -> None:
            if count:
                log.warning("%d partitions without a leader have one now", count)
            self._later(self._election_interval_s(), self._elect)

        self._controller.run(
            lambda image: elect_missing_leaders(image, self._settings), elected, self._failed(self._elect)
        )

    def _failed(self, task: Callable[[], object]) -> Callable[[ErrorCode, str], object]:
        def failed(error: ErrorCode, message: str) -> None:
            if error == ErrorCode.NOT_CONTROLLER:
                self._later(PAUSED_RETRY_S, task)
            elif self._is_active:
                log.error("leaders could not be changed: %s", message)
                self._later(self._election_interval_s(), task)

        return failed

    def _elect_in(self, delay_s: float) -> None:
        self._later(delay_s, self._elect)
