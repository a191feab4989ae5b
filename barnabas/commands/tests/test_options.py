"""The parser of options, by the rules of jopt-simple."""

from __future__ import annotations

import pytest

from barnabas.commands.options import CommandFailed, Option, Options, Tool, UsageError, parse, run_tool, usage

TABLE = (
    Option("topic", "A topic.", "TOPIC"),
    Option("list", "List."),
    Option("count", "A number.", "N", int, default=3),
    Option("state", "With a state.", "STATE", is_value_optional=True, only_with=("list",)),
)


def tool(run: object = None) -> Tool:
    return Tool("tool", "kafka-tool.sh", "A tool.", TABLE, run or (lambda options: 0))  # type: ignore[arg-type]


def parsed(*words: str) -> Options:
    return parse(tool(), words)


@pytest.mark.parametrize("words", [("--topic", "a=b"), ("--topic=a=b",), ("-topic", "a=b")])
def test_the_forms_of_an_option(words: tuple[str, ...]) -> None:
    assert parsed(*words).value("topic") == "a=b"


def test_values() -> None:
    options = parsed("--topic", "-1", "ignored", "--topic", "--list", "--count", "4", "--list=x")
    assert options.values("topic") == ["-1", "--list"]
    assert options.has("list")
    assert options.value("count") == 4
    assert parsed().value("count") == 3
    assert parsed("--list", "--", "--topic").values("topic") == []


def test_optional_values() -> None:
    assert parsed("--list", "--state", "stable").value("state") == "stable"
    assert parsed("--state", "--list").value("state") is None
    assert parsed("--list", "--state=").value("state") == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--no-such",), "no-such is not a recognized option"),
        (("--top", "a"), "top is not a recognized option"),
        (("--topic",), "Option topic requires an argument"),
        (("--state",), "Option(s) [state] are unavailable given other options on the command line"),
    ],
)
def test_errors(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parsed(*words)
    assert str(raised.value) == text


def test_errors_of_values_are_raised_where_a_value_is_read() -> None:
    with pytest.raises(UsageError, match="Cannot parse argument 'x' of option count"):
        parsed("--count", "x").value("count")
    with pytest.raises(UsageError, match="Found multiple arguments for option topic"):
        parsed("--topic", "a", "--topic", "b").value("topic")


def test_exit_codes_and_streams(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(options: Options) -> int:
        raise CommandFailed("the reason")

    assert run_tool(tool(), ["--list"]) == 0
    assert capsys.readouterr() == ("", "")
    assert run_tool(tool(), ["--help"]) == 0
    assert capsys.readouterr() == (f"{usage(tool())}\n", "")
    for words, code, error in (
        ([], 1, f"A tool.\n{usage(tool())}\n"),
        (["--no-such"], 1, f"no-such is not a recognized option\n{usage(tool())}\n"),
    ):
        assert run_tool(tool(), words) == code
        assert capsys.readouterr() == ("", error)
    assert run_tool(tool(fail), ["--list"]) == 1
    assert capsys.readouterr() == ("", "the reason\n")


def test_the_help_names_every_option() -> None:
    for option in TABLE:
        assert f"--{option.name}" in usage(tool())
