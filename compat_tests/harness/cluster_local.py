"""`python -m compat_tests.harness.cluster_local` (`make cluster`): three nodes on this machine, in the foreground.

Each node is `barnabas start` with a server.properties of its own, as one would write it by hand; its data, its
log and that file lie under DIRECTORY/node-N. Standard output gets one line, when all of them serve: `bootstrap`
and their addresses. Ctrl-C stops all cleanly; what is there is taken up again by the next start.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_POLL_S = 0.05
_STOP_S = 30
_LAST_WORDS = 1500  # letters of its log
_CONTROLLER_PORTS = 100  # after those for clients


def properties(node: int, ports: list[int], controller_ports: list[int], folder: Path) -> str:
    """server.properties of one of the nodes (numbered from 1)."""
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controller_ports, 1))
    replicas = min(3, len(ports))
    return f"""\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{ports[node - 1]},CONTROLLER://127.0.0.1:{controller_ports[node - 1]}
advertised.listeners=PLAINTEXT://127.0.0.1:{ports[node - 1]}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder / "data"}
default.replication.factor={replicas}
min.insync.replicas={min(2, replicas)}
offsets.topic.replication.factor={replicas}
group.initial.rebalance.delay.ms=0
"""


class LocalNode:
    """One node's process."""

    def __init__(self, node: int, folder: Path, text: str) -> None:
        self.node = node
        self.log = folder / "log"
        self.properties = folder / "server.properties"
        self.is_announced = False  # that it has ended
        self._ready = folder / "ready"
        folder.mkdir(parents=True, exist_ok=True)
        self.properties.write_text(text)
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0  # of this run's part
        command = [sys.executable, "-m", "barnabas.cli", "start", str(self.properties)]
        with self._ready.open("wb") as ready, self.log.open("ab") as log:
            # a session of its own: Ctrl-C is for us, who stop the nodes
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=ready, stderr=log, start_new_session=True
            )

    def is_ready(self) -> bool:
        """Whether it serves."""
        return self._ready.read_bytes().startswith(b"ready ")

    def first_words(self) -> str:
        """Where it is."""
        return f"node {self.node} is process {self.process.pid}; its log is {_short(self.log)}"

    def last_words(self) -> str:
        """Why it has ended, or how to have it again."""
        code = self.process.returncode
        if code > 0:
            return (
                f"node {self.node} has ended with {code}; the end of {_short(self.log)}:\n{self._log_end()}"
            )
        why = f"was killed (signal {-code})" if code else "was stopped"
        barnabas = _short(Path(sys.executable).with_name("barnabas"))
        return f"node {self.node} {why}; start it again with: {barnabas} start {_short(self.properties)}"

    def _log_end(self) -> str:
        """Whole lines of this run."""
        end = self.log.read_bytes()[self._log_begin :].decode(errors="replace").rstrip()
        if len(end) <= _LAST_WORDS:
            return end
        end = end[-_LAST_WORDS:]
        return end.partition("\n")[2] or end


def _short(path: Path) -> str:
    return min(os.path.relpath(path), str(path), key=len)


def stop(nodes: list[LocalNode]) -> int:
    """SIGTERM to all, SIGKILL to who does not listen; 0 when all that had not ended before ended well."""
    status = 0
    for one in nodes:
        if one.process.poll() is None:
            one.process.terminate()
    for one in nodes:
        try:
            code = one.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            one.process.kill()
            code = one.process.wait()
        if code and not one.is_announced:
            status = 1
            say(f"node {one.node} ended with {code}; its log is {one.log}")
    return status


def say(text: str) -> None:
    """For who watches; standard output is for the bootstrap line."""
    print(text, file=sys.stderr, flush=True)


def _serve(nodes: list[LocalNode], bootstrap: str) -> int:
    """Until a signal: say when all serve, and when one ends."""
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
        time.sleep(_POLL_S)
    return 1


def _interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run them until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description="A cluster of Barnabas on this machine, in the foreground.")
    parser.add_argument("--nodes", type=int, default=3, help="how many (default 3)")
    parser.add_argument(
        "--port", type=int, default=9092, help="the first node's; the others count on from it"
    )
    parser.add_argument(
        "--controller-port",
        type=int,
        help=f"likewise, between controllers (default --port + {_CONTROLLER_PORTS})",
    )
    parser.add_argument("--directory", type=Path, default=Path("barnabas-cluster-data"))
    options = parser.parse_args()
    directory = options.directory.absolute()
    ports = [options.port + number for number in range(options.nodes)]
    first = options.controller_port
    first = options.port + _CONTROLLER_PORTS if first is None else first
    controller_ports = [first + number for number in range(options.nodes)]
    # SIGINT as well: a shell has the jobs in its background ignore it
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
