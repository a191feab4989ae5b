"""The packages for tests in other languages, and the examples that use them, with the toolchain and the commands of each.

The packages are in deploy/junit, deploy/go and deploy/npm, the examples in java/, go/ and node/; they use no Python except the
command `barnabas`, which is on the path. Each example takes its package as a user does: from Maven's local repository, by a replace
in go.mod, from npm's tarball. Toolchains fetch dependencies into the repository's git-ignored `.cache`, npm into node/node_modules.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_CACHE = _ROOT / ".cache"
_PACKED = _CACHE / "npm-packages"
_SECONDS = 440  # of a command, nearly all of them for fetching and compiling, the first time


class ExampleFailed(AssertionError):
    """A test failed, none ran, or a dependency could not be fetched; the message contains the output."""


Command = tuple[Path, Sequence[str | Path]]  # where, what


@dataclass(frozen=True, slots=True)
class Language:
    """A package and the example that uses it."""

    name: str  # the example's folder
    missing: Callable[[], str]  # what is not installed here, or nothing
    package: Path
    test_package: Sequence[str | Path]
    test: Sequence[str | Path]
    passed: str  # pattern of what is printed of tests that have passed: their number, or one of them
    install: Callable[[], Sequence[Command]] = tuple  # what makes the example see the package as it is now
    built: Sequence[
        str
    ] = ()  # what the package's own command and `install` leave behind, as patterns below the repository
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the example lives."""
        return _HERE / self.name

    def artifacts(self) -> list[Path]:
        """The files to publish, after `run_package`."""
        return [path for pattern in self.built for path in sorted(_ROOT.glob(pattern))]


def run_package(language: Language) -> int:
    """Run the package's own tests, build it, and return the number of passed ones. Raises ExampleFailed."""
    with _locked(language):
        output = _run(language, (language.package, language.test_package))
        for command in language.install():
            _run(language, command)
    return _count(language, output)


def run(language: Language) -> int:
    """Run the example's tests and return the number of passed ones. Raises ExampleFailed."""
    with _locked(language):
        for command in language.install():
            _run(language, command)
        output = _run(language, (language.folder, language.test))
    return _count(language, output)


@contextmanager
def _locked(language: Language) -> Iterator[None]:
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / f"{language.name}-example.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _count(language: Language, output: str) -> int:
    found: list[str] = re.findall(language.passed, output)
    count = sum(int(each) if each.isdigit() else 1 for each in found)
    if not count:
        raise ExampleFailed(f"no test of {language.name} has run:\n{output}")
    return count


def _run(language: Language, command: Command) -> str:
    """Run the command and return its output. Kills all processes that it started, which would keep the output open."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    folder, words = command
    process = subprocess.Popen(
        words,
        cwd=folder,
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
        raise ExampleFailed(f"{' '.join(map(str, words))} in {folder}:\n{output[-20_000:]}")
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


# A repository of its own, because Spark's resolver fails on a shared one that lacks some jars.
_MVN = ("mvn", "-B", "-ntp", f"-Dmaven.repo.local={_CACHE / 'maven'}")
_GO_TEST = ("go", "test", "-count=1", "-v", "-vet=off", "./...")
_NODE_TEST = ("node", "--test", "--test-reporter=tap")
_NPM_INSTALL = ("npm", "install", "--no-audit", "--no-fund", "--cache", _CACHE / "npm")
_JUNIT, _GO, _NPM = (_ROOT / "deploy" / name for name in ("junit", "go", "npm"))


def _install_jar() -> Sequence[Command]:
    return ((_JUNIT, (*_MVN, "install", "-DskipTests")),)


def _install_tarball() -> Sequence[Command]:
    node = _HERE / "node"
    _PACKED.mkdir(parents=True, exist_ok=True)
    for old in _PACKED.glob("*.tgz"):
        old.unlink()
    installed, wanted = node / "node_modules" / ".package-lock.json", node / "package-lock.json"
    is_installed = installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime
    dependencies = (node, ("npm", "ci", *_NPM_INSTALL[2:]))
    version: str = json.loads((_NPM / "package.json").read_text())["version"]
    return (
        *(() if is_installed else (dependencies,)),
        (_NPM, ("npm", "pack", "--pack-destination", _PACKED)),
        # Not in package.json: the lock file has the hash of a tarball, which each change of the package changes
        (node, (*_NPM_INSTALL, "--no-save", _PACKED / f"barnabas-testbroker-{version}.tgz")),
    )


LANGUAGES = (
    Language(
        "java",
        _missing_java,
        _JUNIT,
        (*_MVN, "package"),
        (*_MVN, "test"),
        r"Tests run: (\d+), Failures: 0, Errors: 0, Skipped: 0, Time",
        _install_jar,
        ("deploy/junit/target/barnabas-junit-*.jar",),
    ),
    Language(
        "go",
        _missing_go,
        _GO,
        _GO_TEST,
        _GO_TEST,
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
        _NPM,
        _NODE_TEST,
        _NODE_TEST,
        r"(?m)^# pass (\d+)$",
        _install_tarball,
        (".cache/npm-packages/*.tgz",),
    ),
)
