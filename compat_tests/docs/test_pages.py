"""The commands and programs of the documentation run as they are on their pages, and print what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.docs.pages import DOCS, read_page
from compat_tests.docs.shell import Shell

pytestmark = pytest.mark.barnabas_only


@pytest.mark.parametrize("name", ["tutorial.md"])
def test_page(name: str, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    shell = Shell(tmp_path / "page")
    try:
        for blocks in read_page(DOCS / name).values():
            shell.run_all(blocks)
    finally:
        shell.close()
