"""`python -m compat_tests.packages`: builds wheel and source distribution in dist/, and checks them.

twine checks what the package says of itself, contents.py which files there are, installed.py uses the wheel under each Python of
this machine; one that is not here is left out, with a line that says so. Exits 1 when anything is wrong.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from compat_tests.packages.build import ROOT, build
from compat_tests.packages.contents import expected, faults_of_sdist, faults_of_wheel
from compat_tests.packages.installed import try_wheel
from compat_tests.pythons.interpreters import CACHE, VERSIONS, InstallFailed, find, full_version, pip

DIST = ROOT / "dist"
_TWINE = "twine==6.2.0"  # in an environment of its own, as nothing else here needs it


def main() -> int:
    """Build and check; a line for each step."""
    for old in (*DIST.glob("barnabas-*.tar.gz"), *DIST.glob("barnabas-*.whl")):
        old.unlink()
    sdist, wheel = build(DIST)
    for path in (sdist, wheel):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes", flush=True)
    faults = [*faults_of_sdist(sdist), *faults_of_wheel(wheel)]
    if faults:
        print("\n".join(faults))
        return 1
    print(f"each has {len(expected())} files, all that belong there and no other", flush=True)
    try:
        subprocess.run((_twine(), "check", "--strict", sdist, wheel), check=True)
    except (InstallFailed, subprocess.CalledProcessError) as error:
        print(f"twine: {error}")
        return 1
    failed = False
    for version in VERSIONS:
        interpreter = find(version)
        if interpreter is None:
            print(f"Python {version}: left out, as there is no python{version} on the PATH or in pyenv")
            continue
        try:
            try_wheel(wheel, interpreter)
        except (InstallFailed, RuntimeError, subprocess.SubprocessError) as error:
            failed = True
            print(f"Python {version}: FAILED: {error}", flush=True)
        else:
            print(f"Python {full_version(interpreter)}: installed; produced and consumed", flush=True)
    return 1 if failed else 0


def _twine() -> Path:
    folder = CACHE / _TWINE
    program = folder / "bin" / "twine"
    if not program.exists():
        subprocess.run((sys.executable, "-m", "venv", "--clear", folder), check=True)
        try:
            pip(folder / "bin" / "python", _TWINE)
        except InstallFailed:
            shutil.rmtree(folder)
            raise
    return program


if __name__ == "__main__":
    sys.exit(main())
