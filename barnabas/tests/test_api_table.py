"""The table of docs/compatibility.md and the index that a start reads say what the handlers say."""

from pathlib import Path

from barnabas.api_table import with_index, with_table


def test_the_table_lists_the_registrations() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    assert page == with_table(page), "run: .venv/bin/python -m barnabas.api_table"


def test_index_lists_the_registrations() -> None:
    index = (Path(__file__).parents[2] / "broker" / "requests" / "api_index.py").read_text()
    assert index == with_index(index), "run: .venv/bin/python -m barnabas.api_table"
