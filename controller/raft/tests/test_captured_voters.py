"""Files of voters as earlier versions have written them.

`captured/NAME` holds a voter's journal and snapshot, and what they lead to: `image.txt` the offset and the records (hex) of
the metadata, `state.txt` term, vote, entries and snapshot, `error.txt` the error where a start must be refused.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.metadata.records import encode_record
from barnabas.controller.raft.departure import leave_quorum, offset_in_quorum
from barnabas.controller.raft.files import RaftFiles
from barnabas.storage.disk.disk import RealDisk
from compat_tests.virtual.runtime import VirtualRuntime

CAPTURED = Path(__file__).parent / "captured"


def copied(name: str, target: Path) -> str:
    """A copy of captured files that a test may change."""
    return str(shutil.copytree(CAPTURED / name, target / "metadata"))


@pytest.mark.parametrize("name", sorted(path.parent.name for path in CAPTURED.glob("*/image.txt")))
def test_captured_files_lead_to_the_same_image(name: str, tmp_path: Path) -> None:
    directory = copied(name, tmp_path)
    disk = RealDisk()
    offset, *records = (CAPTURED / name / "image.txt").read_text().splitlines()
    assert f"offset {offset_in_quorum(disk, directory) - 1}" == offset
    leave_quorum(disk, directory, "quorum.state")
    controller = Controller(LocalMetadataLog(disk, directory, VirtualRuntime()))
    controller.open()
    assert f"offset {controller.image.offset}" == offset
    assert [encode_record(record).hex() for record in controller.image.records()] == records


@pytest.mark.parametrize("name", sorted(path.parent.name for path in CAPTURED.glob("*/state.txt")))
def test_captured_files_lead_to_the_same_state(name: str, tmp_path: Path) -> None:
    loaded = RaftFiles(RealDisk(), copied(name, tmp_path)).load(None)
    content, snapshot = loaded.content, loaded.snapshot
    last, previous = snapshot.last, snapshot.previous
    assert [
        f"term {content.term}",
        f"voted_for {content.voted_for}",
        f"commit_index {content.commit_index}",
        f"sequence {content.sequence}",
        f"end {content.end}",
        *(f"entry {entry.index} {entry.term} {entry.command.hex()}" for entry in content.entries),
        f"snapshot {previous.index} {previous.term} {last.index} {last.term} {snapshot.state_term} {snapshot.offset}",
        *(f"record {record.hex()}" for record in snapshot.records),
        *(
            f"voter {each.node_id} {each.host}:{each.port} {each.directory_id.hex()}"
            for each in snapshot.voters or ()
        ),
    ] == (CAPTURED / name / "state.txt").read_text().splitlines()


def test_captured_damage_stops_the_start(tmp_path: Path) -> None:
    directory = copied("damaged", tmp_path)
    with pytest.raises(MetadataError) as raised:
        RaftFiles(RealDisk(), directory).load(None)
    expected = (CAPTURED / "damaged" / "error.txt").read_text().strip()
    assert str(raised.value) == expected.replace("/m/", f"{directory}/")
