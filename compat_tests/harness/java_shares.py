"""Share consumers of the Java client, in one JVM that runs java/ShareClients.java."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_commands import JavaCommands

ACCEPT, RELEASE, REJECT, RENEW = "ACCEPT", "RELEASE", "REJECT", "RENEW"
EXPLICIT = {"share.acknowledgement.mode": "explicit"}


class Delivery(NamedTuple):
    """A record as a member got it."""

    partition: int
    offset: int
    delivery: int
    value: str


class Offset(NamedTuple):
    """Position of a share group in one partition; -1: unknown."""

    start: int
    lag: int


class ShareClients(JavaCommands):
    """The JVM."""

    def __init__(self) -> None:
        super().__init__("ShareClients.java")
        self._numbers = itertools.count(1)

    def name(self) -> str:
        """Of a further member."""
        return f"member-{next(self._numbers)}"

    def member(self, bootstrap: str, group: str, topic: str, **configs: str) -> ShareMember:
        """A KafkaShareConsumer with explicit acknowledgement; `configs` with _ for each dot of their names."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        return ShareMember(self, bootstrap, group, topic, {**EXPLICIT, **named})

    def configure(self, bootstrap: str, group: str, configs: dict[str, str]) -> None:
        """Set configs of the group."""
        self.ask("configure", bootstrap, group, *(f"{name}={value}" for name, value in configs.items()))

    def offsets(self, bootstrap: str, group: str) -> dict[tuple[str, int], Offset]:
        """Admin.listShareGroupOffsets."""
        found = (word.split(":") for word in self.ask("offsets", bootstrap, group).split())
        return {(topic, int(index)): Offset(int(start), int(lag)) for topic, index, start, lag in found}


class ShareMember:
    """A member that does only what it is asked for, as its consumer polls in no thread of its own."""

    def __init__(
        self, clients: ShareClients, bootstrap: str, group: str, topic: str, configs: dict[str, str]
    ) -> None:
        self._clients, self._name = clients, clients.name()
        words = (f"{name}={value}" for name, value in configs.items())
        clients.ask("open", self._name, bootstrap, group, topic, *words)

    def poll(self, timeout: float = 30) -> list[Delivery]:
        """The records of the first poll that has any, sorted; none after `timeout` seconds."""
        words = self._clients.ask("poll", self._name, round(timeout * 1000)).split()
        fields = (word.split(":", 3) for word in words)
        return sorted(
            Delivery(int(partition), int(offset), int(count), value)
            for partition, offset, count, value in fields
        )

    def acknowledge(self, kind: str, *offsets: int) -> None:
        """Records of the last poll, of a topic with one partition."""
        self._clients.ask("acknowledge", self._name, kind, *offsets)

    def commit(self) -> dict[int, str]:
        """KafkaShareConsumer.commitSync: partition -> "ok" or the exception's class."""
        pairs = (word.split(":") for word in self._clients.ask("commit", self._name).split())
        return {int(partition): result for partition, result in pairs}

    def finish(self, kind: str, deliveries: list[Delivery]) -> None:
        """Acknowledge and commit all of a poll."""
        self.acknowledge(kind, *(each.offset for each in deliveries))
        assert self.commit() == {each.partition: "ok" for each in deliveries}

    def acknowledged(self) -> list[tuple[int, int, str]]:
        """What the acknowledgement callback got: (partition, offset, "ok" or the exception's class)."""
        fields = (word.split(":") for word in self._clients.ask("acknowledged", self._name).split())
        return sorted((int(partition), int(offset), result) for partition, offset, result in fields)

    def lock_ms(self) -> int:
        """How long records are locked, as the last answer said."""
        return int(self._clients.ask("lock", self._name))

    def close(self) -> None:
        """Leave the group."""
        self._clients.ask("close", self._name)


def await_no_lag(clients: ShareClients, bootstrap: str, group: str, partitions: int = 1) -> None:
    """Wait until the group has finished all records of so many partitions."""

    def done() -> bool:
        found = clients.offsets(bootstrap, group)
        return len(found) == partitions and all(each.lag == 0 for each in found.values())

    eventually(done, message=lambda: clients.offsets(bootstrap, group))
