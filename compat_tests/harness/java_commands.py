"""A Java program of this repository that is driven line by line: one command on its standard input, one line as the answer."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from compat_tests.harness.java_tools import JAVA_FLAGS, janino_class_path
from compat_tests.harness.kafka_jars import ensure_jars, java_executable


class JavaClientFailed(AssertionError):
    """The Java client threw an exception, which the message names, or its JVM has ended."""


class JavaCommands:
    """The JVM of one source file below java/, which Janino compiles in memory; `close()` ends it with all its clients."""

    def __init__(self, source: str) -> None:
        path = Path(__file__).parent / "java" / source
        class_path = ":".join([f"{ensure_jars()}/*", *janino_class_path()])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the JVM
        self._process = subprocess.Popen(
            [
                *(java_executable(), *JAVA_FLAGS, "-cp", class_path),
                *("org.codehaus.janino.SimpleCompiler", str(path), path.stem),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, *words: object) -> str:
        """Run one command and return the rest of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        kind, _, rest = line.strip().partition(" ")
        if kind == "ok":
            return rest
        self._errors.seek(0)
        raise self.failure(rest or self._errors.read().decode("utf-8", "replace")[:4000])

    def failure(self, text: str) -> Exception:
        """The exception for an answer that begins with the class of Java's."""
        return JavaClientFailed(text)

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            stream.close()
