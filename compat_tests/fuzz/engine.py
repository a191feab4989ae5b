"""Runs cases against a broker of its own, judges each, and makes a failing one small."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import AdminClient

from compat_tests.fuzz.case import Case, Pace
from compat_tests.fuzz.hostile_client import HostileClient
from compat_tests.fuzz.judge import Judge, Verdict
from compat_tests.fuzz.probe import TOPIC, Probe, check_everything_is_there
from compat_tests.fuzz.requests import PARTITIONS, TOPICS, World, served_apis, served_ranges, topic_ids
from compat_tests.harness import raw
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.topics import eventually

COMMAND = "python -m compat_tests.fuzz"
ADDRESS_SPACE_MAX = 4 << 30  # the machine's other processes must not pay for what a case finds
SILENT_MAX = 256  # connections that are kept open
SHRINK_RUNS = 24


class Fuzzed:
    """A broker that is being fuzzed, with its probe and its judge."""

    def __init__(self, folder: Path, loop: str = "") -> None:
        self.broker = BarnabasBroker(folder, loop=loop)
        self.broker.preexec = lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX,) * 2)
        self.broker.start()
        bootstrap = self.broker.bootstrap
        create_topics(bootstrap, {TOPIC: {}, **TOPICS})
        load_coordinator(bootstrap)
        self.world = World(served_apis(served_ranges(bootstrap)), topic_ids(bootstrap))
        self.probe = Probe(bootstrap, self.broker.pid)
        assert self.probe.wait_for_rounds(20, 60), self.probe.error
        self.judge = Judge(self.broker, self.probe)
        self._silent: list[HostileClient] = []

    def run(self, case: Case) -> Verdict:
        """Send a case, wait until the broker is at rest, judge."""
        verdict = Verdict(f"{case.name} ({'; '.join(case.story)[:200]})", case.size * case.connections)
        for piece in case.prepared:
            with raw.RawConnection(self.broker.bootstrap) as honest:
                honest.socket.sendall(piece)
                honest.receive()
        before = self.judge.begin()
        clients = [
            HostileClient(self.broker.bootstrap, case.pieces, case.pace) for _ in range(case.connections)
        ]
        while not all(client.done.is_set() for client in clients):
            if clients[0].done.wait(0.02) and all(client.done.wait(0.02) for client in clients):
                break
            if self.judge.is_at_rest():
                break
        self.judge.end(before, verdict)
        for client in clients:
            client.stop()
        if case.pace is Pace.SILENT:
            self._silent += clients
            while len(self._silent) > SILENT_MAX:
                self._silent.pop(0).close()
        return verdict

    def end(self) -> list[str]:
        """Stop hostile clients; what the broker no longer does as it should. It is stopped cleanly."""
        for client in self._silent:
            client.close()
        self.probe.stop()
        faults: list[str] = []
        try:
            assert self.probe.error is None, f"the client beside it failed: {self.probe.error!r}"
            self._still_serves()
            code = self.broker.stop()
            assert code == 0, f"a clean stop ends with {code}"
        except (AssertionError, OSError, EOFError) as error:
            faults.append(f"afterwards: {type(error).__name__}: {error}")
        finally:
            self.kill()
        return faults

    def kill(self) -> None:
        """The end of a broker that failed."""
        self.probe.stop()
        if self.broker.alive():
            self.broker.kill()

    def _still_serves(self) -> None:
        """Produce, fetch, groups; and all that was acknowledged beside the cases is there."""
        bootstrap = self.broker.bootstrap
        check_everything_is_there(bootstrap, self.probe.acknowledged)
        create_topics(bootstrap, {"afterwards": {}})
        with raw.RawConnection(bootstrap) as connection:
            assert raw.produce(connection, "afterwards", raw.good_batch(b"value")) == (0, 0)
            assert b"value" in raw.fetch(connection, "afterwards", 0)[2]
            group = raw.string("afterwards")
            load_coordinator(bootstrap)
            committed = raw.string("afterwards") + raw.array(
                [b"\0\0\0\0" + (7).to_bytes(8, "big") + raw.string("")]
            )
            body = group + b"\xff\xff\xff\xff" + raw.string("") + b"\xff" * 8 + raw.array([committed])
            eventually(lambda: connection.ask(raw.request(8, 2, body))[-2:] == b"\0\0")


def create_topics(bootstrap: str, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Create topics whose old records stay, and wait until they are served."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    made = [
        NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1", **configs})
        for name, configs in topics.items()
    ]
    for done in admin.create_topics(made).values():
        done.result(60)
    with raw.RawConnection(bootstrap) as connection:
        for name in topics:
            eventually(lambda name=name: raw.fetch(connection, name, 0, max_wait_ms=0)[0] == 0)


def load_coordinator(bootstrap: str) -> None:
    """Until group requests are served."""
    find = raw.request(10, 0, raw.string("group-0"))
    heartbeat = raw.request(12, 0, raw.string("group-0") + bytes(4) + raw.string("m"))
    with raw.RawConnection(bootstrap) as connection:
        eventually(lambda: connection.ask(find)[:2] == b"\0\0")
        eventually(lambda: connection.ask(heartbeat) == b"\0\x19")  # UNKNOWN_MEMBER_ID


class Findings:
    """Verdicts of a run: the failed ones in full, the costly ones by their figures."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.failures: list[str] = []

    def worst(self, count: int = 10) -> list[str]:
        """The cases that kept the client beside them waiting most, and those that took most memory."""
        waited = sorted(self.verdicts, key=lambda one: -one.worst.cpu_seconds)[:count]
        grown = sorted(self.verdicts, key=lambda one: -one.peak_bytes)[: count // 2]
        return [one.line() for one in waited] + [one.line() for one in grown if one not in waited]


def run_cases(
    make_folder: Callable[[], Path],
    make_cases: Callable[[World], Iterable[Case]],
    *,
    loop: str = "",
    failures_max: int = 5,
    cases_per_broker: int = 2000,
    say: Callable[[str], object] = lambda _line: None,
) -> Findings:
    """All cases against one broker after another; a broker that failed is replaced."""
    findings = Findings()
    fuzzed = Fuzzed(make_folder(), loop)
    run = 0
    try:
        for case in make_cases(fuzzed.world):
            verdict = fuzzed.run(case)
            findings.verdicts.append(verdict)
            say(verdict.line())
            run += 1
            if verdict.faults:
                fuzzed.kill()
                findings.failures.append(describe(case, verdict, make_folder, loop))
                say(findings.failures[-1])
                if len(findings.failures) >= failures_max:
                    return findings
            if verdict.faults or run % cases_per_broker == 0:
                findings.failures += [] if verdict.faults else fuzzed.end()
                fuzzed = Fuzzed(make_folder(), loop)
        findings.failures += fuzzed.end()
    finally:
        fuzzed.kill()
    return findings


def describe(case: Case, verdict: Verdict, make_folder: Callable[[], Path], loop: str) -> str:
    """What failed, how to run it again, and the smallest form of it that was found to fail."""
    small, runs = shrink(case, make_folder, loop) if case.name.startswith("requests") else (case, 0)
    faults = "\n  ".join(verdict.faults)
    return (
        f"FAILED {verdict.line()}\n  {faults}\n  again: {COMMAND} {case.name}\n"
        f"  what it sends ({small.size} of {case.size} bytes are enough, after {runs} runs):\n{small.hex()}"
    )


def shrink(case: Case, make_folder: Callable[[], Path], loop: str) -> tuple[Case, int]:
    """The case with fewer pieces and a shorter last one, as long as it fails alone on a new broker."""
    runs = 0

    def fails(candidate: Case) -> bool:
        nonlocal runs
        runs += 1
        fuzzed = Fuzzed(make_folder(), loop)
        try:
            return bool(fuzzed.run(candidate).faults)
        finally:
            fuzzed.kill()

    smallest = case
    if not fails(case):
        case.story.append("alone on a new broker it passes")
        return case, runs
    for piece in case.pieces if len(case.pieces) > 1 else ():
        if runs < SHRINK_RUNS and fails(alone := replace(case, pieces=[piece])):
            smallest = alone
            break
    if len(smallest.pieces) == 1:
        piece = smallest.pieces[0]
        step = len(piece) // 2
        while step and runs < SHRINK_RUNS:
            shorter = _resized(piece[: len(piece) - step])
            if fails(candidate := replace(smallest, pieces=[shorter])):
                smallest, piece = candidate, shorter
            else:
                step //= 2
    return smallest, runs


def _resized(frame: bytes) -> bytes:
    """A frame cut short, with its size made true."""
    return (len(frame) - 4).to_bytes(4, "big", signed=True) + frame[4:] if len(frame) >= 4 else frame


def timed(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
