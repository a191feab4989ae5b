"""The commands and programs of the documentation run as they are on their pages, and print what the pages say.

Every page of docs/ is run here, or has a test of its own, or is in the table of what can't be run.
"""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Final

import pytest

from barnabas.tests.product import ROOMS
from compat_tests.docs.pages import DOCS, ROOT, Block, read_page
from compat_tests.docs.shell import Shell

pytestmark = pytest.mark.barnabas_only

PAGES: Final = {path.name: path for path in (*sorted(DOCS.glob("*.md")), ROOT / "README.md")}
OWN_TESTS: Final = {"nats.md": "nats/test_nats_recipes.py", "security.md": "test_security_doc.py"}

_KAFKAS_TOOLS = "Kafka's tools, which need Java: the cluster's tests run them"
_FRAGMENTS = "fragments of programs, of which test_faults_with_clients.py has whole ones"
# What is not run, by page and heading
NOT_RUN: Final[dict[str, dict[str, str]]] = {
    "balancer.md": {"Begin": "Kafka's tools: test_cluster_balancer.py sets the config"},
    "clients.md": {
        "Kafka's tools": "Java: test_java_tools.py",
        "Metrics of clients": "Java: test_client_metrics.py",
    },
    "cluster.md": {
        "Start": "the environment of a clone, which make makes, and a file in /etc",
        "A slow replica": _KAFKAS_TOOLS,
        "Grow": _KAFKAS_TOOLS,
        "Observers": _KAFKAS_TOOLS,
        "Controllers": _KAFKAS_TOOLS,
    },
    "cores.md": {"Begin": "ports that follow one another: test_cores.py starts nodes on such"},
    "containers.md": {
        "The image": "Docker; compat_tests/image builds it by its Dockerfile's commands",
        "Kubernetes": "Helm",
    },
    "spark.md": {"On a cluster": "a cluster of Spark: test_spark_standalone.py"},
    "testing.md": {"Inspecting and changing the broker": "a list of calls, each on contents of its own"},
    "testing-faults.md": {
        "A test broker that misbehaves": _FRAGMENTS,
        "Actions: what happens": _FRAGMENTS,
        "Requests: what clients sent": _FRAGMENTS,
        "Transactions": _FRAGMENTS,
    },
    "testing-languages.md": {"docker-compose, and a Dockerfile": "Docker: compat_tests/image"},
    "transactions.md": {
        "transaction.version": _KAFKAS_TOOLS,
        "Clients": "a loop without an end: harness/transformers.py has it with one",
    },
}
# What a page takes for granted before its first block
BEFORE: Final = {"command-line.md": "barnabas start\n"}
# What stands around the programs of a page that are no whole ones, in their order; @ is the program
AROUND: Final = {
    "testing.md": [
        "import my_service\n\n\n@",
        "import my_service\nimport pytest\n\n\n@\n\ndef test_app(app):\n    assert app\n",
        "import pytest\n\n\n@",
        "run_my_program = print\n@",
        "import asyncio\nfrom aiokafka import AIOKafkaProducer\nfrom barnabas.testing import Broker\n\n\n"
        "async def main():\n    @\n\n\nasyncio.run(main())\n",
    ],
    "clients.md": ["@\n\ndef test_it(broker_address):\n    assert broker_address.startswith('127.0.0.1:')\n"],
}
# The reader's program in testing.md
MY_SERVICE: Final = """\
from contextlib import contextmanager

from kafka import KafkaConsumer, KafkaProducer


def run_once(servers, orders, confirmed):
    consumer = KafkaConsumer(orders, bootstrap_servers=servers, auto_offset_reset="earliest")
    order = next(consumer)
    KafkaProducer(bootstrap_servers=servers).send(confirmed, order.value, order.key).get(10)


@contextmanager
def started(servers, orders):
    yield servers, orders
"""


def runnable(name: str) -> list[Block]:
    """The blocks of a page that run."""
    left_out = NOT_RUN.get(name, {})
    sections = read_page(PAGES[name])
    return [block for heading, blocks in sections.items() if heading not in left_out for block in blocks]


def programs(blocks: list[Block]) -> list[Block]:
    return [block for block in blocks if block.kind in ("sh", "python")]


RUN: Final = [name for name in PAGES if name not in OWN_TESTS and programs(runnable(name))]


@pytest.mark.parametrize("name", RUN)
def test_page(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    around = iter(AROUND.get(name, ()))
    blocks = [Block("sh", BEFORE[name], 0)] if name in BEFORE else []
    for block in runnable(name):
        is_part = block.kind == "python" and not block.file
        blocks.append(block._replace(text=_within(next(around, "@"), block.text)) if is_part else block)
    (folder / "my_service.py").write_text(MY_SERVICE)
    shell = Shell(folder)
    try:
        shell.run_all(blocks)
    finally:
        shell.close()


@pytest.mark.long
def test_the_tutorial_with_a_real_installation(tmp_path: Path) -> None:
    clone, folder = tmp_path / "barnabas", tmp_path / "page"
    clone.mkdir()
    folder.mkdir()
    names = ["pyproject.toml", "README.md", "LICENSE", *ROOMS]
    subprocess.run(["cp", "-r", *[str(ROOT / name) for name in names], str(clone)], check=True)
    shell = Shell(folder, clone=clone)
    try:
        shell.run_all(runnable("tutorial.md"))
    finally:
        shell.close()


def _within(around: str, text: str) -> str:
    """`text` in the place of @, as far to the right as that stands."""
    lines = around.splitlines(keepends=True)
    return "".join(
        textwrap.indent(text, line[: line.index("@")]) + line.strip()[1:] + "\n"
        if line.strip() == "@"
        else line
        for line in lines
    )


@pytest.mark.parametrize("name", [name for name in PAGES if name not in OWN_TESTS])
def test_every_block_says_what_it_is(name: str) -> None:
    """A block without a kind would not be run."""
    sections = read_page(PAGES[name])
    assert not [block.line for blocks in sections.values() for block in blocks if not block.kind]
    left_out = [heading for heading in NOT_RUN.get(name, ()) if not programs(sections.get(heading, []))]
    assert not left_out, "nothing of these would run anyway"
