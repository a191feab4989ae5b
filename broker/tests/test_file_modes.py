"""What a broker makes in its directories is read by its own user and group alone, its metadata by its user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from barnabas.storage.disk.disk import RealDisk
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from compat_tests.harness.threaded_node import ThreadedNode

CREATE_TOPICS = 19


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("umask", "directories", "files"),
    [(0o022, 0o750, 0o640), (0o000, 0o750, 0o640), (0o077, 0o700, 0o600), (0o027, 0o750, 0o640)],
    ids=lambda mode: f"{mode:o}",
)
def test_modes_of_what_is_made(tmp_path: Path, umask: int, directories: int, files: int) -> None:
    before = os.umask(umask)
    try:
        _create_and_stop(tmp_path / "logs")
    finally:
        os.umask(before)
    made = [tmp_path / "logs", *(tmp_path / "logs").rglob("*")]
    assert {_mode(path) for path in made if path.is_dir()} == {directories}
    # SCRAM credentials and passwords are in the metadata, as in Kafka's
    secret = {path for path in made if path.name.startswith("metadata.") or path.suffix == ".checkpoint"}
    assert {path.suffix for path in secret} == {".journal", ".checkpoint"}
    assert {_mode(path) for path in secret} == {0o600}
    others = {path for path in made if path.is_file()} - secret
    assert {"meta.properties", "00000000000000000000.log", ".lock"} <= {path.name for path in others}
    assert {_mode(path) for path in others} == {files}


def _create_and_stop(directory: Path) -> None:
    node = ThreadedNode(directory, {})
    topic = CreatableTopic(name="modes", num_partitions=1, replication_factor=1)
    answer = node.client().ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=30000))
    assert answer.topics[0].error_code == 0
    node.stop()


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_never_written_to_what_a_crash_left_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "metadata.snapshot"
    (tmp_path / "metadata.snapshot.tmp").write_bytes(b"left behind")
    RealDisk().write_file(str(path), b"secret", secret=True)
    assert (path.read_bytes(), _mode(path)) == (b"secret", 0o600)
    RealDisk().write_file(str(path), b"public")
    assert (path.read_bytes(), _mode(path)) == (b"public", 0o640)
