"""Installs tools into .cache/tools, each with its registry's own client: Debian packages without installing them on the system,
Python packages into an environment of their own, npm packages into a folder.

A folder is whole or not there: a run that is broken off leaves nothing that looks finished.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compat_tests.harness.kafka_jars import ivy_jar
from compat_tests.tools.tool import CACHE, Tool, Trial

_FETCH_S = 900
_STAMP = ".installed"  # with what was asked for: another list installs anew
_SYSTEM = Path("/")
_LIBRARIES = Path("usr", "lib", str(sysconfig.get_config_var("MULTIARCH") or ""))
_PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True)
class DebianTool:
    """A program on the path, or from these packages (dependencies that a small system lacks among them)."""

    program: str
    packages: Sequence[str]
    beside: str = ""  # a file among the libraries without which the program on the path is of no use
    folder: str = ""  # where the program is, if not in a folder of the path

    def missing(self) -> str:
        """What is not here and cannot be fetched."""
        if self._on_path() is not None:
            return ""
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            return f"{self.program} (Debian: {' '.join(self.packages)})"
        return _install(
            self._cached, f"Debian: {' '.join(self.packages)}", " ".join(self.packages), self._fetch
        )

    def command(self, *arguments: str | Path) -> list[str]:
        """The command line."""
        program = self._on_path() or next(path for path in self._places(self._cached) if path.exists())
        return [str(program), *map(str, arguments)]

    def environment(self) -> dict[str, str]:
        """With the libraries of the packages."""
        return {} if self._on_path() else {"LD_LIBRARY_PATH": str(self.libraries)}

    @property
    def libraries(self) -> Path:
        """The folder of shared libraries."""
        return (_SYSTEM if self._on_path() else self._cached) / _LIBRARIES

    def _on_path(self) -> str | None:
        if self.beside and not (_SYSTEM / _LIBRARIES / self.beside).exists():
            return None
        installed = (str(path) for path in self._places(_SYSTEM) if path.exists())
        return next(installed, None) or shutil.which(self.program)

    def _places(self, root: Path) -> list[Path]:
        return [root / part / self.program for part in (self.folder or "usr/bin", "usr/sbin")]

    @property
    def _cached(self) -> Path:
        return CACHE / self.program

    def _fetch(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as archives:
            _call(("apt-get", "download", *self.packages), Path(archives))
            for package in Path(archives).glob("*.deb"):
                _call(("dpkg", "-x", str(package), str(folder)), folder)
        program = next(path for path in self._places(folder) if path.exists())
        needed = _call(("env", f"LD_LIBRARY_PATH={folder / _LIBRARIES}", "ldd", str(program)), folder)
        absent = re.findall(r"(\S+) => not found", needed)
        if absent:
            raise InstallFailed(f"no {', '.join(absent)}")


@dataclass(frozen=True, slots=True)
class PythonTool:
    """Python packages, the first of them the tool itself, as `name==version`."""

    name: str
    requirements: Sequence[str]

    def missing(self) -> str:
        """What cannot be installed."""
        text = " ".join(self.requirements)
        return _install(self._folder, f"PyPI: {text}", f"{sys.version_info[:2]} {text}", self._fetch)

    def tool(self, name: str, check: Callable[[Trial], str]) -> Tool:
        """With this check; the version is that of the first package."""
        version = self.requirements[0].partition("==")[2]
        return Tool(name, self.missing, lambda: version, check, pinned=version)

    def command(self, *arguments: str | Path) -> list[str]:
        """A script that the packages brought, with its arguments."""
        script, *further = map(str, arguments)
        return [str(self._folder / "bin" / script), *further]

    def program(self, name: str, *arguments: str | Path) -> list[str]:
        """One of `programs/`, which is not on the import path of its process: they are named as what they import."""
        return self.command("python", "-P", _PROGRAMS / f"{name}.py", *arguments)

    def package(self, name: str) -> Path:
        """The folder of an installed package."""
        (found,) = self._folder.glob(f"lib/python*/site-packages/{name}")
        return found

    @property
    def _folder(self) -> Path:
        return CACHE / self.name

    def _fetch(self, folder: Path) -> None:
        uv = Path(sys.executable).parent / "uv"
        # relocatable: it is made in a folder with another name
        _call(
            (str(uv), "venv", "--relocatable", "--allow-existing", "--python", sys.executable, str(folder)),
            folder,
        )
        python = str(folder / "bin" / "python")
        _call((str(uv), "pip", "install", "--python", python, *self.requirements), folder)


@dataclass(frozen=True, slots=True)
class NpmTool:
    """A package of npm with a command, and those that it needs besides, as `name@version`; `node` is one of them."""

    name: str
    version: str
    further: Sequence[str] = ()

    def missing(self) -> str:
        """What is not here and cannot be installed."""
        if shutil.which("npm") is None:
            return "Node with npm"
        text = " ".join(self._packages)
        return _install(self._folder, f"npm: {text}", text, self._fetch)

    def tool(self, check: Callable[[Trial], str]) -> Tool:
        """With this check."""
        return Tool(self.name, self.missing, lambda: self.version, check, pinned=self.version)

    def command(self, *arguments: str | Path) -> list[str]:
        """The command with arguments."""
        programs = self._folder / "node_modules" / ".bin"
        return [str(programs / "node"), str(programs / self.name), *map(str, arguments)]

    @property
    def _packages(self) -> tuple[str, ...]:
        return (f"{self.name}@{self.version}", *self.further)

    @property
    def _folder(self) -> Path:
        return CACHE / self.name

    def _fetch(self, folder: Path) -> None:
        options = ("--no-audit", "--no-fund", "--cache", str(CACHE.parent / "npm"))
        _call(("npm", "install", *options, "--prefix", str(folder), *self._packages), folder)


@dataclass(frozen=True, slots=True)
class MavenFile:
    """One file of the Maven repository, without its dependencies; fetched with Java alone, by the Ivy of pyspark."""

    organisation: str
    module: str
    version: str
    extension: str = "jar"
    classifier: str = ""

    def missing(self) -> str:
        """What is not here and cannot be fetched."""
        if shutil.which("java") is None:
            return "Java 17 or newer (Debian: openjdk-17-jre-headless)"
        text = f"{self.organisation}:{self.module}:{self.version}"
        return _install(self._folder, f"Maven: {text}", text, self._fetch)

    @property
    def path(self) -> Path:
        """The file."""
        return self._folder / f"{self.module}.{self.extension}"

    @property
    def _folder(self) -> Path:
        return CACHE / self.module

    def _fetch(self, folder: Path) -> None:
        classifier = f' m:classifier="{self.classifier}"' if self.classifier else ""
        (folder / "ivy.xml").write_text(
            f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="barnabas" module="tools"/>
  <dependencies>
    <dependency org="{self.organisation}" name="{self.module}" rev="{self.version}" conf="default->master" transitive="false">
      <artifact name="{self.module}" type="{self.extension}" ext="{self.extension}"{classifier}/>
    </dependency>
  </dependencies>
</ivy-module>
"""
        )
        ivy = CACHE.parent / "ivy"
        retrieved = folder / "[artifact].[ext]"
        options = (
            f"-Divy.default.ivy.user.dir={ivy}",
            f"-Divy.home={ivy}",
            "-cp",
            str(ivy_jar()),
            "org.apache.ivy.Main",
        )
        _call(("java", *options, "-ivy", str(folder / "ivy.xml"), "-retrieve", str(retrieved)), folder)


class InstallFailed(Exception):
    """A command of an installation failed."""


def _install(folder: Path, source: str, wanted: str, fetch: Callable[[Path], None]) -> str:
    """Nothing, or what is missing and why."""
    stamp = folder / _STAMP
    with _locked(folder.name):
        if stamp.exists() and stamp.read_text() == wanted:
            return ""
        print(f"{folder.name}: installing ({source})", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"{folder.name}-") as temporary:
            unfinished = Path(temporary) / folder.name
            unfinished.mkdir()
            try:
                fetch(unfinished)
            except InstallFailed as error:
                return f"{folder.name} ({source}; installing it failed: {error})"
            (unfinished / _STAMP).write_text(wanted)
            os.rename(unfinished, folder)
    return ""


@contextmanager
def _locked(name: str) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _call(command: Sequence[str], directory: Path) -> str:
    """Its standard output."""
    try:
        return subprocess.run(
            command,
            cwd=directory,
            check=True,
            capture_output=True,
            text=True,
            timeout=_FETCH_S,
            stdin=subprocess.DEVNULL,
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = re.findall(r"\S.*", error.stderr or error.stdout) or [str(error)]
        raise InstallFailed(lines[-1]) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallFailed(str(error)) from error
