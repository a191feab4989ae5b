"""Kafka's checkpoint files: a version line, a count line, then one line per entry with fields split by blanks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from barnabas.storage.disk.disk import Disk

CHECKPOINT_VERSION = 0


class CheckpointError(ValueError):
    """A checkpoint file of another format."""


def parse_checkpoint(content: bytes) -> list[list[str]]:
    """The fields of every entry. CheckpointError when version, count or encoding are wrong."""
    if content and content[-1:] != b"\n":  # a number without its last digits is a number too
        raise CheckpointError("the last line is not complete")
    try:
        lines = content.decode().splitlines()
        version, count = int(lines[0]), int(lines[1])
    except (UnicodeDecodeError, IndexError, ValueError):
        raise CheckpointError("neither version nor count") from None
    if version != CHECKPOINT_VERSION:
        raise CheckpointError(f"unknown version {version}")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != count:
        raise CheckpointError(f"{len(entries)} entries where {count} are announced")
    return entries


def format_checkpoint(entries: Iterable[Iterable[object]]) -> bytes:
    lines = [" ".join(str(field) for field in entry) for entry in entries]
    return "\n".join([str(CHECKPOINT_VERSION), str(len(lines)), *lines, ""]).encode()


def read_offsets(disk: Disk, path: str) -> dict[tuple[str, int], int]:
    """(topic, partition) -> offset; empty when there is no file, or none of its content yet: Kafka makes each
    one empty and writes it later. CheckpointError when it is damaged."""
    content = disk.read_file(path) if disk.exists(path) else b""
    if not content:
        return {}
    try:
        return {
            (topic, int(partition)): int(offset) for topic, partition, offset in parse_checkpoint(content)
        }
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def write_offsets(
    disk: Disk, path: str, offsets: Mapping[tuple[str, int], int], *, sync: bool = True
) -> None:
    disk.write_file(path, format_offsets(offsets), sync=sync)


def format_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """As `format_checkpoint`, and faster: with ten thousand entries the thread holds the interpreter lock for a while."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return "\n".join([str(CHECKPOINT_VERSION), str(len(lines)), *lines, ""]).encode()
