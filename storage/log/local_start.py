"""Where the local part of a tiered log begins (KIP-405), kept in `local-log-start-offset` of its directory.

Segments leave the disk although the log's start lies before them. A power failure may undo some of these removals and not others: what
is left in front of this offset is no part of the log, or there would be a hole behind it. The file is synced before anything is
removed, and counts only where a segment begins at its offset.
"""

from __future__ import annotations

from typing import Final

from barnabas.storage.disk.disk import Disk

LOCAL_START_FILE: Final = "local-log-start-offset"


def write_local_start(disk: Disk, directory: str, offset: int) -> None:
    """Blocking. OSError."""
    disk.write_file(f"{directory}/{LOCAL_START_FILE}", b"%d\n" % offset)


def read_local_start(disk: Disk, directory: str) -> int:
    """-1 where there is none, or it can't be read."""
    try:
        content = disk.read_file(f"{directory}/{LOCAL_START_FILE}").strip()
    except OSError:
        return -1
    return int(content) if content.isdigit() and len(content) < 20 else -1


def remove_local_start(disk: Disk, directory: str) -> None:
    """The log begins with its first segment, whichever that is. OSError."""
    disk.remove(f"{directory}/{LOCAL_START_FILE}")
