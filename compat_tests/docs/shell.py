"""A shell in which the commands of a page run, one block after the other, as for a reader who types them.

One bash per page keeps what a reader's terminal keeps: the folder, variables, an activated environment, jobs in the background. It
stops at the first command that fails. What differs from a reader's machine:

- Ports of the page become free ones, and in what is printed become those of the page again. `barnabas` is a script which has the
  free port where the command's default is 9092.
- A line that starts a server and does not end with `&` runs beside the others, as in a terminal of its own; the next line waits
  for its `ready`.
- `pip install` checks that the extras exist, and gives the active environment the packages of this one; with a `clone` pip installs
  that, and what it needs from the package index.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Final

from barnabas.commands import SUMMARIES
from barnabas.testing.ports import free_port
from compat_tests.docs.pages import ROOT, Block
from compat_tests.harness.eventually import eventually

_ADDRESS: Final = re.compile(r"\b(127\.0\.0\.1|localhost):(\d{4,5})\b")
_SERVER: Final = re.compile(r"^(.*&& )?(barnabas (?:start|testbroker)\b[^&|\n]*)$", re.MULTILINE)
_TESTS: Final = re.compile(r"^(?:async )?def test_", re.MULTILINE)
_DEFAULT_PORT: Final = "9092"
_TIMEOUT_S: Final = 240

# Kafka's port where the command line names none
_BARNABAS: Final = """\
#!/bin/sh
case "$1" in
  start) case "$2" in ''|--set) export KAFKA_LISTENERS=PLAINTEXT://127.0.0.1:@PORT@ ;; esac ;;
  @COMMANDS@|health)
    case " $* " in
      *" --bootstrap-server"*|*" --http"*|*" --help "*) ;;
      *) command=$1; shift; set -- "$command" --bootstrap-server 127.0.0.1:@PORT@ "$@" ;;
    esac ;;
