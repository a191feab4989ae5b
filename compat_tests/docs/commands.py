"""The tables of docs/commands.md: the options of every subcommand of `barnabas`."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Final

from barnabas import commands
from barnabas.cli import build_parser
from barnabas.commands.options import Option, Tool
from barnabas.kafka_storage import TOOL as STORAGE

PAGE: Final = "docs/commands.md"


def _text(text: str) -> str:
    return text.replace("|", "\\|")


def _rows(head: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {head} | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {_text(name)} | {_text(about)} |" for name, about in rows)])


def _parser(name: str, parser: argparse.ArgumentParser) -> str:
    """A subcommand of argparse: its usage, its text and its options."""
    rows = []
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            value = (
                "" if action.nargs == 0 else f" {action.metavar or _choices(action) or action.dest.upper()}"
            )
            names = ", ".join(f"`{each}{value}`" for each in action.option_strings) or f"`{action.metavar}`"
            rows.append((names, action.help or ""))
    text = (parser.description or "").rstrip()
    return f"## barnabas {name}\n\n```text\n{text}\n```\n\n{_rows('option', rows)}\n"


def _choices(action: argparse.Action) -> str:
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""


def _tool(tool: Tool) -> str:
    """A command with the options of one of Kafka's tools."""

    def names(option: Option) -> str:
        value = (
            f" [{option.value}]" if option.is_value_optional else f" {option.value}" if option.value else ""
        )
        short = f", `-{option.short}{value}`" if option.short else ""
        return f"`--{option.name}{value}`{short}"

    rows = [
        (names(each), each.help + (f" Default: `{each.default}`." if each.default is not None else ""))
        for each in tool.options
    ]
    return f"## barnabas {tool.name}\n\n{tool.summary} As `{tool.script}`.\n\n{_rows('option', rows)}\n"


def tables() -> dict[str, str]:
    """Markdown by the name of its markers."""
    (subcommands,) = (
        action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    tools = {
        **{
            name: import_module(f"{commands.__name__}.{name.replace('-', '_')}").TOOL
            for name in commands.SUMMARIES
        },
        "storage": STORAGE,
    }
    parts = [
        _tool(tools[name]) if name in tools else _parser(name, parser)
        for name, parser in subcommands.choices.items()
    ]
    return {"commands": "\n".join(parts)}
