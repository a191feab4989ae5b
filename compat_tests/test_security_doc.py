"""docs/security.md: the commands of "From nothing to a secured three-node cluster" run as they are on the page, and print what it
says; and the examples of "In a test suite" run.

Ports are other ones, and Kafka's tools are scripts that start them from the jars.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.sources import parse_properties
from barnabas.broker.security.sasl_config import controller_login
from barnabas.testing.ports import free_port
from compat_tests.docs.pages import DOCS, read_page
from compat_tests.docs.shell import Shell
from compat_tests.harness.java_tools import JAVA_FLAGS, TOOLS
from compat_tests.harness.kafka_jars import ensure_jars, java_executable
from compat_tests.virtual.runtime import VirtualRuntime

PAGE = DOCS / "security.md"
SECTIONS = read_page(PAGE)
# The sections of the cluster, in their order
CLUSTER = ["Certificates", "server.properties", "Users", "A topic, and who may use it"]
_PORTS = re.compile(r"\b(90|91|92)9(?=\$n|[1-3]\b)")

pytestmark = [pytest.mark.barnabas_only]


def _decades() -> Iterator[str]:
    """Three times ten ports, of which the nodes take 1 to 3: each as all digits but the last."""
    found: set[int] = set()
    while len(found) < 3:
        found.add(free_port() // 10)
    yield from map(str, found)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    first_ports = dict(zip(("90", "91", "92"), _decades(), strict=True))
    (tmp_path / "page").mkdir()
    made = Shell(tmp_path / "page", lambda text: _PORTS.sub(lambda found: first_ports[found[1]], text))
    command = shlex.join([java_executable(), *JAVA_FLAGS, "-cp", f"{ensure_jars()}/*"])
    for tool, main_class in TOOLS.items():
        made.add_script(f"{tool}.sh", f'exec {command} {main_class} "$@"')
    yield made
    made.close()


@pytest.mark.jvm
@pytest.mark.timeout(600)
def test_a_secured_cluster_from_nothing(shell: Shell) -> None:
    for heading in CLUSTER:
        blocks = SECTIONS[heading]
        assert blocks, heading
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.kind == "text":
                continue
            shell.run(block, following.text if following is not None and following.kind == "text" else "")
    modes = {path.stat().st_mode & 0o077 for path in shell.folder.iterdir() if path.is_file()}
    assert modes == {0}, "others can read a file"
    logs = "".join(path.read_text() for path in shell.folder.glob("node-?.log"))
    assert "Traceback" not in logs
    for secret in ("admin-secret", "alice-secret", (shell.folder / "secret").read_text().strip()[:40]):
        assert secret not in logs


def test_the_example_of_a_test_broker(shell: Shell) -> None:
    example, *_ = (block for block in SECTIONS["In a test suite"] if block.kind == "python")
    shell.run(example, "")


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_the_properties_of_a_login_to_controllers(role: str) -> None:
    (block,) = SECTIONS["To controllers"]
    own = {
        "broker": {"process.roles": "broker", "node.id": "9", "listeners": "CLIENTS://127.0.0.1:9092"},
        "controller": {"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9093"},
    }[role]
    voters = {
        "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9094",
        "inter.broker.listener.name": "CLIENTS",
    }
    config = BrokerConfig.from_properties({**parse_properties(block.text), **voters, **own})
    assert config.controller_protocol == "SASL_SSL"
    login = controller_login(config, VirtualRuntime())
    assert login is not None
    assert login().first().startswith(b"n,,n=node,r=")
    assert not [text for _, text in config.notes if "no effect" in text]
