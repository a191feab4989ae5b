"""Starting: from exec to the first acknowledged record, and the memory that an idle broker holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from barnabas.testing.ports import free_port
from compat_tests.bench import driver, prepared
from compat_tests.bench.workloads import Measures
from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker

_RECORD = prepared.batch(1, 100)


class WarmApacheBroker(ApacheBroker):
    """Apache Kafka tuned for speed: G1, the full JIT, 1 GB of heap."""

    jvm_options = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")


def make_brokers(folder: Path, other_checkout: Path | None = None) -> dict[str, Broker]:
    """Both brokers, not started, on ports of their own; the first is the one to compare with: Apache Kafka, or the
    Barnabas of another checkout in which `make setup` has been run."""
    kinds: dict[str, Callable[[Path, dict[str, str]], Broker]] = {
        "Apache Kafka": WarmApacheBroker,
        "Barnabas": BarnabasBroker,
    }
    if other_checkout is not None:
        kinds = {"Other checkout": partial(_of_checkout, other_checkout), "Barnabas": BarnabasBroker}
    return {
        name: make(folder / name.split()[0].lower(), {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"})
        for name, make in kinds.items()
    }


def _of_checkout(checkout: Path, directory: Path, settings: dict[str, str]) -> Broker:
    broker = BarnabasBroker(directory, settings)
    broker.python = str(checkout.absolute() / ".venv" / "bin" / "python")
    return broker


def first_start(broker: Broker) -> None:
    """Start and stop once: storage is formatted, byte code is compiled, files are in the page cache."""
    broker.start()
    broker.stop()


def start_to_first_produce(broker: Broker, topic: str) -> Measures:
    """Start the broker, leave it running; seconds from exec to the acknowledged record."""
    address = broker.bootstrap
    starting = threading.Thread(target=broker.start)
    started = time.perf_counter()
    starting.start()
    driver.first_produce(address, topic, _RECORD)
    seconds = time.perf_counter() - started
    starting.join()
    return {"exec to first acknowledged produce, s": seconds}


def idle_memory(broker: Broker) -> Measures:
    """Resident memory of a broker that has just started and does nothing."""
    time.sleep(1)
    return {"idle memory, MB": broker.resident_bytes() / 1e6}


def connection_memory(broker: Broker, count: int = 1000) -> Measures:
    """Resident memory of a connection that is idle after its first request.

    The first hundred are not counted: they use memory that the broker keeps anyway.
    """
    hello = prepared.api_versions()
    opened = [driver.Connection(broker.bootstrap, receive_buffer=1 << 12) for _ in range(100)]
    for connection in opened:
        connection.ask(hello)
    before = broker.resident_bytes()
    for _ in range(count):
        opened.append(driver.Connection(broker.bootstrap, receive_buffer=1 << 12))
        opened[-1].ask(hello)
    added = broker.resident_bytes() - before
    for connection in opened:
        connection.close()
    return {"memory of an idle connection, KB": added / count / 1e3}
