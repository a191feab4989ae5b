"""`python -m compat_tests.console.screenshots`: pictures of the console for docs/console.md, in docs/images/."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from kafka import KafkaProducer

from barnabas.testing import Broker
from barnabas.testing.control import Control
from compat_tests.console.browser import MISSING, Browser, Page, chromium
from compat_tests.console.contents import commit, lively

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
WIDTH: Final = 1000
ROUNDS: Final = 12  # of records, while the charts are drawn


def main() -> int:
    if chromium() is None:
        print(f"the pictures need {MISSING}")
        return 1
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        Browser(Path(directory) / "profile") as browser,
        Broker(nodes=3) as broker,
    ):
        control = Control(broker)
        lively(broker)
        broker.on("Produce", topic="payments", nth=2).error("NOT_LEADER_OR_FOLLOWER")
        with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
            for number in range(3):
                producer.send("payments", b"%d" % number).get(timeout=30)
        base = f"{control.url}/console/#"
        with browser.page(width=WIDTH, height=720) as page:
            page.open(f"{base}/")
            for number in range(ROUNDS):  # the chart needs time to pass
                broker.seed("payments", [b"paid"] * (40 + 30 * (number % 4)))
                page.wait_for_text("serving")
                time.sleep(1)  # the chart is one over time
            take(page, "console-overview")
        with browser.page(width=WIDTH, height=560) as page:
            page.open(f"{base}/topic?topic=orders")
            page.wait_for_text("retention.ms")
            take(page, "console-topic")
        with browser.page(width=WIDTH, height=620) as page:
            page.open(f"{base}/messages?topic=orders&limit=6")
            page.wait_for("document.querySelectorAll('tbody tr').length === 6")
            page.evaluate("document.querySelectorAll('tbody button')[1].click()")
            page.wait_for("document.querySelectorAll('td.details pre').length > 2")
            take(page, "console-messages")
        with browser.page(width=WIDTH, height=700, is_dark=True) as page:
            page.open(f"{base}/group?group=billing")
            for number in range(ROUNDS // 2):
                broker.seed("orders", [b"more"] * (5 + number))
                if number % 3 == 2:
                    commit(broker, "reports", "orders", 60)
                time.sleep(2)  # likewise
            take(page, "console-group-dark")
        with browser.page(width=WIDTH, height=680) as page:
            page.open(f"{base}/test")
            page.wait_for_text("NOT_LEADER_OR_FOLLOWER")
            take(page, "console-test-broker")
        control.close()
    return 0


def take(page: Page, name: str) -> None:
    assert page.problems == [], page.problems
    path = IMAGES / f"{name}.png"
    page.screenshot(path)
    print(f"{path.relative_to(IMAGES.parents[1])}: {path.stat().st_size // 1000} KB")


if __name__ == "__main__":
    sys.exit(main())
