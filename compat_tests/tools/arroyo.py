"""sentry-arroyo: staged offsets, committed by a policy."""

from __future__ import annotations

from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import lag, offsets, send, values
from compat_tests.tools.installed import PythonTool
from compat_tests.tools.process import Background
from compat_tests.tools.tool import Trial

_ARROYO = PythonTool("arroyo", ("sentry-arroyo==2.48.0",))
_NUMBERS = 1000


def check(trial: Trial) -> str:
    """A second processor continues where the first one was stopped."""
    with trial.broker() as broker:
        source, sink = (create_topic(broker.bootstrap, name, 3) for name in ("numbers", "doubled"))
        command = _ARROYO.program("arroyo_double", broker.bootstrap, source, sink)
        for part in (1, 2):
            sent = part * _NUMBERS // 2
            send(broker, source, ((f"{number}", f"{number}") for number in range(sent - _NUMBERS // 2, sent)))
            with Background(command, trial.directory) as processor:
                processor.wait_until(lambda wanted=sent: len(values(broker, sink)) >= wanted)  # type: ignore[misc]
                processor.wait_until(lambda: lag(broker, "arroyo", source) == 0)
        assert sorted(map(int, values(broker, sink))) == [2 * number for number in range(_NUMBERS)]
        assert sum(offsets(broker, "arroyo", source).values()) == _NUMBERS
    return f"{_NUMBERS} records through a processor that is restarted, each once, all offsets committed"


ARROYO = _ARROYO.tool("sentry-arroyo", check)
