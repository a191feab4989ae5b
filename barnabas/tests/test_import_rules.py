"""The import rules hold, and a forbidden import is seen: planted in a copy of the tree and looked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sockets

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "barnabas",
        tmp_path / "barnabas",
        ignore=shutil.ignore_patterns("tests", "__pycache__", "schema"),
    )
    return tmp_path


def broken_contracts(tree: Path) -> list[str]:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--config", str(ROOT / ".importlinter"), "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    broken = re.findall(r"^(.+) BROKEN", done.stdout, re.MULTILINE)
    assert (done.returncode != 0) == bool(broken), done.stdout + done.stderr
    return broken


def test_the_tree_keeps_the_rules(copied_tree: Path) -> None:
    assert broken_contracts(copied_tree) == []


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("storage/log/log.py", "import barnabas.broker.config.broker_config", "runtime <- wire <- storage"),
        ("storage/segment/segment.py", "import barnabas.storage.log.log", "disk <- segment"),
        ("runtime/slices.py", "import barnabas.wire.errors", "runtime <- wire <- storage"),
        ("wire/headers.py", "import barnabas.storage.log.log", "runtime <- wire <- storage"),
        ("broker/partitions/partition.py", "import barnabas.server", "runtime <- wire <- storage"),
        ("commands/topics.py", "import barnabas.broker.node", "the commands of clients"),
        ("broker/api/fetch.py", "import barnabas.broker.network.connection", "handlers import neither"),
        ("broker/api/fetch.py", "import barnabas.broker.api.produce", "handlers do not import each other"),
    ],
)
def test_a_planted_import_is_seen(copied_tree: Path, file: str, line: str, contract: str) -> None:
    planted = copied_tree / "barnabas" / file
    planted.write_text(f"{planted.read_text()}\n{line}\n")
    broken = broken_contracts(copied_tree)
    assert any(name.startswith(contract) for name in broken), broken
