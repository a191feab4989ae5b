"""What tests of a supervisor (barnabas.cores) need: ports in a row, and the processes of its nodes, from /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from barnabas.start_errors import can_bind
from barnabas.testing.ports import free_port

_PARENT = 1  # among the fields of /proc/PID/stat behind the name
_NODE_ID = "node.id="


def consecutive_ports(count: int) -> int:
    """The first of so many free ones."""
    while True:
        port = free_port()
        if all(can_bind("127.0.0.1", port + index) for index in range(1, count)):
            return port


def nodes_of(supervisor: int) -> dict[int, int]:
    """The process of each node that runs, by the node's id."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has just ended
            if entry.name.isdigit() and int(_stat(entry)[_PARENT]) == supervisor:
                words = (entry / "cmdline").read_text().split("\0")
                named = [word for word in words if word.startswith(_NODE_ID)]
                if named:  # otherwise it has ended, or does not run its program yet
                    found[int(named[-1].removeprefix(_NODE_ID))] = int(entry.name)
    return found


def runs(process: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return _stat(Path(f"/proc/{process}"))[0] not in "ZX"
    except OSError:
        return False


def _stat(entry: Path) -> list[str]:
    """State, parent, ..."""
    return (entry / "stat").read_text().rpartition(")")[2].split()