esac
exec "$(dirname "$0")/python" -m barnabas.cli "$@"
"""
_PIP: Final = """\
set -eo pipefail
pip() {
  test "$1" = install
  for extra in $(printf '%s' "$2" | sed -n 's/.*\\[\\(.*\\)\\].*/\\1/p' | tr , ' '); do
    case " @EXTRAS@ " in *" $extra "*) ;; *) echo "no extra $extra" >&2; return 1 ;; esac
  done
  test -n "$VIRTUAL_ENV" || return 0
  cp "@SCRIPTS@/barnabas" "@SCRIPTS@/pytest" "$VIRTUAL_ENV/bin/"
  echo 'import site; site.addsitedir("@PACKAGES@")' > "$(echo "$VIRTUAL_ENV"/lib/python3.*/site-packages)/packages.pth"
}
"""


_CURL: Final = "import sys, urllib.request as u; print(u.urlopen(sys.argv[-1]).read().decode())"
_REAL_PIP: Final = """\
set -eo pipefail
pip() { command pip "$@"; cp "@SCRIPTS@/barnabas" "$VIRTUAL_ENV/bin/"; }
"""


class Shell:
    """Runs blocks in `folder`; `close` kills what they have left in the background."""

    def __init__(
        self, folder: Path, rename: Callable[[str], str] | None = None, clone: Path | None = None
    ) -> None:
        """`rename`: another way to give the page's text the ports of this run. `clone`: what /path/to/barnabas is."""
        self.folder = folder
        self._clone = clone
        self._rename = rename or self._with_free_ports
        self._ports: dict[str, int] = {}
        self._scripts = folder.parent / f"{folder.name}-bin"
        self._scripts.mkdir(parents=True)
        self._runs = 0
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        fill = {
            "PORT": str(self._port(_DEFAULT_PORT)),
            "COMMANDS": "|".join(SUMMARIES),
            "EXTRAS": " ".join(extras),
            "SCRIPTS": str(self._scripts),
            "PACKAGES": sysconfig.get_path("purelib"),
        }
        self.add_script("python", f'exec {sys.executable} "$@"')
        if clone is None:  # pip is a function below
            self.add_script(
                "python3",
                f'test "$1 $2" != "-m venv" || set -- "$@" --without-pip; exec {sys.executable} "$@"',
            )
        self.add_script("pytest", 'exec "$(dirname "$0")/python" -m pytest -p no:cacheprovider "$@"')
        self.add_script("barnabas", _filled(_BARNABAS, fill))
        if shutil.which("curl") is None:
            self.add_script("curl", f"exec {sys.executable} -c '{_CURL}' \"$@\"")
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "PYTEST"))
        }
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={
                **kept,
                "PATH": f"{self._scripts}:{ROOT / 'deploy' / 'bin'}:{os.environ['PATH']}",
                "COLUMNS": "80",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._send(_filled(_PIP if clone is None else _REAL_PIP, fill))

    def add_script(self, name: str, text: str) -> None:
        """A command of this shell."""
        path = self._scripts / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)

    def run_all(self, blocks: Iterable[Block]) -> None:
        """Runs the `sh` and `python` blocks. AssertionError where a command fails or prints something else than the `text` block
        behind it."""
        left = [*blocks]
        for block, following in zip_longest(left, left[1:]):
            if block.file:
                (self.folder / block.file).write_text(self._rename(block.text))
            elif block.kind in ("sh", "python"):
                self.run(block, following.text if following is not None and following.is_output else None)

    def run(self, block: Block, wanted: str | None = None) -> str:
        """What a block prints, which must be like `wanted`."""
        self._runs += 1
        own = self._scripts / f"test_block_{self._runs}"
        printed, errors, script = (own.with_suffix(f".{kind}") for kind in ("out", "err", "py"))
        text = self._rename(block.text)
        command = f"python {script}"
        if block.kind == "sh":
            text, command = self._beside(text, printed), f". {script}"
        elif _TESTS.search(text):
            command = f"pytest -q {script}"
        script.write_text(text)
        self._send(f"{{ {command}\n}} < /dev/null > {printed} 2> {errors}\necho done\n")
        if not self._is_done():
            raise AssertionError(
                f"line {block.line} of the page fails:\n{printed.read_text()}{errors.read_text()}"
            )
        if wanted is not None:
            # Not at once, where a part of it is from a job in the background
            pattern = _pattern(wanted)
            shown = ""

            def is_as_shown() -> bool:
                nonlocal shown
                shown = self._as_on_the_page(printed.read_text())
                return bool(pattern.fullmatch(_spaced(shown)))

            try:
                eventually(is_as_shown, timeout=20 if "&\n" in text else 0.1)
            except AssertionError:
                raise AssertionError(
                    f"line {block.line} of the page prints:\n{shown}\nand not:\n{wanted}"
                ) from None
        return printed.read_text()

    def close(self) -> None:
        """kill -9 of the shell and of its jobs."""
        try:
            os.killpg(self._bash.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._bash.communicate()

    def _send(self, text: str) -> None:
        assert self._bash.stdin is not None
        try:
            self._bash.stdin.write(text)
            self._bash.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which the next look tells

    def _is_done(self) -> bool:
        """Whether the shell has come to the end of a block; it ends where a command fails."""
        assert self._bash.stdout is not None
        ready, _, _ = select.select([self._bash.stdout], [], [], _TIMEOUT_S)
        if not ready:
            raise AssertionError("a block does not end")
        return self._bash.stdout.readline() == "done\n"

    def _beside(self, text: str, printed: Path) -> str:
        """Servers of the block in the background."""

        def start(found: re.Match[str]) -> str:
            before, command = found[1], found[2].partition("  #")[0]
            own = f"{printed}.server"
            first = f"{before}true\n" if before else ""
            return f"{first}{command} > {own} &\nuntil grep ^ready {own}; do kill -0 $!; sleep 0.02; done"

        return _SERVER.sub(start, text)

    def _port(self, port: str) -> int:
        if port not in self._ports:
            self._ports[port] = free_port()
        return self._ports[port]

    def _with_free_ports(self, text: str) -> str:
        if self._clone is not None:
            text = text.replace("/path/to/barnabas", str(self._clone))
        return _ADDRESS.sub(lambda found: f"{found[1]}:{self._port(found[2])}", text)

    def _as_on_the_page(self, text: str) -> str:
        for port, own in self._ports.items():
            text = re.sub(rf"\b{own}\b", port, text)
        return text


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _spaced(text: str) -> str:
    """Runs of blanks as one, as columns are as wide as what is in them."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def _pattern(wanted: str) -> re.Pattern[str]:
    """What the page shows; `...` stands for anything."""
    return re.compile(".*".join(map(re.escape, _spaced(wanted).split("..."))), re.DOTALL)
