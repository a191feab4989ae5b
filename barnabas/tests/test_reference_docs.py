"""docs/commands.md, docs/control-api.md and docs/properties.md say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.controller.config.validators import ConfigError
from compat_tests.docs.properties import REFUSED, TABLES, read_properties
from compat_tests.docs.reference import PAGES, with_tables


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_as_generated(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    assert text == with_tables(text, PAGES[page]()), "run: .venv/bin/python -m compat_tests.docs.reference"


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_page_calls_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        REFUSED[name][1]()


def test_every_property_with_an_effect_has_a_text() -> None:
    read = read_properties()
    brokers = [(4, key) for key in TABLES.updatable.values() if key.name in read and not key.internal]
    topics = [(2, key) for key in TABLES.topic.values() if key.name in read and not key.internal]
    missing = [key.name for kind, key in (*brokers, *topics) if not TABLES.documentation(kind, key.name)]
    assert not missing, "controller/config/docs.py lacks them"
