"""Journals and snapshots of a single node as earlier versions have written them.

`captured/NAME` holds the files of a stopped or crashed node, `image.txt` the offset and the records (hex) of the metadata
that they lead to, and `error.txt` the error where a start must be refused.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.metadata.records import encode_record
from barnabas.storage.disk.disk import RealDisk
from compat_tests.virtual.runtime import VirtualRuntime

CAPTURED = Path(__file__).parent / "captured"


def copied(name: str, target: Path) -> str:
    """A copy of captured files that a test may change."""
    return str(shutil.copytree(CAPTURED / name, target / "metadata"))


def opened(directory: str) -> MetadataImage:
    controller = Controller(LocalMetadataLog(RealDisk(), directory, VirtualRuntime()))
    controller.open()
    controller.close()
    return controller.image


def described(image: MetadataImage) -> list[str]:
    """The image as `image.txt` has it."""
    return [f"offset {image.offset}", *(encode_record(record).hex() for record in image.records())]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in CAPTURED.glob("*/image.txt")))
def test_captured_files_lead_to_the_same_image(name: str, tmp_path: Path) -> None:
    directory = copied(name, tmp_path)
    expected = (CAPTURED / name / "image.txt").read_text().splitlines()
    assert described(opened(directory)) == expected
    assert described(opened(directory)) == expected, "after a first start as well"


def test_captured_damage_stops_the_start(tmp_path: Path) -> None:
    directory = copied("damaged", tmp_path)
    with pytest.raises(MetadataError) as raised:
        opened(directory)
    expected = (CAPTURED / "damaged" / "error.txt").read_text().strip()
    assert str(raised.value) == expected.replace("/m/", f"{directory}/")
