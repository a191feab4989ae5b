"""`python -m spark_examples` lists the examples; `python -m spark_examples NAME [options]` runs one of them.

An example is a folder that also runs alone (`python -m spark_examples.NAME`); its package's docstring describes it.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path


def examples() -> dict[str, str]:
    """Their names, in order, and a line about each."""
    names = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__main__.py"))
    return {name: (importlib.import_module(f"spark_examples.{name}").__doc__ or "").strip() for name in names}


def main() -> int:
    """Run the example that the first argument names; 2, and the list, when there is none of that name."""
    found = examples()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in found:
        del sys.argv[1]  # the rest is the example's
        runpy.run_module(f"spark_examples.{name}", run_name="__main__", alter_sys=True)
        return 0
    print(f"There is no example {name!r}." if name else "Which one?", "There are:", file=sys.stderr)
    for one, text in found.items():
        print(f"  {one:<14}{text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
