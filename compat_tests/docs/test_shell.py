"""The shell in which pages run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.docs.pages import Block, read_page
from compat_tests.docs.shell import Shell
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.barnabas_only


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "page").mkdir()
    made = Shell(tmp_path / "page")
    yield made
    made.close()


def sh(text: str) -> Block:
    return Block("sh", text, 1)


def test_what_a_page_has(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "# A\n\nSave it as `a.py`:\n\n```python\n1\n```\n\n## 1. B\n\n```sh\n# no heading\n```\n\n```text\n1\n```\n"
    )
    assert read_page(page) == {
        "": [],
        "A": [Block("python", "1\n", 6, "a.py")],
        "B": [Block("sh", "# no heading\n", 12), Block("text", "1\n", 16, is_output=True)],
    }


def test_it_is_one_terminal(shell: Shell) -> None:
    shell.run(sh("mkdir a; cd a; x=1; cat"), "")
    shell.run(sh("basename $PWD; echo $x"), "a\n1\n")


def test_a_file_and_what_runs_it(shell: Shell) -> None:
    shell.run_all(
        [
            Block("python", "print(12)\n", 1, "a.py"),
            sh("python a.py\n"),
            Block("text", "12\n", 3, is_output=True),
        ]
    )


def test_outputs_are_compared_without_widths(shell: Shell) -> None:
    shell.run(sh("printf 'a\\tb    c 17 d\\n'"), "a b  c ... d\n")
    with pytest.raises(AssertionError, match="and not"):
        shell.run(sh("echo a b"), "a c")
    with pytest.raises(AssertionError, match="and not"):
        shell.run(sh("echo a b"), "a")


def test_a_command_that_fails(shell: Shell) -> None:
    with pytest.raises(AssertionError, match="no-such-file"):
        shell.run(sh("cat no-such-file | cat\necho on"))


def test_ports_are_free_ones(shell: Shell) -> None:
    printed = shell.run(
        sh("echo localhost:9092 127.0.0.1:9092 127.0.0.1:9404"), "localhost:9092 127.0.0.1:9092 ...404"
    )
    assert "9092" not in printed


def test_a_server_runs_beside_the_next_line_and_ends_with_the_shell(shell: Shell) -> None:
    shell.run(
        sh("barnabas start\necho $! > pid; barnabas topics --list"), "ready PLAINTEXT://127.0.0.1:9092 ..."
    )
    pid = int((shell.folder / "pid").read_text())
    os.kill(pid, 0)
    shell.close()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def test_extras_that_do_not_exist(shell: Shell) -> None:
    shell.run(sh("pip install '.[cli,testing]'"), "")
    with pytest.raises(AssertionError, match="no extra nothing"):
        shell.run(sh("pip install '.[nothing]'"))
