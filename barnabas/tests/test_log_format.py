"""The log as JSON."""

from __future__ import annotations

import io
import json
import logging

from barnabas.log_format import JsonFormatter


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
