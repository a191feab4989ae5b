"""Every page of the console in a real browser."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from barnabas.testing import Broker
from barnabas.testing.control import Control
from barnabas.testing.external.raw_client import RawClient
from barnabas.testing.ports import free_port
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest
from compat_tests.console.browser import Browser, Page
from compat_tests.console.contents import HOSTILE, LARGE, commit, lively
from compat_tests.harness.nats_server import NatsServer

pytestmark = [pytest.mark.barnabas_only, pytest.mark.long, pytest.mark.timeout(180)]

CREATE_TOPICS, METADATA = 19, 3
# Address behind #, the heading, and a text that a broker has put there
PAGES = [
    ("/", "Overview", "serving"),
    ("/topics", "Topics", "orders"),
    ("/topic?topic=orders", "Topic orders", "min.insync.replicas"),
    ("/messages?topic=orders", "Messages", "customer"),
    ("/messages?topic=orders&from=live", "Messages", "Waiting for records."),
    ("/groups", "Groups", "billing"),
    ("/group?group=billing", "Group billing", "Total lag"),
    ("/test", "Test broker", "Metadata"),
]


def url(control: Control, place: str = "/") -> str:
    return f"{control.url}/console/#{place}"


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_every_page_renders(browser: Browser, control: Control, is_dark: bool) -> None:
    lively(control.broker)
    RawClient(control.broker.nodes[0].port).ask(METADATA, 5, MetadataRequest())
    with browser.page(is_dark=is_dark) as page:
        for place, heading, text in PAGES:
            page.open("about:blank")
            page.open(url(control, place))
            page.wait_for(f"document.querySelector('h1')?.innerText === {json.dumps(heading)}")
            page.wait_for_text(text)
            assert page.nameless() == [], place
            assert contrast(page) >= 4.5, place
            (background,) = set(
                page.evaluate(
                    "['body', 'main'].map((each) => getComputedStyle(document.querySelector(each)).backgroundColor)"
                    ".filter((each) => each !== 'rgba(0, 0, 0, 0)')"
                )
            )
            assert (luminance(background) < 0.1) is is_dark
        assert page.problems == []
        assert {each for each in page.requests if not each.startswith(f"{control.url}/console/")} <= {
            "about:blank"
        }


def contrast(page: Page) -> float:
    """The lowest contrast of a text on the page with what is behind it (WCAG)."""
    pairs = page.evaluate(
        """[...document.querySelectorAll('body *')].filter((each) => each.checkVisibility() && !each.disabled
            && [...each.childNodes].some((child) => child.nodeType === 3 && child.data.trim())).map((each) => {
          let behind = each;
          while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
          return [getComputedStyle(each).color, getComputedStyle(behind).backgroundColor];
        })"""
    )
    found = []
    for color, behind in {tuple(each) for each in pairs}:
        light, dark = sorted((luminance(color), luminance(behind)), reverse=True)
        found.append((light + 0.05) / (dark + 0.05))
    return min(found)


def luminance(color: str) -> float:
    parts = [int(each) / 255 for each in re.findall(r"\d+", color)[:3]]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_live_tail_shows_a_record_as_it_comes(page: Page, control: Control) -> None:
    broker = control.broker
    broker.create_topic("t", partitions=3)
    broker.seed("t", [b"before"])
    page.open(url(control, "/messages?topic=t&from=live"))
    page.wait_for_text("Waiting for records.")
    page.wait_for(
        "performance.getEntriesByType('resource').length > 5 && document.querySelector('#status').textContent === ''"
    )
    broker.seed("t", [b"first"])
    page.wait_for_text("first", 5)
    broker.seed("t", [b"second"])
    page.wait_for_text("second", 5)
    assert [row[4] for row in page.cells()] == ["second", "first"]
    page.evaluate(
        "[...document.querySelectorAll('button')].find((each) => each.innerText === 'Stop').click()"
    )
    broker.seed("t", [b"third"])
    page.wait_for_text("Go on")
    page.evaluate(
        "[...document.querySelectorAll('button')].find((each) => each.innerText === 'Go on').click()"
    )
    broker.seed("t", [b"fourth"])
    assert "before" not in page.text()


# -- what comes from outside runs no script


def test_hostile_records(page: Page, control: Control) -> None:
    broker = control.broker
    broker.create_topic("t", partitions=1)
    broker.seed(
        "t", [{"value": each, "key": each, "headers": [("<b onclick=hit()>", each)]} for each in HOSTILE]
    )
    broker.seed("t", [LARGE])
    count = len(HOSTILE) + 1
    page.open(url(control, "/messages?topic=t&limit=100"))
    page.wait_for(f"document.querySelectorAll('tbody tr').length === {count}")
    page.evaluate("[...document.querySelectorAll('tbody button')].forEach((each) => each.click())")
    page.wait_for(f"document.querySelectorAll('td.details pre').length === {3 * len(HOSTILE) + 1}")
    no_script_ran(page)
    shown = page.evaluate("[...document.querySelectorAll('td.details pre')].map((each) => each.textContent)")
    assert "<img src=x onerror=hit()>" in shown
    assert "left\\u202eright\\u0000end" in shown
    assert any(each.startswith("00000000  ff fe 00") for each in shown), "not UTF-8: as hex"
    assert any(len(each) == 1_000_000 for each in shown)
    assert '{\n  "n": 12345678901234567890\n}' in shown
    for mode in ("hex", "text", "json"):
        page.open(url(control, f"/messages?topic=t&limit=100&mode={mode}"))
        page.wait_for(f"document.querySelectorAll('tbody tr').length === {count}")
        no_script_ran(page)


def test_hostile_names(page: Page, control: Control) -> None:
    broker = control.broker
    broker.create_topic("t")
    for text in ("<img src=x onerror=hit()>", "\u202e\u0000<script>hit()</script>", "../..", "a&b=c#d?e"):
        commit(broker, text, "t", 0)
    page.open(url(control, "/groups"))
    page.wait_for("document.querySelectorAll('tbody tr').length === 4")
    no_script_ran(page)
    names = page.evaluate("[...document.querySelectorAll('tbody a')].map((each) => each.innerText)")
    assert names == [
        "../..",
        "<img src=x onerror=hit()>",
        "a&b=c#d?e",
        "\\u202e\\u0000<script>hit()</script>",
    ]
    for number, name in enumerate(names):
        page.open(url(control, "/groups"))
        page.wait_for("document.querySelectorAll('tbody tr').length === 4")
        page.evaluate(f"document.querySelectorAll('tbody a')[{number}].click()")
        page.wait_for(f"document.querySelector('h1').innerText === {json.dumps(f'Group {name}')}")
        page.wait_for_text("Total lag")
        no_script_ran(page)


def test_hostile_addresses(page: Page, control: Control) -> None:
    for place in (
        "/topic?topic=%3Cimg%20src%3Dx%20onerror%3Dhit()%3E",
        "/messages?topic=%3Cimg%20src%3Dx%20onerror%3Dhit()%3E&filter=%22%3E%3Cscript%3Ehit()%3C/script%3E",
        "/%3Cimg%20src%3Dx%20onerror%3Dhit()%3E",
        "/__proto__",
        "/../api/overview",
    ):
        page.open(url(control, place))
        page.wait_for("document.querySelector('h1')")
        page.wait_for("document.querySelectorAll('#pages li').length > 0")
        no_script_ran(page)
    page.open(url(control, "/topic?topic=nothing"))
    page.wait_for_text("there is no topic 'nothing'")
    page.problems[:] = [each for each in page.problems if "404" not in each]


def no_script_ran(page: Page) -> None:
    assert page.evaluate("typeof hit") == "undefined"
    assert (
        page.evaluate("document.querySelectorAll('main img, main script, main iframe, main b').length") == 0
    )
    assert not any("Content Security Policy" in each for each in page.problems), "it did not even try"


def test_another_sites_page_reads_nothing(page: Page, control: Control) -> None:
    page.open("data:text/html,<title>another</title>")
    for name in ("overview", "tail?topic=t"):
        for mode in ("cors", "no-cors"):
            script = f"fetch({json.dumps(f'{control.url}/console/api/{name}')}, {{mode: '{mode}'}}).then((each) => each.text(), () => '')"
            assert page.evaluate(script) == ""
    page.problems.clear()


# -- size


def test_ten_thousand_topics_stay_usable(page: Page, control: Control) -> None:
    client = RawClient(control.broker.nodes[0].port)
    for begin in range(0, 10_000, 500):
        topics = [CreatableTopic(f"topic-{number:05}", 1, 1) for number in range(begin, begin + 500)]
        answer = client.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics, timeout_ms=60_000))
        assert {each.error_code for each in answer.topics} == {0}
    page.open(url(control, "/topics"))
    page.wait_for_text("10,000 topics, page 1")
    assert len(page.cells()) == 100
    began = time.monotonic()
    page.evaluate(
        "[...document.querySelectorAll('button')].find((each) => each.innerText === 'Next').click()"
    )
    page.wait_for_text("page 2")
    assert page.cells()[0][0] == "topic-00100"
    page.evaluate("document.querySelector('input[name=filter]').focus()")
    page.type("c-0999")
    page.wait_for_text("10 topics, page 1")
    assert [row[0] for row in page.cells()] == [f"topic-{number:05}" for number in range(9990, 10_000)]
    page.open(url(control, "/"))
    page.wait_for_text("10,000")
    assert time.monotonic() - began < 15, "two pages and a filter"


# -- keyboard


def test_the_keyboard_is_enough(page: Page, control: Control) -> None:
    broker = control.broker
    broker.create_topic("orders")
    broker.create_topic("payments")
    broker.seed("orders", [b'{"a": 1}'])
    page.open(url(control))
    page.wait_for_text("serving")
    page.press("Tab")
    assert page.focused() == "BUTTON Skip to content"
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.evaluate("document.activeElement.blur()")
    assert tab_to(page, "A Topics") <= 5
    page.press("Enter")
    page.wait_for("document.activeElement.tagName === 'H1' && document.activeElement.innerText === 'Topics'")
    page.wait_for_text("orders")
    page.press("/")
    assert page.focused() == "INPUT filter"
    page.type("ord")
    page.wait_for_text("1 topic, page 1")
    tab_to(page, "A orders")
    page.press("Enter")
    page.wait_for("document.activeElement.innerText === 'Topic orders'")
    page.wait_for_text("messages")
    tab_to(page, "A Messages of partition 0")
    page.press("Enter")
    page.wait_for("document.activeElement.innerText === 'Messages'")
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    tab_to(page, "BUTTON Show record 0 of partition 0")
    page.press("Enter")
    page.wait_for("document.querySelector('td.details pre')")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert outline(page) != "none"


def tab_to(page: Page, name: str, presses_max: int = 40) -> int:
    """How often Tab is pressed until it has the focus."""
    for count in range(1, presses_max + 1):
        page.press("Tab")
        if page.focused() == name:
            return count
    raise AssertionError(f"{name} can't be reached by Tab")


def outline(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))


# -- pages


def test_the_listener_of_the_property(page: Page) -> None:
    port = free_port()
    with Broker(properties={"barnabas.console.listener": f":{port}"}) as broker:
        broker.create_topic("orders")
        page.open(f"http://localhost:{port}/#/topics")
        page.wait_for_text("orders")
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_for_text("serving")
        assert "Test broker" not in page.text()
        assert "NATS" not in page.text()


def test_messages_by_the_form(page: Page, control: Control) -> None:
    broker = control.broker
    broker.create_topic("t", partitions=1)
    broker.seed("t", [b"%d" % number for number in range(120)])
    page.open(url(control, "/messages"))
    page.wait_for("document.activeElement.name === 'topic'")
    page.type("t")
    page.evaluate("document.querySelector('input[name=partition]').value = '0'")
    page.press("Enter")
    page.wait_for_text("up to the end")
    assert [row[4] for row in page.cells()] == [str(number) for number in range(70, 120)]
    button = "[...document.querySelectorAll('button')].find((each) => each.innerText === '{}').click()"
    page.evaluate(button.format("Earlier records"))
    page.wait_for("document.querySelector('tbody td:nth-child(2)')?.innerText === '20'")
    page.evaluate(button.format("Later records"))
    page.wait_for("document.querySelector('tbody td:nth-child(2)')?.innerText === '70'")
    page.open(url(control, "/messages?topic=t&from=offset&at=119"))
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    page.open(url(control, "/messages?topic=t&from=start&filter=11&limit=5"))
    page.wait_for_text("follow")
    assert [row[4] for row in page.cells()] == ["11", "110", "111", "112", "113"]
    page.open(url(control, "/messages?topic=t&from=time&at=2001-01-01%2000:00&limit=3"))
    page.wait_for("document.querySelectorAll('tbody tr').length === 3")


def test_a_groups_lag_over_time(page: Page, control: Control) -> None:
    lively(control.broker)
    page.open(url(control, "/group?group=billing"))
    page.wait_for_text("Lag of all partitions: now 10")
    control.broker.seed("orders", [b"more"] * 5)
    page.wait_for_text("Lag of all partitions: now 15, at most 15")
    assert len(page.evaluate("document.querySelector('polyline').getAttribute('points')").split()) >= 2
    tab_to(page, "A orders")
    control.broker.seed("orders", [b"more"])
    page.wait_for_text("Lag of all partitions: now 16")
    assert page.focused() == "A orders", "what is drawn anew keeps the focus"


def test_rules_and_requests_of_a_test_broker(page: Page, control: Control) -> None:
    page.open(url(control, "/test"))
    page.wait_for_text("No rules are in force.")
    control.broker.on("Produce", topic="t").error("NOT_LEADER_OR_FOLLOWER")
    RawClient(control.broker.nodes[0].port).ask(METADATA, 5, MetadataRequest())
    page.wait_for("document.querySelectorAll('tbody tr').length === 3")
    node, rule, request = page.cells()
    assert node[2] == "running"
    assert rule[1] == "Produce"
    assert "NOT_LEADER_OR_FOLLOWER" in rule[2]
    assert (request[2], request[6]) == ("Metadata", "answered")


def test_the_page_goes_on_after_the_broker_was_away(page: Page, control: Control) -> None:
    page.open(url(control))
    page.wait_for_text("serving")
    control.broker.stop_node(1)
    page.wait_for("document.querySelector('#status').innerText === 'the broker does not run'")
    control.broker.start_node(1)
    page.wait_for("document.querySelector('#status').innerText === ''")
    page.problems[:] = [each for each in page.problems if "503" not in each]


def test_bindings_to_nats(page: Page, tmp_path: Path, nats_executable: Path) -> None:
    with (
        NatsServer(tmp_path / "nats", executable=nats_executable) as server,
        Broker(properties={"nats.servers": server.url}) as broker,
    ):
        control = Control(broker)
        broker.create_topic("bound", configs={"nats.subjects": "orders.>"})
        broker.create_topic("free")
        page.open(url(control, "/nats"))
        page.wait_for_text("orders.>")
        page.wait_for_text("running")
        topic, subjects, *_ = page.cells()[0]
        assert (topic, subjects) == ("bound", "orders.>")
        assert page.nameless() == []
        page.wait_for_text("No gaps")
        server.stop()
        page.wait_for_text("lasts")
        server.start()
        page.wait_for("!document.body.innerText.includes('lasts')")
        page.wait_for_text("Times in which messages may have been missed")
        control.close()
