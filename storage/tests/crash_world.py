"""One disk, the logs on it, and the events of both; everything follows from a seed."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from barnabas.storage.disk.checkpoint_file import read_offsets
from barnabas.storage.errors import StorageError
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.directory import RECOVERY_POINT_FILE
from barnabas.storage.manager.manager import LogManager
from barnabas.storage.tests.crash_model import Model, tree
from barnabas.testing.memory_disk import MemoryDisk, ProcessKilled
from compat_tests.virtual.runtime import VirtualRuntime

DATA = "/var/data"
PRODUCERS = 3
TOPICS = (("a", 0), ("a", 1), ("b", 0))


class Deceived(Exception):
    """The end of a world whose disk has failed under it and then lost power: there are no guarantees."""


class World:
    """One disk, one broker's logs on it at a time, and the models they must agree with."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.disk = MemoryDisk()
        self.disk.sector = random.choice([16, 64, 512])
        self.disk.ordered_names = random.random() < 0.5
        self.models: dict[tuple[str, int], Model] = {}
        self.history: list[str] = []
        self.config = LogConfig(
            segment_bytes=random.choice([600, 1500, 6000]),
            index_interval_bytes=random.choice([1, 200, 4096]),
            max_message_bytes=600,
            flush_messages=random.choice([1, 7, 1 << 62]),
            flush_ms=random.choice([1000, (1 << 63) - 1]),
        )
        self.clock_ms = 1_700_000_000_000
        self.power_failed = False
        self.deceived = False  # a restart has believed pages that a failed sync has left in the cache alone
        self.closed: bool | None = True  # None: unknown
        self.moved: list[Model] = []  # their new starts will be written down at the loop's next turn
        self.open()

    # --- life and death

    def open(self) -> None:
        """Start; compare everything with the models."""
        self.runtime = VirtualRuntime(self.random.randrange(1 << 30), self.clock_ms)
        self.manager = LogManager(self.disk, [DATA], self.runtime, config=self.config)
        claimed = self.checkpoints()
        closed, self.closed = self.closed, None
        self.manager.open()
        clean = self.manager.clean_start
        self.note(f"open {'clean' if clean else 'unclean'}")
        assert closed in (clean, None) or not self.manager.logs(), (
            "clean is what was closed, and nothing else"
        )
        for key, offset in claimed.items():
            if key in self.models:
                end = self.end_of(key)
                assert end is None or offset <= end, f"the checkpoint claims {offset} of {key}"
        for key, model in self.models.items():
            self.adopt(key, model)
        self.power_failed = self.closed = False

    def adopt(self, key: tuple[str, int], model: Model) -> None:
        """As the broker does with what the metadata says and what the disk has."""
        log = self.manager.get(*key)
        if log is not None and log.topic_id == bytes(16):
            self.manager.adopt(log, model.topic_id)
        if log is not None and log.topic_id != model.topic_id:
            self.manager.delete(*key)
            log = None
        if log is None:
            assert self.power_failed or not model.end, f"{key} is gone"
            log = self.manager.create(*key[:1], model.topic_id, key[1], self.config)
        log.update_config(self.config)
        model.found(log, power_failed=self.power_failed)

    def checkpoints(self) -> dict[tuple[str, int], int]:
        """What the disk claims of each log."""
        if not self.disk.exists(DATA):
            return {}
        return read_offsets(self.disk, f"{DATA}/{RECOVERY_POINT_FILE}")

    def end_of(self, key: tuple[str, int]) -> int | None:
        log = self.manager.get(*key)
        return log.log_end_offset if log is not None else None

    def reopen(self) -> None:
        """Start after an unclean stop, perhaps to die again at it, and twice: the second time changes nothing."""
        while self.random.random() < 0.3:
            self.disk.kill_after = self.random.randrange(12)
            self.disk.torn_bytes = self.random.randrange(30)
            try:
                self.open()
            except ProcessKilled:
                self.note("killed in recovery")
            self.die(power=self.random.random() < 0.3)
        self.open()
        if self.random.random() < 0.5:
            once = self.files()
            ends = {log.name: log.log_end_offset for log in self.manager.logs()}
            self.die(power=False)
            self.open()
            assert {log.name: log.log_end_offset for log in self.manager.logs()} == ends
            twice = self.files()
            assert once == twice, sorted(
                name for name in once.keys() | twice.keys() if once.get(name) != twice.get(name)
            )

    def files(self) -> dict[str, bytes]:
        """All there is, but for what only saves work and may be made anew: the last segments' indexes, and
        producer snapshots."""
        found = tree(self.disk, DATA)
        for log in self.manager.logs():
            last = log.segments[-1]
            for index in (last.offset_index, last.time_index):
                found.pop(index.path, None)
        for name in [name for name in found if name.endswith(".snapshot")]:
            del found[name]
        return found

    def die(self, *, power: bool) -> None:
        """The process is gone; with `power`, so is what was not synced."""
        self.clock_ms = self.runtime.time_ms()
        self.disk.fault = self.disk.capacity = self.disk.short_write = None
        self.disk.revive()
        if power and self.deceived:
            raise Deceived
        self.deceived = any(model.doubtful for model in self.models.values()) and not power
        if power:
            random = self.random
            luck = random.choice([0.0, 1.0, 0.5, 0.5, 0.9])
            self.disk = self.disk.crash(
                lambda n: random.randint(0, n) if 0 < luck < 1 and random.random() < 0.8 else round(luck * n)
            )
            for model in self.models.values():
                model.doubtful = False
            self.power_failed = True
        self.moved.clear()
        self.note("power failure" if power else "process gone")

    # --- what happens

    def note(self, what: str) -> None:
        self.history.append(what)

    def learn_promises(self) -> None:
        """What a log says would survive must; after a sync that failed nothing new is promised."""
        for key, model in self.models.items():
            log = self.manager.get(*key)
            assert log is not None
            model.doubtful = model.doubtful or log.failure is not None
            if not model.doubtful:
                model.promised = max(model.promised, min(log.flusher.recovery_point, model.end))

    def create(self, key: tuple[str, int]) -> None:
        if self.manager.get(*key) is not None:  # of a topic that has been deleted
            self.manager.delete(*key)
        model = self.models[key] = Model(self.random.randbytes(16))
        try:
            self.manager.create(key[0], model.topic_id, key[1], self.config)
        except StorageError:
            del self.models[key]

    def starts_are_kept(self, models: Iterable[Model]) -> None:
        for model in models:
            model.start_kept = model.start
        self.moved.clear()

    def after_time(self) -> None:
        well = not (self.disk.fault or self.disk.capacity or self.manager.directories.offline)
        self.starts_are_kept(self.moved if well else ())
