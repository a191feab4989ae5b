"""Members of a share group under load during faults, and the check of what they have got.

`ShareWork(shares, cluster)` produces to a topic, consumes it with Java members that accept most records, release and reject some, and
reads the group's start offsets all the time. `verify()` ends all and checks: every record was accepted, rejected, or released as
often as the limit of deliveries; none was handed out after its acceptance was answered; start offsets never go back; no lag is left.

A leader's death unlocks what it has handed out, and its count of that delivery is lost; so two members may hold one record then, but
only one of them can acknowledge it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_commands import JavaClientFailed
from compat_tests.harness.java_shares import RELEASE, ShareClients
from compat_tests.harness.loads import PARTITIONS, Bootstrapped, Load, librdkafka

DELIVERIES = 5  # group.share.delivery.count.limit
DELIVERY_BYTES = 80  # of its three events
Place = tuple[int, int]  # partition, offset


class Held(NamedTuple):
    """A delivery: when a member got the record, and when and how its acknowledgement was answered, in ms of the JVM's clock."""

    member: int
    got: int
    delivery: int
    kind: str = ""
    outcome: str = "never answered"
    answered: int = 0


class ShareWork:
    """Runs from construction on; the topic exists."""

    def __init__(
        self, shares: ShareClients, broker: Bootstrapped, topic: str, group: str, directory: Path
    ) -> None:
        self.topic, self.group, self._broker, self._shares = topic, group, broker, shares
        shares.configure(broker.bootstrap, group, {"share.auto.offset.reset": "earliest"})
        self.load = Load(broker, topic, librdkafka(idempotent=True, codec="lz4"))
        self._lock = threading.Lock()  # of the JVM's commands
        self._values: set[str] = set()
        self._files: list[Path] = []
        self._names: list[str] = []
        for number in range(3):
            self._files.append(directory / f"member-{number}.events")
            self._names.append(shares.name())
            words = (broker.bootstrap, group, topic, number, self._files[-1])
            shares.ask("work", self._names[-1], *words)
        self._starts: dict[int, int] = {}
        self._backwards: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name=f"offsets of {group}")
        self._thread.start()

    def abandon(self) -> None:
        """End what runs outside of the members' JVM."""
        self._stop.set()
        self.load.abandon()
        self._thread.join(10)

    def await_progress(self, timeout: float = 90) -> None:
        """Wait until the members have written down some 200 deliveries more."""
        before = self._written()
        eventually(lambda: self._written() > before + 200 * DELIVERY_BYTES, timeout, message=self._tails)

    def _written(self) -> int:
        return sum(file.stat().st_size for file in self._files)

    def verify(self) -> int:
        """See the module; the number of records."""
        self.load.finish()
        eventually(self._has_no_lag, 90, message=lambda: (self._offsets(), self._tails()))
        self._stop.set()
        self._thread.join(30)
        for name in self._names:
            self._shares.ask("finish", name)
        assert not self._backwards, self._backwards
        held = self._deliveries()
        for place, deliveries in held.items():
            check_record(place, deliveries)
        values = {int(value) for value in self._values}
        missing = set(self.load.acknowledged) - values
        assert not missing, f"{len(missing)} records were never delivered, the first {min(missing)}"
        return len(held)

    # -- the group's offsets

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for partition, start in self._offsets().items():
                if start[0] < self._starts.get(partition, 0):
                    self._backwards.append(f"{partition}: {self._starts[partition]}, then {start[0]}")
                self._starts[partition] = max(start[0], self._starts.get(partition, 0))

    def _offsets(self) -> dict[int, tuple[int, int]]:
        """(start offset, lag) of each partition that has a start; none while the coordinators are not there."""
        try:
            with self._lock:
                found = self._shares.offsets(self._broker.bootstrap, self.group)
        except JavaClientFailed:
            return {}
        return {partition: each for (_, partition), each in found.items() if each.start >= 0}

    def _has_no_lag(self) -> bool:
        found = self._offsets()
        return len(found) == PARTITIONS and all(lag == 0 for _, lag in found.values())

    # -- what the members have written down

    def _tails(self) -> list[list[str]]:
        return [file.read_text().splitlines()[-3:] for file in self._files]

    def _deliveries(self) -> dict[Place, list[Held]]:
        found: defaultdict[Place, list[Held]] = defaultdict(list)
        for member, file in enumerate(self._files):
            for line in file.read_text().splitlines():
                kind, *words = line.split(" ")
                if kind == "failed":
                    continue
                place = int(words[0]), int(words[1])
                if kind == "got":
                    found[place].append(Held(member, int(words[4]), int(words[2])))
                    self._values.add(words[3])
                    continue
                at = max(index for index, each in enumerate(found[place]) if each.member == member)
                last = found[place][at]
                if kind == "sent":
                    found[place][at] = last._replace(kind=words[2])
                else:
                    found[place][at] = last._replace(outcome=words[3], answered=int(words[4]))
        return dict(found)


def check_record(place: Place, deliveries: Sequence[Held]) -> None:
    """Whether one record was dealt with as it should be; deliveries of all members."""
    final = [each for each in deliveries if each.kind != RELEASE]
    accepted = [each for each in final if each.outcome == "ok"]
    assert len(accepted) <= 1, f"{place} was acknowledged for good twice: {deliveries}"
    for end in accepted:
        later = [each for each in deliveries if each.got > end.answered]
        assert not later, f"{place} was handed out after its end: {deliveries}"
    is_archived = any(each.kind == RELEASE and each.delivery >= DELIVERIES for each in deliveries)
    assert final or is_archived, f"{place} was neither accepted nor archived: {deliveries}"
