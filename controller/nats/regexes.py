"""Which regular expressions may run over other people's subjects.

Python's `re` tries alternatives one after the other, so some expressions take time exponential in the subject's length,
and whoever can publish could stop a broker with one message. Only such are taken whose time is bounded.
"""

from __future__ import annotations

import re
from typing import Final

PATTERN_LENGTH_MAX: Final = 500


def regex_problem(pattern: str) -> str | None:
    """Why nats.key=regex:PATTERN can't be; None when it can. The pattern is matched as UTF-8 bytes."""
    if not pattern:
        return "The regular expression is empty"
    if len(pattern) > PATTERN_LENGTH_MAX:
        return f"The regular expression is longer than {PATTERN_LENGTH_MAX} characters"
    try:
        re.compile(pattern.encode())
    except (re.error, UnicodeEncodeError, OverflowError, RecursionError) as error:
        return f"The regular expression does not compile: {error}"
    return None
