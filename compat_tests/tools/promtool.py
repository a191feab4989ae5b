"""promtool, Prometheus's checker: on the path, or from Debian's package `prometheus`, fetched into .cache without installing it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compat_tests.tools.tool import ToolFailed

CACHE = Path(__file__).resolve().parents[2] / ".cache"
_FETCHED = CACHE / "prometheus"
_FETCH_S = 180
_LINT_FAULTS = 3  # the exit code of `check metrics`
_AS_EXPORTERS_DO = (
    'non-summary metrics should not have "quantile" label',
    'non-histogram and non-summary metrics should not have "_count" suffix',
    'non-histogram and non-summary metrics should not have "_sum" suffix',
)


def missing() -> str:
    """What is not here and could not be fetched; nothing when promtool is here."""
    if _path() is not None:
        return ""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "promtool (Debian: prometheus)"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return "" if _path() is not None else _fetch()


def _path() -> str | None:
    fetched = _FETCHED / "usr" / "bin" / "promtool"
    return shutil.which("promtool") or (str(fetched) if fetched.exists() else None)


def _fetch() -> str:
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="prometheus-") as temporary:
        try:
            subprocess.run(
                ("apt-get", "download", "prometheus"),
                cwd=temporary,
                check=True,
                capture_output=True,
                text=True,
                timeout=_FETCH_S,
            )
            (package,) = Path(temporary).glob("*.deb")
            unpacked = Path(temporary) / "unpacked"
            subprocess.run(("dpkg", "-x", package, unpacked), check=True, capture_output=True, text=True)
        except (subprocess.SubprocessError, ValueError) as error:
            why = getattr(error, "stderr", None) or str(error)
            return f"promtool (Debian: prometheus; fetching it failed: {str(why).strip().splitlines()[-1]})"
        # Whole or not at all: a run that is broken off leaves nothing that looks finished.
        os.rename(unpacked, _FETCHED)
    return ""


def version() -> str:
    """As "2.42.0"."""
    found = re.search(r"version (\d[\d.]*)", run(("--version",)))
    return found.group(1) if found else "unknown"


def run(arguments: Sequence[str | Path], given: str = "") -> str:
    """Its output; ToolFailed when it finds fault."""
    code, output = _output(arguments, given)
    if code:
        raise ToolFailed(f"promtool {' '.join(map(str, arguments))}:\n{output}")
    return output


def check_page(page: str) -> None:
    """The text format, and names as Prometheus recommends them, except where jmx_exporter and kafka_exporter name metrics as
    parts of summaries."""
    code, output = _output(("check", "metrics"), page)
    faults = [line for line in output.splitlines() if line and not line.endswith(_AS_EXPORTERS_DO)]
    if faults or code not in (0, _LINT_FAULTS):
        raise ToolFailed("promtool check metrics:\n" + "\n".join(faults))


def _output(arguments: Sequence[str | Path], given: str) -> tuple[int, str]:
    path = _path()
    assert path is not None, "missing() says so"
    result = subprocess.run(
        (path, *arguments), input=given, capture_output=True, text=True, timeout=120, check=False
    )
    return result.returncode, result.stdout + result.stderr
