"""The APIs that clients expect of a broker."""

from __future__ import annotations

import re
from pathlib import Path

import barnabas.wire
from barnabas.commands.api_versions import OF_CONTROLLERS


def test_apis_of_controllers_are_those_of_the_schema() -> None:
    folder = Path(barnabas.wire.__file__).parent / "schema"
    requests = re.findall(
        r"^request \w+ key=(\d+) .*?listeners=(\S+)",
        "\n".join(path.read_text() for path in folder.glob("[0-9]*.txt")),
        re.MULTILINE,
    )
    assert len(requests) > 80
    assert {int(key) for key, listeners in requests if "broker" not in listeners.split(",")} == OF_CONTROLLERS
