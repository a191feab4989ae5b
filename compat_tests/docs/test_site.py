"""What `make docs` refuses in a built site."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.docs.site import faults

GOOD = '<article><h1 id="a">A</h1><p>1. text <code>| --- |</code></p></article><a href="#a">A</a><a href="b.html#b">B</a>'


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (GOOD, None),
        ('<a href="https://example.org/">there</a>', None),
        ('<script src="https://cdn.example.org/x.js"></script>', "loads https://cdn.example.org/x.js"),
        ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "loads //fonts.example.org/x.css"),
        ('<img src="no.png">', "links to no.png, which is not there"),
        ('<a href="../b.html">B</a>', "links to ../b.html, which is not there"),
        ('<a href="/b.html">B</a>', "links to /b.html, which is not there"),
        ('<a href="b.html#c">B</a>', "links to b.html#c, and that page has no such heading"),
        ("<article><p>a list:\n- of one</p></article>", "shows Markdown as it is written"),
    ],
)
def test_faults(tmp_path: Path, page: str, wanted: str | None) -> None:
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "b.html").write_text('<h2 id="b">B</h2>')
    found = list(faults(tmp_path))
    assert len(found) == (wanted is not None), found
    assert wanted is None or wanted in found[0]


def test_a_style_sheet_that_loads_a_font(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@font-face { src: url("https://fonts.example.org/a.woff2") }')
    assert list(faults(tmp_path)) == ["a.css loads https://fonts.example.org/a.woff2"]
