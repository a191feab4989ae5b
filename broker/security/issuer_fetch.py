"""Fetches what an issuer has for this node: its keys, and tokens. Blocking, and bounded."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from http.client import HTTPResponse

ANSWER_BYTES_MAX: Final = 1 << 20


def opener(*, follows_redirects: bool) -> urllib.request.OpenerDirector:
    """Of HTTP alone, so that no redirect leads to a file, and without the proxies of the environment."""
    made = urllib.request.OpenerDirector()
    for kind in (
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        made.add_handler(kind())
    if follows_redirects:
        made.add_handler(urllib.request.HTTPRedirectHandler())
    return made


def read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return read(file)


def read(source: IO[bytes] | HTTPResponse) -> bytes:
    """ValueError for more than is allowed."""
    content = source.read(ANSWER_BYTES_MAX + 1)
    if len(content) > ANSWER_BYTES_MAX:
        raise ValueError(f"more than {ANSWER_BYTES_MAX} bytes")
    return content
