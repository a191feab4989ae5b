"""Fetch franz-go's module, which holds the tests of its client, and compile them.

Go fetches it by version into `.cache/go`; the sum that it names is compared with the one here. Nothing of it is
in this repository.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.22.2"
_SUM = "h1:EdwIHGzD/4mgCpl/sNS0C74JYn6cL/r2KYS+8UC96Ww="

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "go"


class GoUnavailableError(RuntimeError):
    """The tests can not be had here; the message says why."""


def ensure_test_program() -> Path:
    """The compiled tests of pkg/kgo; made first when they are not there (a minute or two)."""
    program = _CACHE / f"kgo-{VERSION}.test"
    if not program.exists():
        if shutil.which("go") is None:
            raise GoUnavailableError("no `go` on PATH: franz-go's tests need Go 1.26 or newer")
        _CACHE.mkdir(parents=True, exist_ok=True)
        print(f"fetching and compiling franz-go {VERSION}, a minute or two", flush=True)
        found = json.loads(_go("mod", "download", "-json", f"{MODULE}@{VERSION}", folder=_CACHE))
        if found["Sum"] != _SUM:
            raise GoUnavailableError(f"franz-go {VERSION} has the sum {found['Sum']}, not {_SUM}")
        unfinished = program.with_suffix(f".{os.getpid()}")
        _go("test", "-c", "-o", str(unfinished), "./pkg/kgo", folder=Path(found["Dir"]))
        os.rename(unfinished, program)
    return program


def go_environment() -> dict[str, str]:
    """What is to be set for `go`, so that all that it fetches and compiles lies in `.cache/go`."""
    return {
        "GOMODCACHE": str(_CACHE / "mod"),
        "GOCACHE": str(_CACHE / "build"),
        "GOFLAGS": "-modcacherw",  # so that `make clean` can remove it
        "GOWORK": "off",
    }


def build_program(source: Path, program: Path) -> Path:
    """Compile the program in the folder `source`, whose go.sum names all that Go fetches for it."""
    if shutil.which("go") is None:
        raise GoUnavailableError("no `go` on PATH")
    _go("build", "-o", str(program), ".", folder=source)
    return program


def _go(*arguments: str, folder: Path) -> str:
    environment = {**os.environ, **go_environment()}
    result = subprocess.run(
        ["go", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise GoUnavailableError(f"go {' '.join(arguments)}:\n{result.stderr[-3000:]}{result.stdout[-3000:]}")
    return result.stdout
