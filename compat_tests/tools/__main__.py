"""`python -m compat_tests.tools [kcat] ... [--broker apache]`: tools of others on this broker, all or these; a line for each.

Exits 1 when one fails. A tool that is not here and cannot be installed is left out, with a line that names what is missing;
one that is asked for by name fails then.
With `--broker apache` they run on Apache Kafka: a check that fails there is a wrong check, or the tool's own defect.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from compat_tests.tools.arroyo import ARROYO
from compat_tests.tools.bytewax import BYTEWAX
from compat_tests.tools.celery import CELERY
from compat_tests.tools.debezium import DEBEZIUM
from compat_tests.tools.faststream import FASTSTREAM
from compat_tests.tools.faust import FAUST
from compat_tests.tools.kafka_console import KAFKA_CONSOLE
from compat_tests.tools.kafka_viewer import KAFKA_VIEWER
from compat_tests.tools.kafkatop import KAFKATOP
from compat_tests.tools.kcat import KCAT
from compat_tests.tools.prometheus import PROMTOOL
from compat_tests.tools.pyflink import PYFLINK
from compat_tests.tools.quix import QUIX
from compat_tests.tools.rsyslog import RSYSLOG
from compat_tests.tools.tool import BROKERS, Tool, Trial

TOOLS = (
    KCAT,
    QUIX,
    FASTSTREAM,
    FAUST,
    BYTEWAX,
    CELERY,
    ARROYO,
    KAFKA_VIEWER,
    KAFKATOP,
    KAFKA_CONSOLE,
    RSYSLOG,
    PYFLINK,
    DEBEZIUM,
    PROMTOOL,
)


def main() -> int:
    """Check with them."""
    names = [each.name for each in TOOLS]
    parser = argparse.ArgumentParser(prog="compat_tests.tools", description="tools of others on this broker")
    parser.add_argument("names", nargs="*", metavar="|".join(names))
    parser.add_argument("--broker", choices=tuple(BROKERS), default="barnabas")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"no tool {', '.join(sorted(unknown))}")
    wanted = [tool for tool in TOOLS if not arguments.names or tool.name in arguments.names]
    failed = sum(not passes(tool, arguments.broker, is_named=bool(arguments.names)) for tool in wanted)
    return 1 if failed else 0


def passes(tool: Tool, kind: str, *, is_named: bool) -> bool:
    """Check with it on a broker of this kind, and print a line. False when it fails, or was asked for by name and is not here."""
    if tool.barnabas_only and kind != "barnabas":
        print(f"{tool.name}: left out, as it is about this broker alone")
        return True
    missing = tool.missing()
    if missing:
        print(f"{tool.name}: left out, as it needs {missing}")
        return not is_named
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        try:
            checked = tool.check(Trial(Path(directory), kind))
        except Exception as error:  # noqa: BLE001 - whatever a check raises, the other tools have their turn
            print(f"{tool.name} {tool.version()}: {error!r}\n{error}\n{tool.name}: FAILED", flush=True)
            return False
    print(f"{tool.name} {tool.version()}: {checked} ({time.monotonic() - started:.0f} s)", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
