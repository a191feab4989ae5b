"""`python -m compat_tests.languages [java] [go] [node]`: packages and examples of tests in other languages, all or these.

Exits 1 when one fails. A language without its toolchain is skipped, with a line that names what is missing.
"""

from __future__ import annotations

import argparse
import sys
import time

from compat_tests.languages.toolchains import LANGUAGES, ExampleFailed, run, run_package


def main() -> int:
    """Run them, a line for each."""
    parser = argparse.ArgumentParser(prog="compat_tests.languages", description="tests in other languages")
    parser.add_argument("names", nargs="*", metavar="java|go|node")
    names: list[str] = parser.parse_args().names
    unknown = set(names) - {each.name for each in LANGUAGES}
    if unknown:
        parser.error(f"no example in {', '.join(sorted(unknown))}")
    failed = 0
    for language in LANGUAGES:
        if names and language.name not in names:
            continue
        missing = language.missing()
        if missing:
            print(f"{language.name}: left out, as it needs {missing}")
            continue
        started = time.monotonic()
        try:
            own, count = run_package(language), run(language)
        except ExampleFailed as error:
            failed += 1
            print(f"{language.name}: {error}\n{language.name}: FAILED")
        else:
            print(
                f"{language.name}: {own} of the package and {count} of the example passed in {time.monotonic() - started:.1f} s",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
