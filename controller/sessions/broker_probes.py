"""Probes of brokers' listeners after their last link has closed.

The listener of a killed process refuses connections; that of a process that lost a link accepts them. A probe is repeated, at
growing intervals, until the broker is back: a process that ends closes one socket after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime, Timer

# probe(host, port, result): calls `result(is_refused)` once; False when the port is open, or when that is unknown
Probe = Callable[[str, int, Callable[[bool], object]], object]

AGAIN_S: Final = 0.01
AGAIN_MAX_S: Final = 1.0


class BrokerProbes:
    """At most one series of probes for each broker. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        probe: Probe | None,
        address: Callable[[int], tuple[str, int] | None],
        refused: Callable[[int], object],
    ) -> None:
        """`address(broker_id)`: the broker's listener, None when it needs no probe. `refused(broker_id)`: the listener refuses
        connections."""
        self._runtime = runtime
        self._probe = probe
        self._address = address
        self._refused = refused
        self._series: dict[int, object] = {}  # broker id -> identity of its series of probes
        self._timers: dict[int, Timer] = {}

    def begin(self, broker_id: int) -> None:
        """Probe now, and repeat."""
        self.stop(broker_id)
        series = self._series[broker_id] = object()
        self._probe_now(broker_id, series, AGAIN_S)

    def stop(self, broker_id: int) -> None:
        """The broker is known to be alive or dead."""
        self._series.pop(broker_id, None)
        timer = self._timers.pop(broker_id, None)
        if timer is not None:
            timer.cancel()

    def stop_all(self) -> None:
        for broker_id in list(self._series):
            self.stop(broker_id)

    def _probe_now(self, broker_id: int, series: object, again_s: float) -> None:
        self._timers.pop(broker_id, None)
        address = self._address(broker_id)
        if address is None or self._probe is None:
            self.stop(broker_id)
            return

        def answered(is_refused: bool) -> None:
            if self._series.get(broker_id) is not series:
                return
            if is_refused:
                self.stop(broker_id)
                self._refused(broker_id)
                return
            self._timers[broker_id] = self._runtime.call_later(
                again_s, lambda: self._probe_now(broker_id, series, min(2 * again_s, AGAIN_MAX_S))
            )

        self._probe(*address, answered)
