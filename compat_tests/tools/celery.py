"""Celery, with kombu's confluentkafka transport: a topic and a group for each queue."""

from __future__ import annotations

from pathlib import Path

from compat_tests.tools.found import ends, lag
from compat_tests.tools.installed import PythonTool
from compat_tests.tools.process import Background, run
from compat_tests.tools.tool import Trial

_CELERY = PythonTool("celery", ("celery==5.7.0", "kombu[confluentkafka]==5.7.0"))
_TASKS = 100
_QUEUES = ("doubles", "shouts")


def check(trial: Trial) -> str:
    """Two queues, a worker, results in files; a second worker goes on where the first one stopped."""
    results = trial.directory / "results"
    results.mkdir()
    with trial.broker() as broker:
        environment = {
            "BOOTSTRAP": broker.bootstrap,
            "RESULTS": str(results),
            "PYTHONPATH": str(Path(__file__).parent / "programs"),
        }
        options = (
            "worker",
            "-Q",
            ",".join(_QUEUES),
            "-l",
            "info",
            "-P",
            "solo",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        )
        for part in (1, 2):
            with Background(
                _CELERY.command("celery", "-A", "celery_app", *options), trial.directory, environment
            ) as worker:
                run(_CELERY.program("celery_app", f"{_TASKS // 2}"), environment)
                for queue in _QUEUES:
                    assert sum(ends(broker, queue).values()) == part * _TASKS // 2
                    worker.wait_until(lambda asked=queue: lag(broker, f"{asked}-consumer-group", asked) == 0)  # type: ignore[misc]
        done = len(list(results.iterdir()))
        assert done == _TASKS * len(_QUEUES), done
        ran = worker.errors.count(" succeeded in ")
        assert ran == done, f"{ran} runs of {done} tasks"
    return (
        f"{_TASKS} tasks in each of two queues, each run once over a restart of the worker, offsets committed"
    )


CELERY = _CELERY.tool("celery", check)
