"""Sources of property values: a server.properties file, KAFKA_* variables, --set name=value.

Each reader returns `{property name: text}`; broker_config.py merges them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from barnabas.controller.config.validators import ConfigError

# Settings of Kafka's start scripts and its image; they are no properties of a broker.
NOT_PROPERTIES: Final = frozenset(
    [
        "KAFKA_VERSION",
        "KAFKA_HOME",
        "KAFKA_HEAP_OPTS",
        "KAFKA_HEAP_OPT",
        "KAFKA_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_DEBUG",
        "KAFKA_MODE",
    ]
)

JAAS_FILE_PROPERTY: Final = "java.security.auth.login.config"  # of Java

_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # Kafka's are 22 characters
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS: Final = " \t\f"
_UNICODE: Final = r"[0-9a-fA-F]{4}"  # compiled with its first use


def parse_properties(text: str) -> dict[str, str]:
    """The pairs of a Java properties file: comments, continued lines, escapes, `=`, `:` or a blank between.

    The last of several lines with one key wins. ConfigError when an escape `\\uXXXX` is malformed.
    """
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        end = _key_end(line)
        rest = line[end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        pairs[_unescape(line[:end])] = _unescape(rest)
    return pairs


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    continued = False
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(_BLANKS)
        if not continued and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        pending += line[:-1] if continued else line
        if not continued:
            yield pending
            pending = ""
    if pending:
        yield pending


def _key_end(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character if character != "\\" else "")
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if not re.fullmatch(_UNICODE, digits):
                raise ConfigError(f"malformed escape \\u{digits} in {text!r}")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)


def jaas_file(environ: Mapping[str, str]) -> Path | None:
    """What -Djava.security.auth.login.config in KAFKA_OPTS names, as Kafka's start scripts hand it to Java."""
    for option in environ.get("KAFKA_OPTS", "").split():
        name, _, value = option.partition("=")
        if name == f"-D{JAAS_FILE_PROPERTY}" and value:
            return Path(value)
    return None


def new_cluster_id(environ: Mapping[str, str]) -> str | None:
    """CLUSTER_ID, with which Kafka's container image formats empty directories. ConfigError."""
    cluster_id = environ.get("CLUSTER_ID", "").strip()
    if cluster_id and not _CLUSTER_ID.fullmatch(cluster_id):
        raise ConfigError(
            f"CLUSTER_ID: {cluster_id[:100]!r} is no cluster id; kafka-storage.sh random-uuid makes one"
        )
    return cluster_id or None


def properties_from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """KAFKA_LOG_DIRS -> log.dirs, as the apache/kafka image maps them: `___` is `-`, `__` is `_`, `_` is `.`."""
    found: dict[str, str] = {}
    for variable, value in environ.items():
        if variable.startswith("KAFKA_") and variable not in NOT_PROPERTIES:
            name = variable.removeprefix("KAFKA_").lower()
            name = name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
            found[name] = value
    return found


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """`name=value` of each --set; the last of several with one name wins."""
    pairs: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set needs name=value, not {setting!r}")
        pairs[name.strip()] = value
    return pairs
