"""`Faults`: the rules of one broker, of all its nodes, and the requests that came.

    faults = Faults()  # each node's requests go through a FaultingDispatcher(services, faults)
    faults.on("Produce", topic="orders", times=2).error("NOT_LEADER_OR_FOLLOWER")

Rules may be made and removed from any thread; they act on the loop of the nodes.
"""

from __future__ import annotations

import random  # noqa: TID251 - a fault's own, so that a seed repeats it whatever the broker draws
import threading  # noqa: TID251 - rules are made and removed in any
from collections import deque
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from barnabas.testing.faults.connection import NEVER
from barnabas.testing.faults.requests import Requests, api_key_of
from barnabas.wire.primitives import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from barnabas.broker.requests.context import Outcome
    from barnabas.broker.requests.dispatch import Answer
    from barnabas.testing.faults.call import Call
    from barnabas.testing.faults.releases import ServedVersions
    from barnabas.testing.faults.rules import Held, Rule


class Link:
    """The network to some clients of some nodes: `latency_s` for each answer, `bytes_per_second` for all of them
    together, requests and answers."""

    def __init__(
        self,
        latency_s: float,
        bytes_per_second: float | None,
        node: int | None,
        client_id: str | None,
        end: Callable[[Link], object],
    ) -> None:
        self.latency_s = latency_s
        self.bytes_per_second = bytes_per_second
        self.node = node
        self.client_id = client_id
        self._free_at = -NEVER  # when all that is on its way has gone
        self._end = end

    def matches(self, call: Call) -> bool:
        return (self.node is None or self.node == call.node) and (
            self.client_id is None or fnmatchcase(call.client_id or "", self.client_id)
        )

    def due(self, now: float, count: int) -> float:
        """When so many bytes have come through."""
        if self.bytes_per_second is not None:
            self._free_at = now = max(now, self._free_at) + count / self.bytes_per_second
        return now + self.latency_s

    def remove(self) -> None:
        self._end(self)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Faults:
    """See the module. `run_on_loop` calls a function on the nodes' loop and waits for it; `node_ids` returns the nodes that there are,
    None where they are not known; `version` is a release of Kafka, such as "2.8", that the broker passes for (ValueError); `seed` is
    that of the probabilities of rules."""

    def __init__(
        self,
        *,
        run_on_loop: Callable[[Callable[[], object]], object] = lambda function: function(),
        node_ids: Callable[[], Collection[int] | None] = lambda: None,
        version: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.requests = Requests()
        self._run_on_loop = run_on_loop
        self._node_ids = node_ids
        self._version = version
        self._served: ServedVersions | None = None  # None: all
        self._rules: tuple[Rule, ...] = ()
        self._links: tuple[Link, ...] = ()
        self._changing = threading.Lock()  # the rules or the links; who reads them needs none
        self._held: dict[Rule, deque[Held]] = {}
        self._random = random.Random(seed)
        self._count = 0
        self._serve_version()

    # -- the test's side

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those that are in force, the oldest first."""
        return self._rules

    @property
    def links(self) -> tuple[Link, ...]:
        return self._links

    def on(
        self,
        api: str | int,
        *,
        topic: str | None = None,
        topic_id: str | bytes | None = None,
        partition: int | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        client_id: str | None = None,
        node: int | None = None,
        nth: int | None = None,
        times: int | None = None,
        probability: float | None = None,
    ) -> Rule:
        """A rule for requests of an API (Kafka's name or key, "*" for all) that name this topic, partition, group or
        transactional id, come from this client and to this node. `topic`, `group`, `transactional_id` and `client_id` may be
        patterns (`orders-*`); `topic_id` is 16 bytes or
        their text in base64, also of a topic that was deleted. It acts from the nth such request on (1 is the first), `times`
        times (once where nth is given, else always), each with this probability, as soon as it has an action: see Rule.
        ValueError for a condition that no request can meet."""
        from barnabas.testing.faults.conditions import (
            Conditions,
            check_node,
        )  # late: most brokers have no rules
        from barnabas.testing.faults.rules import ANY, Rule, topic_id_of

        check_node(node, self._node_ids())
        conditions = Conditions(
            api_key=None if api == ANY else api_key_of(api),
            topic=topic,
            topic_id=None if topic_id is None else topic_id_of(topic_id),
            partition=partition,
            group=group,
            transactional_id=transactional_id,
            client_id=client_id,
            node=node,
        )
        return Rule(
            conditions,
            nth=nth,
            times=times,
            probability=probability,
            begin=self._begin,
            end=self._end,
            release=lambda rule, count: self._run_on_loop(lambda: self._release(rule, count)),
        )

    def latency(
        self,
        seconds: float = 0.0,
        *,
        bytes_per_second: float | None = None,
        node: int | None = None,
        client_id: str | None = None,
    ) -> Link:
        """From now on each answer comes so much later, and so many bytes come through a second, of one node or client
        or all, until `remove()`. ValueError."""
        from barnabas.testing.faults.conditions import check_amount, check_node

        check_amount("a latency in seconds", seconds)
        if bytes_per_second is not None:
            check_amount("bytes_per_second", bytes_per_second, above_zero=True)
        check_node(node, self._node_ids())
        link = Link(seconds, bytes_per_second, node, client_id, self._unlink)
        with self._changing:
            self._links = (*self._links, link)
        return link

    def _serve_version(self) -> None:
        """No API is limited further than by the release that the broker passes for."""
        self._served = None
        if self._version is not None:
            from barnabas.testing.faults.releases import ServedVersions

            self._served = ServedVersions(self._version)

    def limit_api(self, api: str | int, highest: int | None) -> None:
        """Serve an API up to this version only; None: not at all. Clients hear of it when they connect next."""
        from barnabas.testing.faults.releases import ServedVersions

        if self._served is None:
            self._served = ServedVersions()
        self._served.limit(api_key_of(api), highest)

    def reset(self) -> None:
        """No rule, no latency, no limit, nothing recorded; what is held is let go. What it passes for stays."""
        for rule in self._rules:
            rule.remove()
        with self._changing:
            self._links = ()
        self._serve_version()
        self.requests.clear()

    def _begin(self, rule: Rule) -> None:
        with self._changing:
            self._count += 1
            rule.number = self._count
            self._rules = (*self._rules, rule)

    def _drop(self, rule: Rule) -> None:
        with self._changing:
            self._rules = tuple(each for each in self._rules if each is not rule)

    def _end(self, rule: Rule) -> None:
        self._drop(rule)
        if rule.holds:
            self._run_on_loop(lambda: self._let_go(rule, None))

    def _unlink(self, link: Link) -> None:
        with self._changing:
            self._links = tuple(each for each in self._links if each is not link)

    def _release(self, rule: Rule, count: int | None) -> None:
        if count is None:
            self._drop(rule)
        self._let_go(rule, count)

    def _let_go(self, rule: Rule, count: int | None) -> None:
        waiting = self._held.get(rule)
        left = count
        while waiting and left != 0:
            held = waiting.popleft()
            rule.set_held(waiting)
            if not held.call.closed:
                left = None if left is None else left - 1
                held.resume()
        if not waiting:
            self._held.pop(rule, None)

    # -- the dispatchers' side

    @property
    def is_idle(self) -> bool:
        """Whether nothing happens to any request."""
        return not self._rules and not self._links and self._served is None

    def refuse(self, call: Call) -> Answer | Outcome | None:
        """The answer to a request that is not served in its version."""
        return None if self._served is None else self._served(call)

    def match(self, call: Call) -> Rule | None:
        """The rule that acts on this request."""
        for rule in self._rules:
            if rule.is_spent or not rule.conditions.may_include(call):
                continue
            try:
                is_included = rule.conditions.include(call)
            except (DecodeError, KeyError):  # the broker closes the connection for it
                continue
            if is_included and rule.counts(self._random.random):
                return rule
        return None

    def is_plain(self, call: Call) -> bool:
        """Whether nothing slows its answer down."""
        return not any(link.matches(call) for link in self._links)

    def due(self, call: Call, now: float, count: int) -> float:
        """When an answer of so many bytes that is ready now has come through."""
        return max(
            [now, *(link.due(now, len(call.data) + count) for link in self._links if link.matches(call))]
        )

    def hold(self, rule: Rule, resume: Callable[[], object], call: Call) -> None:
        """Call back when the rule's requests are released, unless the client has gone."""
        from barnabas.testing.faults.rules import Held  # there is a rule, so this has been loaded

        waiting = self._held.setdefault(rule, deque())
        for gone in [each for each in waiting if each.call.closed]:
            waiting.remove(gone)
        waiting.append(Held(call, resume))
        rule.set_held(waiting)
