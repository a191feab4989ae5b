"""What is said at the end of a node that can't write its metadata."""

from __future__ import annotations

import errno
import os

import pytest

from barnabas.broker.cluster.kafka_metadata import why_it_ends
from barnabas.controller.metadata.errors import MetadataError


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "Make room there"), (errno.EFBIG, "ulimit -f"), (errno.EIO, "Check the disk")],
)
def test_an_error_of_the_disk_names_the_directory_and_what_to_do(number: int, says: str) -> None:
    text = why_it_ends(OSError(number, os.strerror(number)), "/data/__cluster_metadata-0/barnabas")
    assert text.startswith("the metadata can't be written to /data/__cluster_metadata-0/barnabas: ")
    assert os.strerror(number) in text
    assert says in text
    assert "start this node again" in text


def test_other_errors_have_their_own_text() -> None:
    assert why_it_ends(MetadataError("it is damaged"), "/data") == "it is damaged"
