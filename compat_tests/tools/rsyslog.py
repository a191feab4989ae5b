"""rsyslog's omkafka: lines of a file as records in lz4, over a restart of the broker."""

from __future__ import annotations

import json
import re
from pathlib import Path

from compat_tests.harness.broker import Broker
from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import codecs, values
from compat_tests.tools.installed import DebianTool
from compat_tests.tools.process import Background, run
from compat_tests.tools.tool import Tool, Trial

_RSYSLOG = DebianTool(
    "rsyslogd",
    ("rsyslog", "rsyslog-kafka", "librdkafka1", "libestr0", "libfastjson4", "liblognorm5"),
    beside="rsyslog/omkafka.so",
)
_TOPIC = "logs"
_LINES = 2000


def check(trial: Trial) -> str:
    """One daemon, which has no access to the machine's own log."""
    log = trial.directory / "orders.log"
    lines = [f"order {number} of ada" for number in range(_LINES)]
    log.write_text("")
    with trial.broker() as broker:
        create_topic(broker.bootstrap, _TOPIC)
        config = _configuration(trial.directory, log, broker)
        command = _RSYSLOG.command(
            "-n", "-f", config, "-i", trial.directory / "pid", "-M", _RSYSLOG.libraries / "rsyslog"
        )
        with Background(command, trial.directory, _RSYSLOG.environment()) as daemon:
            _append(log, lines[: _LINES // 2])
            daemon.wait_until(lambda: len(values(broker, _TOPIC)) >= _LINES // 2)
            broker.stop()
            _append(log, lines[_LINES // 2 :])
            broker.start()
            daemon.wait_until(lambda: len(values(broker, _TOPIC)) >= _LINES)
        found = [json.loads(each) for each in values(broker, _TOPIC)]
        assert [each["message"] for each in found] == lines
        assert {each["tag"] for each in found} == {"orders:"}
        # librdkafka leaves a batch as it is which does not become smaller, as one of a single line
        assert "lz4" in codecs(broker, _TOPIC)
        assert set(codecs(broker, _TOPIC)) <= {"lz4", "none"}, codecs(broker, _TOPIC)
    return f"{_LINES} lines of a file as JSON in lz4, each once and in order over a restart of the broker"


def _configuration(directory: Path, log: Path, broker: Broker) -> Path:
    path = directory / "rsyslog.conf"
    path.write_text(
        f"""
global(workDirectory="{directory}")
module(load="imfile")
module(load="omkafka")
input(type="imfile" file="{log}" tag="orders:")
template(name="json" type="list" option.jsonf="on") {{
  property(outname="tag" name="syslogtag" format="jsonf")
  property(outname="message" name="msg" format="jsonf")
}}
action(type="omkafka" broker="{broker.bootstrap}" topic="{_TOPIC}" template="json" resubmitOnFailure="on" action.resumeRetryCount="-1" action.resumeInterval="1"
  confParam=["compression.codec=lz4", "enable.idempotence=true", "reconnect.backoff.max.ms=500"])
"""
    )
    return path


def _append(log: Path, lines: list[str]) -> None:
    with log.open("a") as file:
        file.writelines(line + "\n" for line in lines)


def _version() -> str:
    found = re.search(r"rsyslogd\s+(\d[\d.]*)", run(_RSYSLOG.command("-v"), _RSYSLOG.environment()))
    return found[1] if found else "unknown"


RSYSLOG = Tool("rsyslog", _RSYSLOG.missing, _version, check)
