"""The recipes of docs/nats.md, read from the page, and a runner for them.

A recipe is the fenced blocks below a heading. `python` blocks run unchanged, one after the other with shared names;
`sh` blocks run line by line; a `text` block is the output of the block before it, and what commands print is left out.
Kafka's tools run if they are wanted, otherwise the commands that stand for them. Each program that is neither has a
substitute, and one without is an error.
"""

from __future__ import annotations

import io
import re
import shlex
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.metadata import distribution
from typing import Any

from barnabas.commands import run as run_command
from barnabas.controller.extension import ConfigTables
from barnabas.extensions import EXTENSIONS
from compat_tests.docs.pages import DOCS, Block
from compat_tests.harness.broker import Broker
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.nats_server import NatsServer

PAGE = DOCS / "nats.md"
KAFKA, NATS, METRICS = "127.0.0.1:9092", "127.0.0.1:4222", "127.0.0.1:9404"


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell block."""
    for line in text.splitlines():
        yield shlex.split(line)


def settings_of(words: list[str]) -> dict[str, str]:
    """Settings of `barnabas start --set NAME=VALUE ...`; each must be a known property."""
    assert words[:2] == ["barnabas", "start"], words
    settings: dict[str, str] = {}
    for option, setting in zip(words[2::2], words[3::2], strict=True):
        assert option == "--set"
        name, _, value = setting.partition("=")
        ConfigTables(EXTENSIONS).broker[name].parse(value)
        settings[name] = value
    return settings


class RecipeRunner:
    """Runs blocks against a broker and a server, whose addresses replace those of the page."""

    def __init__(self, broker: Broker, server: NatsServer, tools: JavaTools | None = None) -> None:
        """With `tools` it runs Kafka's tools, otherwise the commands that stand for them."""
        self.broker = broker
        self.server = server
        self.names: dict[str, Any] = {"__name__": "recipe"}
        self.printed: list[str] = []  # output of each block that ran
        self._tools = tools
        self._metrics = ""

    def run_recipe(self, blocks: list[Block]) -> None:
        """Runs a whole recipe, and asserts that each block prints what the page says."""
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.kind == "text":
                continue
            printed = self.run(block)
            if following is not None and following.kind == "text":
                assert printed == following.text, f"line {following.line} of {PAGE.name}; printed:\n{printed}"
            else:
                assert not printed, f"line {block.line} of {PAGE.name} also prints:\n{printed}"

    def run(self, block: Block) -> str:
        text = block.text.replace(NATS, f"127.0.0.1:{self.server.port}").replace(KAFKA, self.broker.bootstrap)
        if block.kind == "python":
            printed = io.StringIO()
            code = compile("\n" * (block.line - 1) + text, PAGE, "exec")
            with redirect_stdout(printed):
                exec(code, self.names)
            return printed.getvalue()
        assert block.kind == "sh", block
        return "".join(self._command(words) for words in commands(text))

    # -- shell lines

    def _command(self, words: list[str]) -> str:
        program = words[0]
        if program.startswith("kafka-"):
            self._kafka(program.removesuffix(".sh"), words[1:])
            return ""
        stand_ins: dict[str, Callable[[list[str]], str]] = {
            "barnabas": self._barnabas,
            "pip": _installed,
            "nats-server": self._nats_server,
            "curl": self._curl,
        }
        return stand_ins[program](words[1:])

    def _kafka(self, tool: str, words: list[str]) -> None:
        """One of Kafka's tools, or the command that stands for it."""
        if self._tools is not None:
            self._tools.run(tool, *words)
        else:
            self._barnabas([tool.removeprefix("kafka-"), *words])

    def _barnabas(self, words: list[str]) -> str:
        """A command, which finds the broker at the address that it takes by default."""
        given = [] if "--bootstrap-server" in words else ["--bootstrap-server", self.broker.bootstrap]
        with redirect_stdout(io.StringIO()):
            assert run_command(words[0], [*words[1:], *given]) == 0
        return ""

    def _nats_server(self, options: list[str]) -> str:
        assert options == ["-js"]
        assert self.server.jetstream
        return ""

    def _curl(self, words: list[str]) -> str:
        silent, url, pipe, grep, wanted = words
        assert (silent, pipe, grep) == ("-s", "|", "grep")
        if not self._metrics:
            found = re.findall(r"http://([^/\s]+)/metrics", self.broker.log_text())
            assert found, "the broker's log has no address for metrics"
            self._metrics = found[-1]
        with urllib.request.urlopen(url.replace(METRICS, self._metrics)) as answer:
            page = answer.read().decode()
        return "".join(f"{line}\n" for line in page.splitlines() if wanted in line)


def _installed(words: list[str]) -> str:
    """`pip install ...`: asserts that the packages are installed."""
    assert words[:2] == ["install", "."]
    for name in words[2:]:
        assert distribution(name)
    return ""
