"""kafka-viewer, a web console on Streamlit (with kafka-python), driven by Streamlit's AppTest."""

from __future__ import annotations

import json

from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import send
from compat_tests.tools.installed import PythonTool
from compat_tests.tools.process import run
from compat_tests.tools.tool import Trial

_VIEWER = PythonTool("kafka-viewer", ("kafka-viewer==0.4.0",))
_RECORDS = 90


def check(trial: Trial) -> str:
    """Its one page."""
    config = trial.directory / "kafka-viewer.properties"
    with trial.broker() as broker:
        create_topic(broker.bootstrap, "empty")
        topic = create_topic(broker.bootstrap, "orders", 3)
        send(broker, topic, ((f"{number}", json.dumps({"order": number})) for number in range(_RECORDS)), 3)
        config.write_text(f"kafka.bootstrap.servers={broker.bootstrap}\nkafka.security.protocol=PLAINTEXT\n")
        output = run(
            _VIEWER.program(
                "streamlit_kafka_viewer", _VIEWER.package("kafka_viewer") / "ui.py", config, topic
            )
        )
    found = json.loads(output.splitlines()[-1])
    assert not found["errors"], found["errors"]
    assert {"empty", "orders"} <= set(found["topics"]), found["topics"]
    assert sorted(json.loads(each)["order"] for each in found["messages"]) == list(range(_RECORDS)), found
    wanted = {f"partition={number % 3} offset={number // 3}" for number in range(_RECORDS)}
    assert {title.partition(" ")[2] for title in found["titles"]} == wanted, found["titles"]
    assert found["metrics"]["Total Records"] == f"{_RECORDS}", found["metrics"]
    assert found["metrics"]["Published Today"] == f"{_RECORDS}", found["metrics"]
    assert found["metrics"]["Partitions"] == "3", found["metrics"]
    return f"its page: topics, {_RECORDS} records with partitions and offsets, totals, records of the day by time"


KAFKA_VIEWER = _VIEWER.tool("kafka-viewer", check)
