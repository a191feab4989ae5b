"""`python -m compat_tests.harness.cluster_local` (`make cluster`): three nodes on this machine, in the foreground.

Each node is `barnabas start` with a server.properties of its own; that file, its data and its log are in
DIRECTORY/node-N. When all nodes serve, standard output gets one line: `bootstrap` and their addresses. Ctrl-C stops
all cleanly; the next start uses the same data.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from barnabas.testing.external.node_process import (
    NodeProcess,
    cluster_properties,
    properties_text,
    stop_processes,
)

_POLL_S = 0.05
_CONTROLLER_PORTS = 100  # after those for clients


def properties(node: int, ports: list[int], controller_ports: list[int], folder: Path) -> str:
    """server.properties of one of the nodes (numbered from 1)."""
    replicas = min(3, len(ports))
    return properties_text(
        {
            **cluster_properties(node, ports, controller_ports, folder),
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(min(2, replicas)),
            "offsets.topic.replication.factor": str(replicas),
            "group.initial.rebalance.delay.ms": "0",
        }
    )


class LocalNode(NodeProcess):
    """One node's process, with the messages about its start and end."""

    is_announced = False  # whether its end has been reported

    def first_words(self) -> str:
        """Its process id and its log."""
        return f"node {self.node_id} is process {self.process.pid}; its log is {_short(self.log)}"

    def last_words(self) -> str:
        """The reason of its end, and how to start it again."""
        code = self.process.returncode
        if code > 0:
            return (
                f"node {self.node_id} has ended with {code}; the end of {_short(self.log)}:\n{self.log_end()}"
            )
        why = f"was killed (signal {-code})" if code else "was stopped"
        barnabas = _short(Path(sys.executable).with_name("barnabas"))
        return f"node {self.node_id} {why}; start it again with: {barnabas} start {_short(self.properties)}"


def _short(path: Path) -> str:
    return min(os.path.relpath(path), str(path), key=len)


def stop(nodes: list[LocalNode]) -> int:
    """Send SIGTERM to all, then SIGKILL to those that still run; 0 if all nodes that still ran ended with 0."""
    stop_processes([node.process for node in nodes])
    status = 0
    for one in nodes:
        if one.process.returncode and not one.is_announced:
            status = 1
            say(f"node {one.node_id} ended with {one.process.returncode}; its log is {one.log}")
    return status


def say(text: str) -> None:
    """Print to standard error; standard output is for the bootstrap line."""
    print(text, file=sys.stderr, flush=True)


def _serve(nodes: list[LocalNode], bootstrap: str) -> int:
    """Run until a signal; report when all nodes serve, and when one ends."""
    living = list(nodes)
    announced = False
    while living:
        for one in list(living):
            if one.process.poll() is not None:
                living.remove(one)
                one.is_announced = True
                say(one.last_words())
        if not announced and len(living) == len(nodes) and all(one.is_ready() for one in nodes):
            announced = True
            print(f"bootstrap {bootstrap}", flush=True)
        if not announced and len(living) < len(nodes):
            return stop(nodes) or 1
        time.sleep(_POLL_S)  # polls the node processes
    return 1


def _interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run them until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description="A cluster of Barnabas on this machine, in the foreground.")
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes (default 3)")
    parser.add_argument(
        "--port", type=int, default=9092, help="of the first node; the others get the next ports"
    )
    parser.add_argument(
        "--controller-port",
        type=int,
        help=f"likewise, of the controller listeners (default --port + {_CONTROLLER_PORTS})",
    )
    parser.add_argument("--directory", type=Path, default=Path("barnabas-cluster-data"))
    options = parser.parse_args()
    directory = options.directory.absolute()
    ports = [options.port + number for number in range(options.nodes)]
    first = options.controller_port
    first = options.port + _CONTROLLER_PORTS if first is None else first
    controller_ports = [first + number for number in range(options.nodes)]
    # SIGINT as well: a shell starts background jobs with SIGINT ignored
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    nodes: list[LocalNode] = []
    try:
        for node in range(1, options.nodes + 1):
            folder = directory / f"node-{node}"
            nodes.append(LocalNode(node, folder, properties(node, ports, controller_ports, folder)))
            say(nodes[-1].first_words())
        return _serve(nodes, ",".join(f"127.0.0.1:{port}" for port in ports))
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        return stop(nodes)


if __name__ == "__main__":
    sys.exit(main())
