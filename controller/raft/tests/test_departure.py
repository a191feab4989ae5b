"""A voter that leaves its quorum keeps its metadata, as a single node's journal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from barnabas.controller.link.quorum_state import QUORUM_STATE
from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.metadata.records import encode_record
from barnabas.controller.raft.commands import Voters, encode_command
from barnabas.controller.raft.departure import leave_quorum, offset_in_quorum
from barnabas.controller.raft.files import JOURNAL, NOT_VOTED, SNAPSHOT, Changes, JournalFrame, RaftFiles
from barnabas.controller.raft.messages import COMMAND_KIND, Entry
from barnabas.controller.raft.voters import Voter
from barnabas.storage.disk.disk import RealDisk
from compat_tests.virtual.runtime import VirtualRuntime


@pytest.fixture
def directory(tmp_path: Path) -> str:
    kept = Path(__file__).parents[3] / "compat_tests" / "golden" / "cluster-1" / "node-1"
    target = tmp_path / "barnabas"
    shutil.copytree(kept / "__cluster_metadata-0" / "barnabas", target)
    return str(target)


def opened(directory: str) -> Controller:
    controller = Controller(LocalMetadataLog(RealDisk(), directory, VirtualRuntime()))
    controller.open()
    return controller


def test_the_single_node_has_the_voters_metadata(directory: str) -> None:
    before = {path.name: path.read_bytes() for path in Path(directory).iterdir()}
    shown = offset_in_quorum(RealDisk(), directory)
    assert {path.name: path.read_bytes() for path in Path(directory).iterdir()} == before
    end_offset = leave_quorum(RealDisk(), directory, QUORUM_STATE)
    assert end_offset == shown
    left = {path.name for path in Path(directory).iterdir()}
    assert left.isdisjoint({QUORUM_STATE, JOURNAL, SNAPSHOT})
    controller = opened(directory)
    image = controller.image
    assert image.offset + 1 == end_offset
    assert sorted(image.topics) == ["__consumer_offsets", "orders"]
    assert sorted(image.brokers) == [1, 2, 3]
    assert image.topic_configs("orders")["max.message.bytes"] == "54321"
    assert list(map(encode_record, image.records())) == list(
        map(encode_record, opened(directory).image.records())
    )


@pytest.mark.parametrize(
    "gone", [[], [QUORUM_STATE], [QUORUM_STATE, JOURNAL], [QUORUM_STATE, SNAPSHOT, JOURNAL]]
)
def test_an_interrupted_departure_can_be_repeated(directory: str, gone: list[str]) -> None:
    """quorum.state goes first, so that no voter starts on the rest."""
    kept = directory + "-kept"
    shutil.copytree(directory, kept)
    wanted = leave_quorum(RealDisk(), directory, QUORUM_STATE)
    for name in {QUORUM_STATE, SNAPSHOT, JOURNAL} - set(gone):
        shutil.copy(Path(kept) / name, Path(directory) / name)
    if SNAPSHOT in gone:
        with pytest.raises(MetadataError, match="holds no metadata of a voter"):
            leave_quorum(RealDisk(), directory, QUORUM_STATE)
    else:
        assert leave_quorum(RealDisk(), directory, QUORUM_STATE) == wanted
    assert opened(directory).image.offset + 1 == wanted


def test_a_node_that_is_no_voter_can_not_leave(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="holds no metadata of a voter"):
        leave_quorum(RealDisk(), str(tmp_path), QUORUM_STATE)
    with pytest.raises(MetadataError, match="holds no metadata of a voter"):
        offset_in_quorum(RealDisk(), str(tmp_path))


def test_entries_that_name_voters_are_left_behind(directory: str) -> None:
    """The metadata is that of a single node; a new quorum begins with its own voters."""
    files = RaftFiles(RealDisk(), directory)
    loaded = files.load(None)
    term, index = loaded.content.term, loaded.content.entries[-1].index + 1
    command = COMMAND_KIND + encode_command(Voters(term, [Voter(1, "h", 9093, bytes(16))]))
    entries = [*loaded.content.entries, Entry(index, term, command)]
    shown = offset_in_quorum(RealDisk(), directory)
    files.write(Changes(1, None, JournalFrame(term, NOT_VOTED, index, 0, entries), replaces=True))
    assert offset_in_quorum(RealDisk(), directory) == shown
    assert leave_quorum(RealDisk(), directory, QUORUM_STATE) == shown
    assert sorted(opened(directory).image.topics) == ["__consumer_offsets", "orders"]
