"""The examples of tests in other languages, with the toolchain, the set-up and the command of each.

The tests are the files of java/, go/ and node/; they use no Python except the command `barnabas`, which is on the path.
Toolchains fetch dependencies into the repository's git-ignored `.cache`, npm into node/node_modules.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_CACHE = _HERE.parents[1] / ".cache"
_SECONDS = 440  # of a command, nearly all of them for fetching and compiling, the first time


class ExampleFailed(AssertionError):
    """A test failed, none ran, or a dependency could not be fetched; the message contains the output."""


@dataclass(frozen=True, slots=True)
class Language:
    """One of the folders."""

    name: str
    missing: Callable[[], str]  # what is not installed here, or nothing
    test: Sequence[str]
    passed: str  # pattern of what is printed of tests that have passed: their number, or one of them
    set_up: Callable[[], Sequence[str]] = tuple  # the command to run before, if any
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where it lives."""
        return _HERE / self.name


def run(language: Language) -> int:
    """Run its tests and return the number of passed ones; a lock serialises runs. Raises ExampleFailed."""
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / f"{language.name}-example.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        set_up = language.set_up()
        if set_up:
            _run(language, set_up)
        output = _run(language, language.test)
    found: list[str] = re.findall(language.passed, output)
    count = sum(int(each) if each.isdigit() else 1 for each in found)
    if not count:
        raise ExampleFailed(f"no test of {language.name} has run:\n{output}")
    return count


def _run(language: Language, command: Sequence[str]) -> str:
    """Run the command and return its output. Kills all processes that it started, which would keep the output open."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    process = subprocess.Popen(
        command,
        cwd=language.folder,
        env={**os.environ, **language.environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise ExampleFailed(f"{' '.join(command)} in {language.folder}:\n{output[-20_000:]}")
    return output


def _missing_java() -> str:
    home = os.environ.get("JAVA_HOME")
    compiler = Path(home, "bin", "javac").is_file() if home else shutil.which("javac")
    if shutil.which("mvn") and compiler:
        return ""
    return "a JDK 17 or newer with Maven (Debian: default-jdk-headless, maven)"


def _missing_go() -> str:
    return "" if _is_new_enough(("go", "env", "GOVERSION"), (1, 26)) else "Go 1.26 or newer"


def _missing_node() -> str:
    new_enough = _is_new_enough(("node", "--version"), (20,)) and shutil.which("npm")
    return "" if new_enough else "Node 20 or newer with npm"


def _is_new_enough(command: Sequence[str], wanted: tuple[int, ...]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return tuple(int(each) for each in re.findall(r"\d+", printed)[: len(wanted)]) >= wanted


def _install_packages() -> Sequence[str]:
    node = _HERE / "node"
    installed, wanted = node / "node_modules" / ".package-lock.json", node / "package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime:
        return ()
    return ("npm", "ci", "--no-audit", "--no-fund", "--cache", str(_CACHE / "npm"))


LANGUAGES = (
    Language(
        "java",
        _missing_java,
        # A repository of its own, because Spark's resolver fails on a shared one that lacks some jars.
        ("mvn", "-B", "-ntp", f"-Dmaven.repo.local={_CACHE / 'maven'}", "test"),
        r"Tests run: (\d+), Failures: 0, Errors: 0, Skipped: 0, Time",
    ),
    Language(
        "go",
        _missing_go,
        ("go", "test", "-count=1", "-v", "-vet=off", "./..."),
        r"(?m)^--- PASS: (\w+)",
        # Compiled packages stay in the user's own cache, which other clones share; compiling them takes a minute.
        environment={
            "GOMODCACHE": str(_CACHE / "go" / "mod"),
            "GOFLAGS": "-modcacherw -trimpath",  # can be removed; compiled the same wherever it lies
            "GOWORK": "off",
        },
    ),
    Language(
        "node",
        _missing_node,
        ("node", "--test", "--test-reporter=tap"),
        r"(?m)^# pass (\d+)$",
        _install_packages,
    ),
)
