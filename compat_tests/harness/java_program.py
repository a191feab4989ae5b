"""A long-running Java program from Kafka's jars, in a JVM of its own: Streams, Connect, MirrorMaker.

Its output goes to a file; every failure shows the end of it.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_tools import JAVA_FLAGS, janino_class_path
from compat_tests.harness.kafka_jars import ensure_jars, java_executable


class JavaProgramFailed(AssertionError):
    """The program ended, or did not reach the awaited state; the message contains the end of its output."""


class JavaProgram:
    """`with JavaProgram(main_class, arguments, directory) as program:`; SIGTERM at the end of the block.

    `main_class` may be a path to one Java source file (no lambdas: Janino compiles it in memory); the class
    is named as the file.
    """

    def __init__(self, main: str | Path, arguments: Sequence[str], directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._output = directory / "output"
        class_path = [f"{ensure_jars()}/*"]
        if isinstance(main, Path):
            class_path += janino_class_path()
            arguments = [str(main), main.stem, *arguments]
            main = "org.codehaus.janino.SimpleCompiler"
        command = [java_executable(), *JAVA_FLAGS, "-cp", ":".join(class_path), main, *arguments]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=directory
            )

    def wait_until(self, reached: Callable[[], bool], timeout: float = 60) -> None:
        """Wait until `reached()`; JavaProgramFailed when the program ends before. AssertionError after `timeout` seconds."""

        def check() -> bool:
            if reached():
                return True
            if self._process.poll() is not None:
                raise JavaProgramFailed(f"ended with {self._process.returncode}:\n{self.tail()}")
            return False

        eventually(check, timeout, message=self.tail)

    def wait(self, timeout: float = 60) -> int:
        """Wait until the program ends by itself; its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise JavaProgramFailed(f"still runs after {timeout} s:\n{self.tail()}") from None

    @property
    def output(self) -> str:
        """Everything that programs have printed in this directory."""
        return self._output.read_text(errors="replace")

    def tail(self) -> str:
        """The end of what it printed."""
        return self.output[-8000:]

    def stop(self, timeout: float = 30) -> None:
        """SIGTERM, then SIGKILL if it does not end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise JavaProgramFailed(f"did not stop within {timeout} s:\n{self.tail()}") from None

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> JavaProgram:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()
