"""Checks a stopped broker's files (logs, indexes, snapshots) with Kafka's own DumpLogSegments.

Only files that have changed since the last check are copied and checked, so repeated checks stay cheap.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from compat_tests.harness.java_tools import JavaTools

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
COMPLAINTS = (
    "Mismatches in",
    "mismatch",
    "Out of order",
    "out of order",
    "orrupt",
    "isvalid: false",
    "not valid",
    "Exception",
    "Found invalid",
)
GAP = re.compile(r"^ *\d+ is followed by \d+", re.MULTILINE)  # a segment begins with "-1 is followed by"


class LogJudge:
    """Checks the files of one broker, over several stops."""

    def __init__(self, tools: JavaTools, log_dir: Path, copies: Path, compacted: set[str]) -> None:
        """`compacted`: names of topics in which offsets may be missing."""
        self._tools = tools
        self._log_dir = log_dir
        self._copies = copies
        self._compacted = compacted
        self._seen: dict[Path, tuple[int, int]] = {}
        self.judged = 0

    def copy(self) -> list[Path]:
        """Copy the segments that have changed; the broker must be stopped. A partition that was being deleted may lack any
        of its files."""
        copied = []
        for log in sorted(self._log_dir.glob("*-*/*.log")):
            if log.parent.name.endswith("-delete"):
                continue
            files = [file for suffix in SUFFIXES if (file := log.with_suffix(suffix)).exists()]
            states = {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
            if all(self._seen.get(file) == state for file, state in states.items()):
                continue
            self._seen |= states
            target = self._copies / log.parent.name
            target.mkdir(parents=True, exist_ok=True)
            for file in files:
                copied.append(Path(shutil.copy2(file, target / file.name)))
        return copied

    def judge(self, copied: list[Path]) -> None:
        """Assert that the tool finds nothing wrong in the copies, and remove them."""
        for compacted in (False, True):
            mine = [
                file
                for file in copied
                if (file.parent.name.rpartition("-")[0] in self._compacted) == compacted
            ]
            if not mine:
                continue
            output = self._run(mine, "--deep-iteration")
            assert compacted or not GAP.search(output), GAP.findall(output)[:5]
            indexes = [
                file for file in mine if file.suffix in (".index", ".timeindex") and file.stat().st_size
            ]
            if indexes:
                output = self._run(indexes, "--index-sanity-check")
                assert output.count("passed sanity check") == len(indexes), output[:3000]
        self.judged += len(copied)
        for file in copied:
            file.unlink()

    def _run(self, files: list[Path], *options: str) -> str:
        names = ",".join(str(file) for file in files)
        output = self._tools.run("kafka-dump-log", *options, "--files", names, timeout=120).output
        for complaint in COMPLAINTS:
            position = output.find(complaint)
            assert position < 0, f"{complaint}: ...{output[max(0, position - 600) : position + 600]}"
        return output
