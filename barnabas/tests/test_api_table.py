"""The README's table says what ApiVersions says."""

from pathlib import Path

from barnabas.api_table import with_table


def test_readme_lists_the_registrations() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert readme == with_table(readme), "run: .venv/bin/python -m barnabas.api_table"
