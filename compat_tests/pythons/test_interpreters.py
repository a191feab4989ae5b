"""Which Pythons are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.pythons import __main__ as pythons
from compat_tests.pythons.interpreters import find

pytestmark = pytest.mark.barnabas_only


def fake(path: Path, says: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {says}\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "pyenv" / "versions"


def test_the_one_on_the_path_comes_first(pyenv: Path, tmp_path: Path) -> None:
    fake(pyenv / "3.13.1" / "bin" / "python3.13", "3.13")
    assert find("3.13") == pyenv / "3.13.1" / "bin" / "python3.13"
    expected = fake(tmp_path / "bin" / "python3.13", "3.13")
    assert find("3.13") == expected


def test_a_shim_of_a_version_that_is_not_switched_on_is_passed_over(pyenv: Path, tmp_path: Path) -> None:
    fake(tmp_path / "bin" / "python3.13", "'pyenv: command not found'", 127)
    fake(pyenv / "3.13.9" / "bin" / "python3.13", "3.13")
    newest = fake(pyenv / "3.13.10" / "bin" / "python3.13", "3.13")
    fake(pyenv / "3.13-dev" / "bin" / "python3.13", "3.13")
    assert find("3.13") == newest


def test_one_that_cannot_make_environments_is_none(pyenv: Path, tmp_path: Path) -> None:
    """Debian's python3 without python3-venv: ensurepip is not there."""
    fake(tmp_path / "bin" / "python3.13", "''", 1)
    assert find("3.13") is None


def test_a_version_that_is_not_here_has_a_line_and_fails_when_it_was_named(
    pyenv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compat_tests.pythons"])
    assert pythons.main() == 0
    assert capsys.readouterr().out.count("left out") == 4
    monkeypatch.setattr("sys.argv", ["compat_tests.pythons", "3.12"])
    assert pythons.main() == 1
    assert "Python 3.12: left out, as there is no python3.12" in capsys.readouterr().out
