"""Says that this node lives where it has said nothing else, and gives up links on which the other side has not.

A loop that has stood still itself gives everybody another chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.controller.link import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.controller.link.peer import Peer
    from barnabas.controller.link.settings import LinkSettings
    from barnabas.runtime.interface import Runtime, Timer


class Liveness:
    """Over all open links; runs while there is one."""

    def __init__(self, runtime: Runtime, settings: LinkSettings, peers: Mapping[int, Peer]) -> None:
        self._runtime = runtime
        self._settings = settings
        self._peers = peers
        self._timer: Timer | None = None
        self._due_at = 0.0

    def start(self) -> None:
        if self._timer is None:
            self._later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self) -> None:
        self._due_at = self._runtime.monotonic() + self._settings.ping_s
        self._timer = self._runtime.call_later(self._settings.ping_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._runtime.monotonic()
        settings = self._settings
        stood_still = now - self._due_at > settings.ping_s
        for peer in list(self._peers.values()):
            connection = peer.connection
            if stood_still:
                connection.heard_at = now
            elif now - connection.heard_at >= settings.silence_s:
                connection.abort(TimeoutError(f"silent for {now - connection.heard_at:.1f} s"))
                continue
            if now - connection.sent_at >= 0.9 * settings.ping_s:
                peer.send(messages.PING, b"")
        if self._peers:
            self._later()
