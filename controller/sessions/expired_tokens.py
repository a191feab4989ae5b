"""Removes expired delegation tokens from the metadata, while this node's controller is the active one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from barnabas.controller.operations.delegation_tokens import remove_expired_tokens

if TYPE_CHECKING:
    from barnabas.controller.metadata.controller import Controller
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.wire.errors import ErrorCode

log = logging.getLogger("barnabas.controller")


class ExpiredTokens:
    """Looks every delegation.token.expiry.check.interval.ms. All calls on the loop's thread."""

    def __init__(self, controller: Controller, runtime: Runtime, interval_ms: int) -> None:
        self._controller = controller
        self._runtime = runtime
        self._interval_s = interval_ms / 1000
        self._timer: Timer | None = None
        controller.on_activity(self._activity_changed)
        self._activity_changed(controller.is_active)

    def close(self) -> None:
        self._activity_changed(False)

    def _activity_changed(self, is_active: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if is_active:
            self._timer = self._runtime.call_later(self._interval_s, self._remove)

    def _remove(self) -> None:
        self._activity_changed(True)
        if not self._controller.is_active:
            return  # it has paused
        now_ms = self._runtime.time_ms()
        self._controller.run(lambda image: remove_expired_tokens(image, now_ms), self._removed, self._failed)

    def _removed(self, count: int) -> None:
        if count:
            log.info("%d delegation tokens have expired", count)

    def _failed(self, _error: ErrorCode, message: str) -> None:
        if self._controller.is_active:
            log.error("expired delegation tokens could not be removed: %s", message)
