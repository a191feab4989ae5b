"""`python -m compat_tests.packages`: builds all packages in dist/: wheel and source distribution, which it checks, jars, npm's tarball.

twine checks what the package says of itself, contents.py which files there are, installed.py uses the wheel under each Python of
this machine. Those in other languages are built where the toolchain is, and run their own tests. What is left out has a line that
says why. Exits 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from compat_tests.languages.toolchains import LANGUAGES, ExampleFailed, run_package
from compat_tests.packages.build import ROOT, build
from compat_tests.packages.contents import expected, faults_of_sdist, faults_of_wheel
from compat_tests.packages.installed import try_wheel
from compat_tests.packages.versions import versions
from compat_tests.pythons.interpreters import CACHE, VERSIONS, InstallFailed, find, full_version, pip

DIST = ROOT / "dist"
_TWINE = "twine==6.2.0"  # in an environment of its own, as nothing else here needs it


def main() -> int:
    """Build and check; a line for each step."""
    parser = argparse.ArgumentParser(prog="compat_tests.packages", description="builds all packages in dist/")
    parser.add_argument("--tag", help="fail unless it is v and the version of all packages")
    tag: str | None = parser.parse_args().tag
    if tag is not None and (
        wrong := {place: each for place, each in versions().items() if f"v{each}" != tag}
    ):
        print(f"the tag is {tag}, and these have another version: {wrong}")
        return 1
    for pattern in ("*.tar.gz", "*.whl", "*.jar", "*.tgz"):
        for old in DIST.glob(f"barnabas-{pattern}"):
            old.unlink()
    return max(_build_for_python(), _build_for_other_languages())


def _build_for_other_languages() -> int:
    failed = 0
    for language in LANGUAGES:
        missing = language.missing()
        if missing:
            print(f"{language.name}: left out, as it needs {missing}")
            continue
        try:
            passed = run_package(language)
        except ExampleFailed as error:
            failed = 1
            print(f"{language.name}: FAILED: {error}", flush=True)
            continue
        for path in language.artifacts():
            shutil.copy(path, DIST)
        names = ", ".join(path.name for path in language.artifacts()) or "nothing to build"
        print(f"{language.name}: {names}; {passed} tests passed", flush=True)
    return failed


def _build_for_python() -> int:
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
