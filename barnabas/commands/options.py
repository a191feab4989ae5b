"""Options of Kafka's tools, one table for each tool, parsed by the rules of its library (jopt-simple).

`--name value`, `--name=value` and `-name value` are the same; names are not abbreviated; most tools ignore arguments without an
option.
A wrong option, or a combination that the tool refuses, is a UsageError: the message and the table on standard error, exit code 1.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas import __version__
from barnabas.commands.terminal import complain, say

if TYPE_CHECKING:
    from collections.abc import Iterable

_KAFKA_VERSION: Final = "4.3.1"  # whose tools these are


class UsageError(Exception):
    """The command line is wrong."""


class ArgumentError(Exception):
    """A value that can't be used; the text is Kafka's. Each command reports it as its tool does."""


class CommandFailed(Exception):
    """The command ends with exit code 1. The text, if any, goes to standard error."""


class Option(NamedTuple):
    """`value`: what stands for the value in --help; "" for an option without one."""

    name: str
    help: str
    value: str = ""
    kind: type = str  # int: anything else is refused
    default: Any = None
    is_value_optional: bool = False
    only_with: tuple[str, ...] = ()  # refused without one of these
    short: str = ""  # another name


class Options:
    """The options of one command line."""

    def __init__(
        self,
        table: Mapping[str, Option],
        given: Mapping[str, list[str]],
        names: Sequence[str],
        words: Sequence[str],
    ) -> None:
        """`names`: of the options in the order of the command line, one as often as it stands there. `words`: what belongs to none."""
        self._table = table
        self._given = given
        self.names = names
        self.words = words

    def has(self, name: str) -> bool:
        """Whether it is on the command line."""
        return name in self._given

    def value(self, name: str) -> Any:
        """Its value, or its default. UsageError when it has several or the wrong kind."""
        found = self.values(name)
        if not found:
            return self._table[name].default
        if len(found) > 1:
            raise UsageError(f"Found multiple arguments for option {name}, but you asked for only one")
        return found[0]

    def values(self, name: str) -> list[Any]:
        """All its values. UsageError for the wrong kind."""
        return [_converted(self._table[name], text) for text in self._given.get(name, ())]

    def which_of(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are on the command line."""
        return [name for name in names if name in self._given]

    def require(self, *names: str) -> None:
        """UsageError when one is missing."""
        for name in names:
            if name not in self._given:
                raise UsageError(f'Missing required argument "[{name}]"')

    def refuse_with(self, name: str, others: Iterable[str]) -> None:
        """UsageError when `name` and one of the others are given."""
        if name in self._given:
            for other in others:
                if other in self._given and other != name:
                    raise UsageError(f'Option "[{name}]" can\'t be used with option "[{other}]"')


class Tool(NamedTuple):
    """A command: `barnabas NAME`, or `script` of Kafka."""

    name: str
    script: str
    summary: str
    options: tuple[Option, ...]
    run: Callable[[Options], int]
    words: str = ""  # before the options, in --help


_HELP: Final = (
    Option("help", "Print this."),
    Option("version", "Print the release of Kafka whose tool this is, and that of barnabas."),
)


def run_tool(tool: Tool, arguments: Sequence[str]) -> int:
    """Parse and run; the exit code."""
    try:
        options = parse(tool, arguments)
        if options.has("help"):
            say(usage(tool))
            return 0
        if options.has("version"):
            say(f"{_KAFKA_VERSION} (barnabas {__version__})")
            return 0
        if not arguments:
            raise UsageError(tool.summary)
        code = tool.run(options)
        sys.stdout.flush()
        return code
    except UsageError as error:
        complain(f"{error}\n{usage(tool)}")
    except CommandFailed as error:
        if text := str(error):
            complain(text)
    except BrokenPipeError:
        # What reads the output has ended. The interpreter's own flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 1


def parse(tool: Tool, arguments: Sequence[str]) -> Options:
    """UsageError, with jopt-simple's texts."""
    table = {option.name: option for option in (*tool.options, *_HELP)}
    given: dict[str, list[str]] = {}
    names, words = [], []
    shorts = {option.short: option.name for option in tool.options if option.short}
    left = [*arguments]
    while left:
        word = left.pop(0)
        if word == "--":
            break
        if not _looks_like_an_option(word):
            words.append(word)
            continue
        name, equals, text = word.lstrip("-").partition("=")
        name = shorts.get(name, name)
        option = table.get(name)
        if option is None:
            raise UsageError(f"{name} is not a recognized option")
        values = given.setdefault(name, [])
        names.append(name)
        if not option.value:
            continue  # a value after `=` is ignored, as jopt-simple does
        if equals:
            values.append(text)
        elif option.is_value_optional:
            if left and not _looks_like_an_option(left[0]):
                values.append(left.pop(0))
        elif left:
            values.append(left.pop(0))
        else:
            raise UsageError(f"Option {name} requires an argument")
    options = Options(table, given, names, words)
    for name in given:
        if (needed := table[name].only_with) and not options.which_of(needed):
            raise UsageError(f"Option(s) [{name}] are unavailable given other options on the command line")
    return options


def _looks_like_an_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _converted(option: Option, text: str) -> Any:
    if option.kind is str:
        return text
    try:
        return option.kind(text)
    except ValueError:
        raise UsageError(f"Cannot parse argument '{text}' of option {option.name}") from None


def whole_number(text: str) -> int:
    """ArgumentError, with Java's text."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f'For input string: "{text}"') from None


def usage(tool: Tool) -> str:
    """The text of --help."""
    words = f"{tool.words} " if tool.words else ""
    lines = [f"usage: barnabas {tool.name} {words}OPTION ...   (as {tool.script})", "", tool.summary, ""]
    for option in (*tool.options, *_HELP):
        value = f" [{option.value}]" if option.is_value_optional else f" {option.value}".rstrip()
        text = option.help if option.default is None else f"{option.help} (default: {option.default})"
        head = f"  --{option.name}{f', -{option.short}' if option.short else ''}{value}"
        wrapped = [each for line in text.split("\n") for each in textwrap.wrap(line, 78) or [""]]
        if len(head) < 31:
            lines.append(f"{head:<32}{wrapped.pop(0)}")
        else:
            lines.append(head)
        lines += [f"{'':<32}{each}" for each in wrapped]
    return "\n".join(lines)
