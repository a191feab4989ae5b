"""`python -m compat_tests.suites`: kafka-python's integration tests against this broker.

    --broker apache | HOST:PORT   against Apache Kafka 4.3.1 or a running broker, where nothing may fail
    --quick                       only the choice that `make test` holds
    anything else                 goes to pytest

Exits with pytest's code: 1 when a test fails that is not on the list in kafka_python.toml, or a listed one passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker, ExternalBroker
from compat_tests.suites import kafka_python


def main() -> int:
    """Start a broker, run the suite, stop the broker."""
    parser = argparse.ArgumentParser(prog="compat_tests.suites", description="run the suites of others")
    parser.add_argument("--broker", default="barnabas", help="barnabas (default), apache or HOST:PORT")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="suites-") as directory:
        broker = _broker(options.broker, Path(directory))
        broker.start()
        try:
            code, _ = kafka_python.run(broker, arguments)
            if code:
                print("the broker's log ends with\n" + broker.log_text()[-5000:], file=sys.stderr)
        finally:
            broker.stop()
        return code


def _broker(kind: str, directory: Path) -> Broker:
    if kind == "barnabas":
        return BarnabasBroker(directory, kafka_python.settings(kind))
    if kind == "apache":
        return ApacheBroker(directory, kafka_python.settings(kind))
    return ExternalBroker(kind)


if __name__ == "__main__":
    sys.exit(main())
