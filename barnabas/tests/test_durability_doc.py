"""docs/durability.md, docs/transactions.md and docs/nats.md promise nothing without a test: each that they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("wire", "storage", "controller", "broker", "compat_tests")
NAMED = re.compile(r"`(?P<path>[\w/]*test_\w+\.py)?(?:::(?P<test>test_\w+))?`")


@pytest.mark.parametrize("page", ["durability.md", "transactions.md", "nats.md"])
def test_every_test_that_is_named_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    path, tests = "", 0
    for named in NAMED.finditer(text):
        if named["path"]:
            places = [
                ROOT / named["path"],
                *(place for part in PARTS for place in ROOT.glob(f"{part}/**/{named['path']}")),
            ]
            found = [place for place in places if place.is_file()]
            assert found, f"{named['path']} is not there"
            path = found[0].read_text()
        if named["test"]:
            assert f"def {named['test']}(" in path, f"{named['test']} is not there"
            tests += 1
    assert tests > 20
