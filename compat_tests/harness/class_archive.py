"""Makes the class archive of Kafka's JVMs (class data sharing): with it Kafka starts in two thirds of the processor time.

`python -m compat_tests.harness.class_archive` starts Kafka once, and its JVM writes the archive when it ends. A JVM without the
archive, or of another version, loads all classes from the jars.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.kafka_jars import CLASS_ARCHIVE, archive_options


def main() -> int:
    """Make it, unless it is there and newer than this file."""
    if CLASS_ARCHIVE.exists() and CLASS_ARCHIVE.stat().st_mtime > Path(__file__).stat().st_mtime:
        return 0
    made = CLASS_ARCHIVE.with_suffix(".new")
    with tempfile.TemporaryDirectory(prefix="kafka-classes-") as folder:
        broker = ApacheBroker(Path(folder) / "broker")
        old = archive_options()  # a JVM that uses an archive can't write one
        others = (each for each in broker.jvm_options if each not in old)
        broker.jvm_options = (*others, f"-XX:ArchiveClassesAtExit={made}")
        broker.start()
        broker.stop()
    if made.exists():
        made.rename(CLASS_ARCHIVE)
    else:
        print("this Java makes no class archive; tests with Kafka's JVMs take longer", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
