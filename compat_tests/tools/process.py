"""Processes of tools: run to their end, or in the background until a condition is met."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from compat_tests.harness.eventually import eventually
from compat_tests.tools.tool import ToolFailed

_RUN_S = 120
_STOP_S = 30


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    given: str = "",
    timeout: float = _RUN_S,
) -> str:
    """Standard output of a command that ends with 0."""
    try:
        result = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(
            f"{' '.join(command)}: still runs after {timeout:g} s\n{error.output!r}\n{error.stderr!r}"
        ) from None
    if result.returncode:
        raise ToolFailed(
            f"{' '.join(command)}: ended with {result.returncode}\n{result.stdout}\n{result.stderr}"
        )
    return result.stdout


class Background:
    """`with Background(command, directory) as process:`; SIGTERM at the end of the block, SIGKILL if that does not help.

    Standard output and error go to files of the directory, a new process appends to them.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
        name: str = "process",
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=directory,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # what it starts ends with it
            )

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def output(self) -> str:
        """What was written to standard output."""
        return self._out.read_text(errors="replace")

    @property
    def errors(self) -> str:
        """What was written to standard error."""
        return self._err.read_text(errors="replace")

    def wait_until(self, reached: Callable[[], object], timeout: float = 60) -> None:
        """ToolFailed when the process ends before; AssertionError after `timeout` seconds."""

        def check() -> bool:
            if reached():
                return True
            if self._process.poll() is not None:
                raise ToolFailed(f"ended with {self._process.returncode}:\n{self.tail()}")
            return False

        eventually(check, timeout, message=self.tail)

    def wait(self, timeout: float = 60) -> None:
        """Until it ends by itself, with 0."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ToolFailed(f"still runs after {timeout:g} s:\n{self.tail()}") from None
        if code:
            raise ToolFailed(f"ended with {code}:\n{self.tail()}")

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """SIGKILL, also to what it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def tail(self) -> str:
        """The end of both outputs."""
        return f"{self.output[-4000:]}\n{self.errors[-6000:]}"
