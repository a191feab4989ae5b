"""Fetch Apache Kafka's jars with Java alone.

The Ivy jar inside pyspark resolves Kafka and its tools from the public Maven repository, so Maven is not needed. All
files go to the repository's git-ignored `.cache/`: the jars to `.cache/kafka-<version>/lib`, Ivy's own cache to
`.cache/ivy`. A stamp file beside the jars records the list of dependencies: an unchanged list fetches nothing, a
changed one fetches again.

Run it: `python compat_tests/harness/kafka_jars.py` prints the jar directory.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KAFKA_VERSION = "4.3.1"
_LOG4J_VERSION = "2.25.1"

# (organisation, module, revision, extra classifiers beside the main jar)
_DEPENDENCIES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, ()),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION, ()),
    ("org.apache.kafka", "kafka-streams", KAFKA_VERSION, ("test",)),
    ("org.apache.kafka", "kafka-storage", KAFKA_VERSION, ("test",)),  # LocalTieredStorage, for tiered topics
    ("org.apache.kafka", "connect-file", KAFKA_VERSION, ()),
    ("org.apache.kafka", "connect-mirror", KAFKA_VERSION, ()),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J_VERSION, ()),
    ("org.apache.logging.log4j", "log4j-core", _LOG4J_VERSION, ()),
)

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY_ROOT / ".cache"
JAR_DIRECTORY = CACHE / f"kafka-{KAFKA_VERSION}" / "lib"
CLASS_ARCHIVE = JAR_DIRECTORY.parent / "classes.jsa"  # made by class_archive.py
_STAMP = JAR_DIRECTORY.parent / "complete"


class JarsUnavailableError(RuntimeError):
    """The jars cannot be fetched; the message says what is missing."""


def java_executable() -> str:
    """Path of `java`; raises JarsUnavailableError with what to install when there is none."""
    java = shutil.which("java")
    if java is None:
        raise JarsUnavailableError(
            "no `java` on PATH: Kafka's tools and Spark need Java 17 or newer (Debian: openjdk-17-jre-headless)"
        )
    return java


def archive_options() -> tuple[str, ...]:
    """Options of a JVM that loads Kafka's classes from the archive, if the archive exists."""
    if not CLASS_ARCHIVE.exists():
        return ()
    return f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"


def ensure_jars() -> Path:
    """Return the directory that holds every jar, fetching it first when needed."""
    wanted = _ivy_xml()
    if _is_complete(wanted):
        return JAR_DIRECTORY
    java = java_executable()
    ivy = ivy_jar()
    with _exclusive(CACHE / "kafka-jars.lock"):
        if not _is_complete(wanted):
            _fetch(java, ivy, wanted)
    return JAR_DIRECTORY


def _is_complete(wanted: str) -> bool:
    return _STAMP.is_file() and _STAMP.read_text() == wanted and any(JAR_DIRECTORY.glob("kafka_2.13-*.jar"))


def _ivy_xml() -> str:
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '  <info organisation="barnabas" module="kafka-jars"/>',
        "  <dependencies>",
    ]
    for organisation, module, revision, classifiers in _DEPENDENCIES:
        lines.append(
            f'    <dependency org="{organisation}" name="{module}" rev="{revision}" conf="default->master,runtime">'
        )
        if classifiers:
            lines.append(f'      <artifact name="{module}" type="jar" ext="jar"/>')
        lines.extend(
            f'      <artifact name="{module}" type="jar" ext="jar" m:classifier="{classifier}"/>'
            for classifier in classifiers
        )
        lines.append("    </dependency>")
    lines += ["  </dependencies>", "</ivy-module>", ""]
    return "\n".join(lines)


def ivy_jar() -> Path:
    """The jar of Ivy, which fetches from the Maven repository."""
    # find_spec, because importing pyspark takes seconds
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsUnavailableError("pyspark is not installed: its Ivy jar is what fetches Kafka's jars")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise JarsUnavailableError(f"no ivy-*.jar beside {spec.origin}")
    return jars[-1]


def _fetch(java: str, ivy: Path, ivy_xml: str) -> None:
    home = JAR_DIRECTORY.parent
    shutil.rmtree(home, ignore_errors=True)
    JAR_DIRECTORY.mkdir(parents=True)
    (home / "ivy.xml").write_text(ivy_xml)
    ivy_home = CACHE / "ivy"
    command = [
        java,
        f"-Divy.default.ivy.user.dir={ivy_home}",
        f"-Divy.home={ivy_home}",
        "-cp",
        str(ivy),
        "org.apache.ivy.Main",
        "-ivy",
        str(home / "ivy.xml"),
        "-retrieve",
        f"{JAR_DIRECTORY}/[artifact]-[revision](-[classifier]).[ext]",
    ]
    _say(f"fetching Apache Kafka {KAFKA_VERSION} into {JAR_DIRECTORY} (about 130 MB, a minute or two)")
    output = _run_with_progress(command, home / "ivy.log")
    if not any(JAR_DIRECTORY.glob("kafka_2.13-*.jar")) or not any(JAR_DIRECTORY.glob("kafka-tools-*.jar")):
        tail = "\n".join(output.splitlines()[-30:])
        raise JarsUnavailableError(f"Ivy did not fetch all jars of Kafka; the end of its output:\n{tail}")
    _STAMP.write_text(ivy_xml)
    _say(f"{len(list(JAR_DIRECTORY.glob('*.jar')))} jars ready")


def _run_with_progress(command: list[str], log: Path) -> str:
    started = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        while True:
            try:
                process.wait(timeout=5)
                break
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - started
                lines = log.read_text().splitlines()
                found = sum(line.lstrip().startswith("found ") for line in lines)
                downloaded = sum("[SUCCESSFUL" in line for line in lines)
                _say(f"  {seconds:4.0f} s: {found} jars resolved, {downloaded} downloaded")
    text = log.read_text()
    if process.returncode != 0:
        tail = "\n".join(text.splitlines()[-30:])
        raise JarsUnavailableError(f"Ivy failed with exit code {process.returncode}:\n{tail}")
    return text


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file, so that two test runs do not fetch into one folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Fetch the jars and print their directory; exit code 1 and a line with the reason if that fails."""
    try:
        print(ensure_jars())
    except JarsUnavailableError as error:
        _say(f"kafka_jars: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
