"""The log as JSON, and as text."""

from __future__ import annotations

import io
import json
import logging

from barnabas.log_format import TEXT, JsonFormatter, TextFormatter


def test_a_line_is_an_object() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("barnabas.x")
    logger.addHandler(handler)
    logger.warning("%s and\n%s", "a", 'b"ü')
    try:
        raise ValueError("wrong")
    except ValueError:
        logger.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert {name: first[name] for name in ("level", "logger", "message")} == {
        "level": "WARNING",
        "logger": "barnabas.x",
        "message": 'a and\nb"ü',
    }
    assert "exception" not in first
    assert second["exception"].endswith("ValueError: wrong")
    assert first["timestamp"][10] == "T"
    assert len(first["timestamp"]) == len("2026-01-01T00:00:00.000+0000")


def test_what_a_client_names_is_no_line_of_its_own() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter(TEXT))
    logger = logging.Logger("barnabas.x")
    logger.addHandler(handler)
    logger.warning("Group %s is empty", "shop\n2026-11-30 00:00:00,000 INFO kafka.authorizer.logger: Allowed")
    (line,) = stream.getvalue().splitlines()
    assert "shop\\n2026" in line
    logger.warning("grün")
    try:
        raise ValueError("wrong")
    except ValueError:
        logger.exception("failed")
    assert stream.getvalue().splitlines()[1].endswith("grün")
    assert stream.getvalue().endswith("ValueError: wrong\n"), "a traceback keeps its lines"
