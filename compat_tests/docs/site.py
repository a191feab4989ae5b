"""`python -m compat_tests.docs.site`: builds the documentation as a site in .cache/site/html, and checks it.

The pages lie on the site as they lie in the repository, and each file that a page links to lies beside them, so that every relative
link means the same on the site, on a git host and in an editor. The build runs in strict mode; what it does not look at is checked
in the pages that it has made: links to other files, and that nothing is loaded from another host.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from barnabas.tests.test_links import PAGES, links_of

ROOT = Path(__file__).resolve().parents[2]
CONFIG, STYLE = (ROOT / "docs" / name for name in ("mkdocs.yml", "site.css"))
SITE = ROOT / ".cache" / "site"
BUILDER = ROOT / ".cache" / "docs" / "bin" / "zensical"

# Attributes by which a page loads what a browser fetches unasked
_LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
# Markdown that has stayed as it was: a fence, a table's rule, an item of a list that is the next line of a paragraph, a link
_LEFT_OVER = re.compile(r"```|\| ?---|\n *(?:- |\d+\. )|\]\([\w./#-]+\)")


def lay_out(root: Path, folder: Path) -> None:
    """Copies the pages of a repository, and what they link to, into `folder`/pages."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    wanted = dict.fromkeys(PAGES)
    for page in PAGES:
        wanted.update(dict.fromkeys(path for path, _ in links_of(page)))
    for path in wanted:
        if not path.is_file():
            raise SystemExit(f"{path.relative_to(root)} is linked and is no file, so the site can't have it")
        target = pages / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copyfile(CONFIG, folder / CONFIG.name)
    shutil.copyfile(STYLE, pages / STYLE.name)


def build(folder: Path) -> str:
    """Runs the builder in `folder`; what it complains of, which is nothing where all is well."""
    command = [str(BUILDER), "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return _COLOURS.sub("", done.stderr or done.stdout).partition("Traceback")[0]


class _Page(HTMLParser):
    """Anchors, links and texts of a page; what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.texts: list[str] = []  # of the article, outside of code
        self._article = self._code = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._article += tag == "article"
        self._code += tag in ("code", "script", "style")
        for name, value in attributes:
            if name == "id" and value:
                self.anchors.add(value)
            elif (tag, name) in _LOADED and value:
                self.loaded.append(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.append(value)

    def handle_endtag(self, tag: str) -> None:
        self._article -= tag == "article"
        self._code -= tag in ("code", "script", "style")

    def handle_data(self, data: str) -> None:
        if self._article and not self._code:
            self.texts.append(data)


def faults(html: Path) -> Iterator[str]:
    """What is wrong with a built site: a line for each."""
    pages = {path: _Page(path.read_text()) for path in sorted(html.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(html)
        for url in (*page.loaded, *page.links):
            split = urlsplit(url)
            if split.scheme or split.netloc:
                if url in page.loaded and split.scheme != "data":
                    yield f"{name} loads {url}"
                continue
            target = (path.parent / unquote(split.path)).resolve() if split.path else path
            if split.path.startswith("/") or not target.is_file():
                if name != Path("404.html"):  # which is served for any address
                    yield f"{name} links to {url}, which is not there"
            elif split.fragment and target in pages and unquote(split.fragment) not in pages[target].anchors:
                yield f"{name} links to {url}, and that page has no such heading"
        for text in page.texts:
            if found := _LEFT_OVER.search(text):
                yield f"{name} shows Markdown as it is written: {text[max(0, found.start() - 40) :][:120]!r}"
    for sheet in html.rglob("*.css"):
        for url in re.findall(r"""url\(["']?((?:https?:)?//[^)"']*)""", sheet.read_text()):
            yield f"{sheet.relative_to(html)} loads {url}"


def main() -> int:
    lay_out(ROOT, SITE)
    complaints = build(SITE) or "".join(f"{fault}\n" for fault in faults(SITE / "html"))
    if complaints:
        print(complaints, end="")
        return 1
    print(f"{SITE.relative_to(ROOT)}/html/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
