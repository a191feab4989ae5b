"""`python -m compat_tests.suites`: kafka-python's integration tests, of two of its versions, against this broker.

    --broker apache | HOST:PORT   against Apache Kafka 4.3.1 or a running broker, where nothing may fail
    --version VERSION             of this version alone
    --quick                       only the tests that `make test` runs
    anything else                 goes to pytest

Exits 1 when a test fails that is not on the list in kafka_python_<version>.toml, or a listed one passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compat_tests.suites import kafka_python
from compat_tests.suites.brokers import make_broker
from compat_tests.suites.sdist import SUITES


def main() -> int:
    """Run the suites one after the other, each against a broker of its own."""
    parser = argparse.ArgumentParser(prog="compat_tests.suites", description="run kafka-python's suites")
    parser.add_argument("--broker", default="barnabas", help="barnabas (default), apache or HOST:PORT")
    parser.add_argument("--version", choices=list(SUITES))
    options, arguments = parser.parse_known_args()
    versions = [options.version] if options.version else list(SUITES)
    failed = [version for version in versions if not _passes(options.broker, version, arguments)]
    if failed:
        print("failed: kafka-python " + ", ".join(failed))
    return 1 if failed else 0


def _passes(kind: str, version: str, arguments: Sequence[str]) -> bool:
    print(f"kafka-python {version}", flush=True)
    with tempfile.TemporaryDirectory(prefix="suites-") as directory:
        broker = make_broker(kind, Path(directory), kafka_python.settings())
        broker.start()
        try:
            code, _ = kafka_python.run(broker, version, arguments)
            if code:
                print("the broker's log ends with\n" + broker.log_text()[-5000:], flush=True)
        finally:
            broker.stop()
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
