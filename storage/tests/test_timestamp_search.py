"""A thread looks for times while the loop goes on appending."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("largest", [False, True])
def test_what_is_appended_during_a_search_is_not_forgotten(workshop: Any, largest: bool) -> None:
    log = workshop.log()
    log.append_as_leader(workshop.batch(timestamp=1000), 0)
    log.close()
    log = workshop.log()  # its times have not been read yet
    appended: list[Any] = []

    def meanwhile(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(".log") and not appended:
            appended.append(True)
            appended.append(log.append_as_leader(workshop.batch(timestamp=5000), 0))

    search = log.timestamp_search(None if largest else 500)
    workshop.disk.fault = meanwhile
    found = search()
    workshop.disk.fault = None
    assert found.offset == 0
    assert appended[1].base_offset == 1
    assert log.segments[-1].max_timestamp == 5000
    assert log.max_timestamp_offset().timestamp == 5000
