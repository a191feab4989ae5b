"""`python -m compat_tests.pythons [3.12] ...`: the tests without a JVM under each Python of this machine, or under these.

Each Python has an environment of its own in .cache. Exits 1 when a test fails. A version that is not here is left out, with a
line that says so; it fails when it was named.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from compat_tests.pythons.interpreters import ROOT, VERSIONS, InstallFailed, environment, find, full_version

TESTS = ("-m", "not jvm and not long", "-n", "4", "--no-loadscope-reorder", "-q", "-rfE")


def main() -> int:
    """Run them, a line for each version at the end."""
    parser = argparse.ArgumentParser(prog="compat_tests.pythons", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="|".join(VERSIONS), help="default: all that are here")
    options, given = parser.parse_known_args()
    unknown = set(options.versions) - set(VERSIONS)
    if unknown:
        parser.error(f"Barnabas is not tested with Python {', '.join(sorted(unknown))}")
    lines, failed = [], False
    for version in options.versions or VERSIONS:
        interpreter = find(version)
        if interpreter is None:
            failed |= bool(options.versions)
            lines.append(
                f"Python {version}: left out, as there is no python{version} on the PATH or in pyenv"
            )
            continue
        try:
            python = environment(version, interpreter)
        except InstallFailed as error:
            failed = True
            lines.append(f"Python {version}: FAILED: {error}")
            continue
        started = time.monotonic()
        status, summary = run(python, given)
        failed |= status != 0
        lines.append(
            f"Python {full_version(python)}: {'FAILED: ' if status else ''}{summary}, {time.monotonic() - started:.0f} s"
        )
    print("\n".join(lines))
    return 1 if failed else 0


def run(python: Path, given: Sequence[str]) -> tuple[int, str]:
    """Run the tests, show their output, and return pytest's status and its last line without dashes and time."""
    # Commands of an environment (nats-server) are found beside its Python; those on the PATH come from there first.
    environ = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = (str(python), "-m", "pytest", *TESTS, *given)
    print(*command, flush=True)
    last = "no output"
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if re.search(r"\d (passed|failed|error)", line):
                last = re.sub(r" in [\d.]+s.*", "", line.strip("= \n"))
    return process.returncode, last


if __name__ == "__main__":
    sys.exit(main())
