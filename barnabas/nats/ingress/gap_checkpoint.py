"""The gap checkpoint: the time until which each core binding has received all messages, written once a second.

After a restart a gap begins there; the log alone does not show it, because its last message may be old when none were
published. The file is not synced while the broker runs, so it survives the process but not the machine; when the machine
fails, the log may lose its end as well. A file of another boot is not valid, and the time of the log's last message counts. A
clean stop syncs the file and marks it as stopped.

The format is that of checkpoint files: an entry `boot ID running|stopped`, then `TOPIC-ID MILLISECONDS` each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.storage.disk.checkpoint_file import CheckpointError, format_checkpoint, parse_checkpoint

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import Disk

log = logging.getLogger("barnabas.nats")

FILE_NAME: Final = "barnabas-nats-attendance"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BYTES_MAX: Final = 16 << 20


class ReceivedUntil(NamedTuple):
    """The content of the file: milliseconds since the epoch by topic id, and whether it is valid for the logs."""

    until_ms: Mapping[bytes, int]
    is_valid: bool


class GapCheckpoint:
    """The file at `path`. All calls on the loop's thread."""

    def __init__(self, disk: Disk, path: str, runtime: Runtime) -> None:
        self._disk = disk
        self._path = path
        self._runtime = runtime
        self._boot = _boot_id()
        self._written: Mapping[bytes, int] | None = None
        self._is_writing = False
        self._warnings = RepeatedWarnings(runtime, log)

    def load(self) -> ReceivedUntil:
        """Reads the file of the last run; blocking. A file that can't be read counts as none."""
        try:
            if not self._disk.exists(self._path) or self._disk.size(self._path) > _BYTES_MAX:
                return ReceivedUntil({}, False)
            (kind, boot, state), *entries = parse_checkpoint(self._disk.read_file(self._path))
            if kind != "boot":
                raise CheckpointError("it does not begin with the boot")
            until_ms = {bytes.fromhex(topic_id): int(time_ms) for topic_id, time_ms in entries}
        except (OSError, ValueError) as error:
            log.warning("%s is ignored: %s", self._path, error)
            return ReceivedUntil({}, False)
        return ReceivedUntil(until_ms, state == "stopped" or (bool(self._boot) and boot == self._boot))

    def note(self, until_ms: Mapping[bytes, int]) -> None:
        """Writes the times soon, if they are new."""
        if self._is_writing or until_ms == self._written:
            return
        self._is_writing = True
        self._written = dict(until_ms)
        content = self._format(until_ms, "running")
        disk, path = self._disk, self._path

        def written(_result: None, error: BaseException | None) -> None:
            self._is_writing = False
            if error is not None:
                self._failed(error)

        self._runtime.run_in_thread(lambda: disk.write_file(path, content, sync=False), written)

    def close(self, until_ms: Mapping[bytes, int]) -> None:
        """Writes the times of a clean stop; blocking."""
        if not until_ms and self._written is None:
            return
        try:
            self._disk.write_file(self._path, self._format(until_ms, "stopped"))
        except OSError as error:
            self._failed(error)

    def _format(self, until_ms: Mapping[bytes, int], state: str) -> bytes:
        entries = [(topic_id.hex(), time_ms) for topic_id, time_ms in sorted(until_ms.items())]
        return format_checkpoint([("boot", self._boot or "-", state), *entries])

    def _failed(self, error: BaseException) -> None:
        self._written = None
        self._warnings.warn(self._path, type(error).__name__, f"{self._path} can't be written: {error}")


def _boot_id() -> str:
    """Identifies the boot of this machine; "" where that is not known."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
