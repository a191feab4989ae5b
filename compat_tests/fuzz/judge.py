"""Bounds that every case must keep, and the figures of each case."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compat_tests.fuzz.probe import Probe, Worst
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds

# The product's bound is 100 ms. CPU time also grows on a busy machine (caches, a lower clock rate).
ANSWER_CPU_S_MAX = 0.3
# A request may have 100 MB (socket.request.max.bytes) and decompress to 64 MB, in several threads.
PEAK_BYTES_MAX = 600 << 20
LOG_LINES_MAX = 100  # per case: lines that are logged once a minute per peer may fall into it
QUIET_TIMEOUT_S = 120.0
REQUEST_CPU_S = 0.0005  # of the broker for one request of the probe alone


@dataclass
class Verdict:
    """Figures and faults of one case."""

    case: str
    sent_bytes: int = 0
    cpu_s: float = 0.0  # of the broker, until it was idle again
    worst: Worst = field(default_factory=Worst)
    peak_bytes: int = 0  # resident memory, above that before the case
    log_lines: int = 0
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.case}: {self.sent_bytes / 1e3:,.1f} KB sent, {self.cpu_s:.3f} CPU-s, peak +{self.peak_bytes >> 20} MB, "
            f"{self.log_lines} log lines; slowest probe {self.worst.seconds * 1e3:.0f} ms, "
            f"{self.worst.cpu_seconds * 1e3:.0f} ms of it the broker's CPU ({self.worst.request})"
        )


class Judge:
    """Watches several brokers: the first with a probe that sends requests all the time, the others by their processes
    and logs."""

    def __init__(self, brokers: Sequence[Broker], probe: Probe, log_lines_max: int = LOG_LINES_MAX) -> None:
        self.broker = brokers[0]
        self.probe = probe
        self._brokers = brokers
        self._log_lines_max = log_lines_max  # per case
        self._logs = {broker.directory / "stderr": 0 for broker in brokers}  # bytes already read
        self._read_logs()

    def begin(self) -> tuple[float, int]:
        """Before a case: CPU time and memory so far."""
        Path(f"/proc/{self.broker.pid}/clear_refs").write_text("5")  # resets the peak
        self.probe.reset()
        return cpu_seconds(self.broker.pid), self.broker.resident_bytes()

    def end(self, before: tuple[float, int], verdict: Verdict) -> Verdict:
        """After a case, when the broker is idle: its figures and faults."""
        faults = verdict.faults
        if not self._rest():
            faults.append(f"not idle within {QUIET_TIMEOUT_S:.0f} s")
        verdict.worst = self.probe.worst()
        if not all(broker.alive() for broker in self._brokers):
            faults.append("a broker has died")
        else:
            verdict.cpu_s = cpu_seconds(self.broker.pid) - before[0]
            verdict.peak_bytes = self._peak_bytes() - before[1]
        if self.probe.error is not None:
            faults.append(f"the probe failed: {self.probe.error!r}")
        if verdict.worst.cpu_seconds > ANSWER_CPU_S_MAX:
            faults.append(
                f"{verdict.worst.cpu_seconds:.2f} CPU-s before a small {verdict.worst.request} was answered"
            )
        if verdict.peak_bytes > PEAK_BYTES_MAX:
            faults.append(f"{verdict.peak_bytes >> 20} MB more memory")
        lines = self._read_logs()
        verdict.log_lines = len(lines)
        if any("Traceback" in line for line in lines):
            at = next(number for number, line in enumerate(lines) if "Traceback" in line)
            faults.append("a traceback in its log:\n" + "\n".join(lines[max(0, at - 1) : at + 40]))
        elif len(lines) > self._log_lines_max:
            faults.append(f"{len(lines)} log lines, such as: {lines[0][:300]}")
        return verdict

    def is_at_rest(self, timeout: float = QUIET_TIMEOUT_S) -> bool:
        """Whether the broker only serves the probe, or has died."""
        before, requests = cpu_seconds(self.broker.pid), self.probe.requests
        if not self.probe.wait_for_rounds(3, timeout):
            return not self.broker.alive() or self.probe.error is not None
        used = cpu_seconds(self.broker.pid) - before
        return used < REQUEST_CPU_S * (self.probe.requests - requests)

    def _rest(self) -> bool:
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while self.broker.alive():
            if self.is_at_rest(deadline - time.monotonic()):
                return True
            if time.monotonic() > deadline:
                return False
        return True

    def _peak_bytes(self) -> int:
        for line in Path(f"/proc/{self.broker.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    def _read_logs(self) -> list[str]:
        lines: list[str] = []
        for path, known in self._logs.items():
            with path.open("rb") as log:
                log.seek(known)
                data = log.read()
            self._logs[path] += len(data)
            lines += data.decode(errors="replace").splitlines()
        return lines
