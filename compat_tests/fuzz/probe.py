"""A well-behaved client: sends small requests on its own connection, one after the other, all the time.

It measures the latency of each request and the CPU time of the broker's process meanwhile. The CPU time is judged: it
does not grow because other processes keep the machine busy.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from compat_tests.harness import raw
from compat_tests.harness.eventually import eventually
from compat_tests.harness.process_usage import cpu_seconds
from compat_tests.harness.raw import RawConnection

TOPIC = "beside"


@dataclass
class Worst:
    """The slowest answer since the last reset."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of the answer with the largest CPU time of the broker
    request: str = ""


class Probe:
    """Produces numbered records to one topic, fetches them and requests ApiVersions."""

    def __init__(self, bootstrap: str, pid: int, acknowledged: int = 0) -> None:
        """`acknowledged`: number of records already in the topic."""
        self.acknowledged = acknowledged
        self.requests = 0
        self.error: BaseException | None = None
        self._pid = pid
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._worst = Worst()
        self._stopping = False
        self._asking_since = (0.0, 0.0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops after the current request."""
        self._stopping = True
        self._thread.join(120)

    def reset(self) -> None:
        """Starts a new measurement; a pending request counts for it."""
        with self._lock:
            self._worst = Worst()

    def worst(self) -> Worst:
        """The slowest answer since `reset`."""
        with self._lock:
            return Worst(self._worst.seconds, self._worst.cpu_seconds, self._worst.request)

    def wait_for_rounds(self, rounds: int, timeout: float) -> bool:
        """Whether so many complete rounds of requests are answered from now on."""
        goal = self.requests + 3 * (rounds + 1)
        with suppress(AssertionError):
            eventually(lambda: self.requests >= goal or self.error is not None, timeout)
        return self.requests >= goal

    def _run(self) -> None:
        try:
            with RawConnection(self._bootstrap, timeout=120) as connection:
                while not self._stopping:
                    self._measure("ApiVersions", lambda: raw.api_versions_v0(connection))
                    self._measure("Produce", lambda: self._produce(connection))
                    self._measure("Fetch", lambda: self._fetch(connection))
                    time.sleep(0.002)  # the rate: the probe is a small load
        except BaseException as error:  # noqa: BLE001 - the judge reports it
            self.error = error

    def _measure(self, name: str, ask: object) -> None:
        assert callable(ask)
        started, cpu = time.monotonic(), cpu_seconds(self._pid)
        ask()
        seconds, used = time.monotonic() - started, cpu_seconds(self._pid) - cpu
        with self._lock:
            self.requests += 1
            self._worst.seconds = max(self._worst.seconds, seconds)
            if used > self._worst.cpu_seconds:
                self._worst.cpu_seconds, self._worst.request = used, name

    def _produce(self, connection: RawConnection) -> None:
        number = self.acknowledged
        value = b"%010d" % number
        assert raw.produce(connection, TOPIC, raw.good_batch(value)) == (0, number)
        self.acknowledged = number + 1

    def _fetch(self, connection: RawConnection) -> None:
        last = self.acknowledged - 1
        error, _, records = raw.fetch(connection, TOPIC, last, max_bytes=4096, max_wait_ms=0)
        assert error == 0
        assert b"%010d" % last in records


def check_everything_is_there(bootstrap: str, acknowledged: int) -> None:
    """Asserts that every acknowledged record can be read, in order."""
    with RawConnection(bootstrap) as connection:
        offset = 0
        while offset < acknowledged:
            error, _, records = raw.fetch(connection, TOPIC, offset, max_bytes=1 << 20)
            assert error == 0
            found = offset
            at = records.find(b"%010d" % offset)
            while at >= 0 and found < acknowledged:
                found += 1
                at = records.find(b"%010d" % found, at)
            assert found > offset, f"record {offset} of {acknowledged} is missing"
            offset = found
