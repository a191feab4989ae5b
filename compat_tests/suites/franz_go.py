"""`python -m compat_tests.suites.franz_go`: the tests of franz-go's client that talk to a broker, against this one.

    --broker apache | HOST:PORT   against Apache Kafka 4.3.1 or a running broker, where nothing may fail
    --records N                   through each of the pipelines (default 50,000)
    --chaos                       the client's connections die every second

franz_go.toml names the tests, which of them fail and which skip themselves, and why. Exits 1 when another fails or
skips, or when a listed one passes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness.broker import Broker
from compat_tests.suites.brokers import make_broker
from compat_tests.suites.go_module import VERSION, GoUnavailableError, ensure_test_program

_LIST = Path(__file__).with_name("franz_go.toml")
_RESULT = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)", re.MULTILINE)
# one that waits for what is not served would not end
_EXPECTED_FAILURE_SECONDS = 20
# added to the time of the tests: the program ends itself after that time
_END_SECONDS = 60


def main() -> int:
    """Compile the tests, start a broker, run them, compare with the list."""
    parser = argparse.ArgumentParser(prog="compat_tests.suites.franz_go", description="run franz-go's tests")
    parser.add_argument("--broker", default="barnabas", help="barnabas (default), apache or HOST:PORT")
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--chaos", action="store_true")
    options = parser.parse_args()
    try:
        program = ensure_test_program()
    except GoUnavailableError as error:
        print(f"franz-go's tests: {error}", file=sys.stderr)
        return 1
    tables = tomllib.loads(_LIST.read_text())
    names: list[str] = tables["run"]["tests"]
    with tempfile.TemporaryDirectory(prefix="franz-go-") as directory:
        broker = make_broker(options.broker, Path(directory), {})
        broker.start()
        try:
            ours = broker.kind == "barnabas"
            fails: Mapping[str, str] = tables["fails"] if ours else {}
            environment = {
                **os.environ,
                "KGO_SEEDS": broker.bootstrap,
                "KGO_TEST_RF": "1",
                "KGO_TEST_RECORDS": str(options.records),
                "KGO_TEST_CHAOS": str(int(options.chaos)),
                "KGO_LOG_LEVEL": "none",
            }
            results = _run(program, environment, [name for name in names if name not in fails], 600)
            for name in fails:
                results[name] = _run(program, environment, [name], _EXPECTED_FAILURE_SECONDS)[name]
            wrong = judge(results, fails, tables["skips"], stale=ours)
            if wrong:
                _show_log(broker)
        finally:
            broker.stop()
    counts = ", ".join(
        f"{list(results.values()).count(outcome)} {word}"
        for outcome, word in (("PASS", "passed"), ("SKIP", "skipped"), ("FAIL", "failed"))
    )
    print("\n".join([*wrong, f"franz-go {VERSION}: {counts}, of which {len(wrong)} not as listed"]))
    return 1 if wrong else 0


def judge(
    results: Mapping[str, str], fails: Mapping[str, str], skips: Mapping[str, str], *, stale: bool
) -> list[str]:
    """What differs from the lists, a line each; with `stale` a listed test that passes differs too."""
    wrong = []
    for name, outcome in sorted(results.items()):
        expected = "FAIL" if name in fails else "SKIP" if name in skips else "PASS"
        if outcome != expected and (outcome != "PASS" or stale):
            wrong.append(f"{name}: {outcome}, and the list says {expected}")
    if stale:
        wrong += [f"{name}: listed, and not run" for name in sorted({*fails, *skips} - set(results))]
    return wrong


def _run(program: Path, environment: Mapping[str, str], names: Sequence[str], seconds: int) -> dict[str, str]:
    """Run these tests, show what they print: test or subtest -> PASS, FAIL or SKIP."""
    command = [str(program), "-test.v", "-test.timeout", f"{seconds}s", "-test.run", f"^({'|'.join(names)})$"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds + _END_SECONDS,
        )
    results = {name: outcome for outcome, name, _ in _RESULT.findall(process.stdout)}
    if process.returncode and len(names) > 1:
        print(process.stdout[-20_000:])
    for outcome, name, duration in _RESULT.findall(process.stdout):
        print(f"{outcome} {name} {duration} s")
    # a test that was still running when the time was over has no result
    return {**dict.fromkeys(names, "FAIL"), **results}


def _show_log(broker: Broker) -> None:
    print("the broker's log ends with\n" + broker.log_text()[-5000:])


if __name__ == "__main__":
    sys.exit(main())
