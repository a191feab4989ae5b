"""`python -m compat_tests.tools [promtool] ...`: tools of others on this broker, all or these; a line for each.

Exits 1 when one fails. A tool that is not here is left out, with a line that names what is missing.
"""

from __future__ import annotations

import argparse
import sys

from compat_tests.tools.prometheus import PROMTOOL
from compat_tests.tools.tool import ToolFailed

TOOLS = (PROMTOOL,)


def main() -> int:
    """Check with them."""
    names = [each.name for each in TOOLS]
    parser = argparse.ArgumentParser(prog="compat_tests.tools", description="tools of others on this broker")
    parser.add_argument("names", nargs="*", metavar="|".join(names))
    wanted: list[str] = parser.parse_args().names
    unknown = set(wanted) - set(names)
    if unknown:
        parser.error(f"no tool {', '.join(sorted(unknown))}")
    failed = 0
    for tool in TOOLS:
        if wanted and tool.name not in wanted:
            continue
        missing = tool.missing()
        if missing:
            print(f"{tool.name}: left out, as it needs {missing}")
            continue
        try:
            checked = tool.check()
        except ToolFailed as error:
            failed += 1
            print(f"{tool.name} {tool.version()}: {error}\n{tool.name}: FAILED")
        else:
            print(f"{tool.name} {tool.version()}: {checked}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
