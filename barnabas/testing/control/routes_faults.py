"""Rules, links and recorded requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.testing.control import messages as m
from barnabas.testing.control.table import route
from barnabas.testing.faults.rules import error_code_of
from barnabas.testing.faults.waiting import WAIT_SECONDS
from barnabas.wire.primitives import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.testing.control.control import Control
    from barnabas.testing.faults.engine import Link
    from barnabas.testing.faults.requests import Recorded
    from barnabas.testing.faults.rules import Rule


@route("GET", "/rules", "The rules in force, the oldest first.", answer=list[m.RuleStatus])
def rules(control: Control) -> list[m.RuleStatus]:
    return [_rule_status(each) for each in control.broker.faults.rules]


@route("POST", "/rules", "Have something happen to requests.", body=m.NewRule, answer=m.RuleStatus)
def make_rule(control: Control, body: m.NewRule) -> m.RuleStatus:
    """Of several rules that match a request, the oldest counts that still has something to do."""
    rule = control.broker.faults.on(
        body.api,
        topic=body.topic,
        topic_id=body.topic_id,
        partition=body.partition,
        group=body.group,
        transactional_id=body.transactional_id,
        client_id=body.client_id,
        node=body.node,
        nth=body.nth,
        times=body.times,
        probability=body.probability,
    )
    steps = _steps(rule, body)
    if not steps:
        raise ValueError(
            "a rule needs an action: error, delay_s, hold, drop_answer, close, truncate or answer"
        )
    with rule.together():
        for step in steps:
            step()
    return _rule_status(rule)


@route("GET", "/rules/{rule}", "How often a rule has acted.", answer=m.RuleStatus)
def rule_status(control: Control, rule: str) -> m.RuleStatus:
    return _rule_status(_rule(control, rule))


@route("DELETE", "/rules/{rule}", "It acts no more; what it holds is let go.")
def remove_rule(control: Control, rule: str) -> None:
    _rule(control, rule).remove()


@route("DELETE", "/rules", "No rule acts any more.")
def remove_rules(control: Control) -> None:
    for each in control.broker.faults.rules:
        each.remove()


@route("POST", "/rules/{rule}/release", "Let go what a rule holds.", body=m.Release)
def release(control: Control, rule: str, body: m.Release) -> None:
    _rule(control, rule).release(body.count)


@route(
    "POST",
    "/hold-markers",
    "Hold the markers of transactions, until the rule is released.",
    body=m.Markers,
    answer=m.RuleStatus,
)
def hold_markers(control: Control, body: m.Markers) -> m.RuleStatus:
    return _rule_status(control.broker.transactions.hold_markers(body.topic, body.partition))


def _steps(rule: Rule, body: m.NewRule) -> list[Callable[[], object]]:
    """What is to be called on the rule: modifiers first, for it acts from its first action on."""
    served: dict[str, Any] = {} if body.served is None else {"served": body.served}
    steps: list[Callable[[], object]] = []
    if body.delay_s is not None:
        delay_s = body.delay_s
        steps.append(lambda: rule.delay(delay_s, **served))
    if body.hold:
        steps.append(lambda: rule.hold(**served))
    if body.error is not None:
        error = error_code_of(body.error)
        steps.append(lambda: rule.error(error, message=body.error_message, whole=body.whole, **served))
    if body.answer is not None:
        if rule.conditions.api_key is None:
            raise ValueError("an answer is of one API")
        from barnabas.testing.control.json_answers import answering  # late: for rules that need it

        answering_so = answering(rule.conditions.api_key, body.answer)
        steps.append(lambda: rule.answer(answering_so))
    if body.drop_answer:
        steps.append(lambda: rule.drop_answer(**served))
    if body.close:
        steps.append(lambda: rule.close(**served))
    if body.truncate is not None:
        count = body.truncate
        steps.append(lambda: rule.truncate(count))
    heeding = (body.delay_s is not None, body.hold, body.error is not None, body.drop_answer, body.close)
    if steps and served and not any(heeding):
        raise ValueError("served goes with delay_s, hold, error, drop_answer and close")
    return steps


def _rule(control: Control, number: str) -> Rule:
    for each in control.broker.faults.rules:
        if str(each.number) == number:
            return each
    raise LookupError(f"there is no rule {number}")


def _rule_status(rule: Rule) -> m.RuleStatus:
    return m.RuleStatus(
        id=rule.number,
        api=rule.api,
        action=rule.description,
        calls=rule.calls,
        hits=rule.hits,
        held=rule.held,
        spent=rule.is_spent,
    )


@route("GET", "/links", "What slows clients down.", answer=list[m.LinkStatus])
def links(control: Control) -> list[m.LinkStatus]:
    return [_link_status(number, link) for number, link in sorted(control.links.items())]


@route("POST", "/links", "Give clients a slower network.", body=m.NewLink, answer=m.LinkStatus)
def make_link(control: Control, body: m.NewLink) -> m.LinkStatus:
    made = control.broker.faults.latency(
        body.latency_s, bytes_per_second=body.bytes_per_second, node=body.node, client_id=body.client_id
    )
    number = control.number()
    control.links[number] = made
    return _link_status(number, control.links[number])


@route("DELETE", "/links/{link}", "As fast as before.")
def remove_link(control: Control, link: str) -> None:
    found = control.links.pop(int(link), None)
    if found is None:
        raise LookupError(f"there is no link {link}")
    found.remove()


def _link_status(number: int, link: Link) -> m.LinkStatus:
    return m.LinkStatus(
        id=number,
        latency_s=link.latency_s,
        bytes_per_second=link.bytes_per_second,
        node=link.node,
        client_id=link.client_id,
    )


@route("POST", "/limits", "Serve an API up to a version only, or not at all.", body=m.ApiLimit)
def limit_api(control: Control, body: m.ApiLimit) -> None:
    """Clients hear of it when they connect next."""
    control.broker.faults.limit_api(body.api, body.max_version)


@route(
    "GET",
    "/requests",
    "What clients have asked and were told.",
    query=m.RequestsQuery,
    answer=list[m.RecordedRequest],
)
def requests(control: Control, query: m.RequestsQuery) -> list[m.RecordedRequest]:
    recorded = control.broker.faults.requests
    conditions: dict[str, Any] = {"topic": query.topic, "client_id": query.client_id, "node": query.node}
    if query.api is None:
        if query.timeout_s is not None:
            raise ValueError("say which api to wait for")
        found = [each for each in recorded if _meets(each, query)]
    elif query.timeout_s is None:
        found = recorded.of(query.api, **conditions)
    else:
        timeout = min(query.timeout_s, 10 * WAIT_SECONDS)
        found = recorded.wait_for(
            query.api, count=query.count, answered=query.answered, timeout=timeout, **conditions
        )
    if query.last is not None:
        found = found[-query.last :] if query.last > 0 else []
    return [_recorded(each, decoded=query.decoded) for each in found]


@route("DELETE", "/requests", "Forget them.")
def clear_requests(control: Control) -> None:
    control.broker.faults.requests.clear()


def _meets(recorded: Recorded, query: m.RequestsQuery) -> bool:
    return (
        (query.client_id is None or recorded.client_id == query.client_id)
        and (query.node is None or recorded.node == query.node)
        and (query.topic is None or query.topic in recorded.topics)
    )


def _recorded(recorded: Recorded, *, decoded: bool) -> m.RecordedRequest:
    found = m.RecordedRequest(
        node=recorded.node,
        api=recorded.api,
        version=recorded.version,
        correlation_id=recorded.correlation_id,
        client_id=recorded.client_id,
        client_host=recorded.client_host,
        topics=recorded.topics,
        received_ms=recorded.received_ms,
        answered_ms=recorded.answered_ms,
        outcome=recorded.outcome,
        fault=recorded.fault,
        request_bytes=len(recorded.request_bytes) + 4,
        answer_bytes=recorded.answer_size,
    )
    if decoded:
        try:
            found.request, found.answer = recorded.request, recorded.answer
        except DecodeError as error:
            raise ValueError(f"a request or its answer can't be read: {error}") from None
    return found
