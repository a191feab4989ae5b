"""The calls that not every Unix has, and what stands in for them. Linux is tested, macOS is written for.

The sources are read, not run: a call of KNOWN that appears without standing in USED fails, so a change that adds
one has to say what happens where it is missing.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from barnabas.tests.product import nodes_of, product_files, text_of

# Names that exist on Linux and not, or not alike, on every other Unix that Python supports.
KNOWN = {
    "MSG_MORE", "MSG_ZEROCOPY", "SO_REUSEPORT", "TCP_CORK", "TCP_QUICKACK", "accept4", "copy_file_range", "epoll",
    "eventfd", "fallocate", "fdatasync", "memfd_create", "posix_fadvise", "posix_fallocate", "preadv", "preadv2",
    "pwritev", "pwritev2", "sched_setaffinity", "sendfile", "splice", "sync_file_range", "RWF_NOWAIT",
}  # fmt: skip

ASKED = re.compile("|".join((*sorted(KNOWN), "/proc/")))

# What is used, and what macOS does with it.
USED = {
    "RWF_NOWAIT": "taken by getattr with 0 for its absence: every byte of a file then counts as in memory",
    "MSG_MORE": "taken by getattr with 0 for its absence: the answer's header goes out as a segment of its own",
    "memfd_create": "asked for by hasattr: a private key is passed to OpenSSL in a temporary file of mode 0600",
    "posix_fadvise": "asked for by hasattr: what is loaded is read without the hint",
    "preadv": "macOS 11 and newer have it",
    "pwritev": "macOS 11 and newer have it",
    "sync_file_range": "called through ctypes: fsync stands in for it",
    "sendfile": "macOS has it, with the arguments that are used here",
}


def names_in(source: Path) -> set[str]:
    """Attributes, names, and strings given to getattr, of a file that has any of what is looked for."""
    found: set[str] = set()
    if ASKED.search(text_of(source)) is None:
        return found
    for node in nodes_of(source):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_every_linux_only_call_has_its_fallback_written_down() -> None:
    used = set()
    for source in product_files():
        if "messages" not in source.parts:
            used |= names_in(source) & KNOWN
    assert used == set(USED)


# What is read of Linux's /proc, and what its absence means.
PROC = {
    "/proc/self/statm": "the metrics do without the memory of the process",
    "/proc/self/stat": "and without the time of its start",
    "/proc/stat": "as /proc/self/stat",
    "/proc/self/io": "and without what it reads from disks and writes to them",
    "/proc/self/fd": "and without its open files; a private key is passed to OpenSSL in a temporary file",
    "/proc/self/cgroup": "barnabas.cores=auto does without a limit of CPUs",
    "/proc/sys/kernel/random/boot_id": "only a clean stop's attendance of NATS is believed: gaps begin earlier",
    "/proc/sys/net/ipv4/ip_local_port_range": "ports of tests are chosen below those that IANA leaves to connections",
}


def test_what_is_read_of_proc_has_its_absence_written_down() -> None:
    found = set()
    for source in product_files():
        found |= {name for name in names_in(source) if name.startswith("/proc/")}
    assert found == set(PROC)
