"""`barnabas topics`, `produce`, ... as processes, and the same command line for Kafka's tool and ours.

What a command changes has a name of its side: `@` in arguments is `jvm1` for Kafka's tool and `our1` for ours, and becomes `@`
again in what they print.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from compat_tests.harness.java_tools import JavaTools, ToolResult

# our command -> Kafka's tool
COMMANDS = {
    "topics": "kafka-topics",
    "produce": "kafka-console-producer",
    "consume": "kafka-console-consumer",
    "groups": "kafka-consumer-groups",
    "configs": "kafka-configs",
    "acls": "kafka-acls",
    "offsets": "kafka-get-offsets",
    "cluster": "kafka-cluster",
    "api-versions": "kafka-broker-api-versions",
    "storage": "kafka-storage",
}
KAFKAS, OURS = "jvm1", "our1"
_TOPIC_ID = re.compile(r"TopicId: [\w-]{22}")
_CONFIGS = re.compile(r"(?<=Configs: )\S+")


def barnabas(
    *arguments: str, stdin: str | bytes = b"", timeout: float = 60, status: int | None = 0
) -> ToolResult:
    """Run `barnabas ARGUMENTS` to its end and check its exit status (None: any)."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [sys.executable, "-m", "barnabas.cli", *arguments],
        input=data,
        capture_output=True,
        timeout=timeout,
        env={name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")},
        check=False,
    )
    result = ToolResult(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert status is None or result.status == status, result.output
    assert "Traceback" not in result.stderr, result.stderr
    return result


def as_printed(text: str) -> str:
    """The text that is compared."""
    return text


def without_order(text: str) -> str:
    """Lines in alphabetical order: where Kafka's order is that of a hash map."""
    return "\n".join(sorted(map(str.strip, text.splitlines())))


@dataclass
class BothTools:
    """Runs a command line with Kafka's tool and with ours against one broker."""

    bootstrap: str
    java: JavaTools

    def compare(
        self,
        command: str,
        *arguments: str,
        stdin: str = "",
        view: Callable[[str], str] = as_printed,
        server: bool = True,
    ) -> ToolResult:
        """Both must print the same on standard output and exit alike; ours. `view` makes what they print comparable."""
        words = [*(("--bootstrap-server", self.bootstrap) if server else ()), *arguments]
        has_sides = any("@" in text for text in (*arguments, stdin))
        theirs = self.java.run(
            COMMANDS[command], *(_of(KAFKAS, word) for word in words), stdin=_of(KAFKAS, stdin), status=None
        )
        ours = barnabas(command, *(_of(OURS, word) for word in words), stdin=_of(OURS, stdin), status=None)
        both = f"{command} {' '.join(arguments)}\nKafka's:\n{theirs.output}\nours:\n{ours.output}"
        assert ours.status == theirs.status, both
        printed = {
            side: _common(side if has_sides else "", result.stdout)
            for side, result in ((KAFKAS, theirs), (OURS, ours))
        }
        assert view(printed[OURS]) == view(printed[KAFKAS]), both
        return ToolResult(ours.status, printed[OURS], ours.stderr)


def _of(side: str, text: str) -> str:
    return text.replace("@", side)


def _common(side: str, text: str) -> str:
    text = _TOPIC_ID.sub("TopicId: ?", text.replace(side, "@") if side else text)
    return _CONFIGS.sub(lambda found: ",".join(sorted(found[0].split(","))), text)
