"""A Chromium without a window, driven by the Chrome DevTools Protocol over a pipe: no driver, no WebSocket, nothing from a registry.

`chromium()` is the program that is installed here, or None. A `Page` notes what a page must not have: exceptions, errors in the
console (a refused script is one), dialogs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING: Final = "Chromium (Debian: apt-get install chromium), or the path of one in the variable CHROMIUM"
ANSWER_S: Final = 30.0
WAIT_S: Final = 20.0
KEYS: Final = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowDown": 40, "/": 191}


def chromium() -> str | None:
    """The program, if one is installed."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One process. Each page has cookies, storage and settings of its own."""

    def __init__(self, directory: Path) -> None:
        program = chromium()
        assert program is not None, MISSING
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [
            program,
            *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={directory}", "--no-first-run"),
            *(
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--hide-scrollbars",
            ),
            *(["--no-sandbox"] if os.getuid() == 0 else []),
            "about:blank",
        ]
        self._log = (directory.parent / "chromium.log").open("wb")
        # The protocol's pipe is descriptors 3 and 4 of the process.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._received = b""
        self._number = 0
        self._events: dict[str, list[Callable[[str, Any], object]]] = {}

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        os.close(self._write)
        os.close(self._read)
        self._log.close()

    @contextlib.contextmanager
    def page(self, *, is_dark: bool = False, width: int = 1200, height: int = 800) -> Iterator[Page]:
        """A new one."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        try:
            page.begin(is_dark=is_dark, width=width, height=height)
            yield page
        finally:
            self._events.pop(session, None)
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def on_event(self, session: str, callback: Callable[[str, Any], object]) -> None:
        self._events.setdefault(session, []).append(callback)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """The result of a command. AssertionError with the browser's error."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._next(deadline)
            assert answer is not None, f"Chromium has not answered {method}"
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def pump(self, seconds: float) -> None:
        """Take the events that come within this time."""
        deadline = time.monotonic() + seconds
        while (message := self._next(deadline)) is not None:
            self._note(message)

    def _note(self, message: Any) -> None:
        for callback in self._events.get(message.get("sessionId", ""), ()):
            callback(message["method"], message["params"])

    def _next(self, deadline: float) -> Any:
        while b"\0" not in self._received:
            readable, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                return None
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium has ended; its log is chromium.log"
            self._received += data
        found, _, self._received = self._received.partition(b"\0")
        return json.loads(found)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []  # URLs
        self._browser = browser
        self._session = session

    def begin(self, *, is_dark: bool, width: int, height: int) -> None:
        self._browser.on_event(self._session, self._event)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript; an exception there is one here."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = WAIT_S) -> None:
        """Until JavaScript is true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.evaluate(f"Boolean({expression})"):
                return
            self._browser.pump(0.02)
        raise AssertionError(f"not within {seconds:g} s: {expression}\n{self.problems}\n{self.text()}")

    def wait_for_text(self, text: str, seconds: float = WAIT_S) -> None:
        self.wait_for(f"document.body.innerText.includes({json.dumps(text)})", seconds)

    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def cells(self) -> list[list[str]]:
        """The text of all cells of the tables' bodies."""
        found: list[list[str]] = self.evaluate(
            "[...document.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
        )
        return found

    def press(self, key: str, *, is_shifted: bool = False) -> None:
        """A key as a person presses it."""
        code = KEYS.get(key, ord(key.upper()[0]))
        text = {"Enter": "\r", "Tab": ""}.get(key, key if len(key) == 1 else "")
        common: dict[str, Any] = {
            "key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if is_shifted else 0,
        }  # fmt: skip
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **down, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def focused(self) -> str:
        """What has the focus, by its tag and its name."""
        return str(
            self.evaluate(
                "(({tagName, innerText, name, ariaLabel}) => `${tagName} ${ariaLabel || name || innerText}`)(document.activeElement)"
            )
        )

    def screenshot(self, path: Path | None = None) -> bytes:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path is not None:
            path.write_bytes(data)
        return data

    def nameless(self) -> list[str]:
        """Roles of what can be used and has no accessible name."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        usable = {
            "button",
            "link",
            "textbox",
            "searchbox",
            "combobox",
            "checkbox",
            "img",
            "table",
            "navigation",
        }
        return [
            each["role"]["value"]
            for each in nodes
            if not each.get("ignored")
            and each["role"]["value"] in usable
            and not each.get("name", {}).get("value", "").strip()
        ]

    def _event(self, method: str, parameters: Any) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.problems.append(json.dumps(parameters["args"])[:500])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"a dialog: {parameters['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
