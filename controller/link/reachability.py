"""What a node says while it waits for others: somebody may be looking at its log and wonder why nothing comes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from barnabas.controller.link.handshake import HungUp
from barnabas.controller.link.messages import LinkRefused

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.runtime.interface import Runtime

REMIND_FIRST_S: Final = 5.0  # then who is missing is named, and
REMIND_S: Final = 10.0  # again as often

log = logging.getLogger("barnabas.link")


def unanswered(links: Links) -> str:
    """The addresses that this node calls and has no link to, each with what came of the last call. "" for none."""
    texts = []
    for dialer in links.dialers():
        if dialer.is_self or (dialer.node_id is not None and links.is_linked(dialer.node_id)):
            continue
        name = dialer.name if dialer.node_id is None else f"node {dialer.node_id} at {dialer.name}"
        texts.append(f"{name} ({_in_words(dialer.error)})")
    return ", ".join(texts)


def has_lost_majority(links: Links) -> bool:
    """Whether so many voters have ended, and nothing listens where they were, that there is no active controller until
    one of them is started again. A voter may be called at several addresses, and counts once; where nobody has answered yet
    somebody may be."""
    live: dict[int, bool] = {}
    strangers = 0
    for dialer in links.dialers():
        node_id = dialer.node_id
        if dialer.is_self:
            continue
        if node_id is None:
            strangers += 1
        elif links.is_linked(node_id) or not isinstance(dialer.error, ConnectionRefusedError):
            live[node_id] = True
        else:
            live.setdefault(node_id, False)
    voters = len(live) + strangers + (1 if links.identity.is_controller else 0)
    ended = list(live.values()).count(False)
    return voters - ended < voters // 2 + 1


def _in_words(error: Exception | None) -> str:
    if error is None:
        return "no answer yet"
    if isinstance(error, LinkRefused):
        return f"link refused: {error.reason}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, HungUp):
        return "it hangs up"
    return str(error) or type(error).__name__


class ControllerWatch:
    """Says so while this node knows no active controller that it could reach, from its making until the links close."""

    def __init__(self, runtime: Runtime, links: Links) -> None:
        self._runtime = runtime
        self._links = links
        self._missed = 1  # looks at which there was none; one alone is an election
        runtime.call_later(REMIND_FIRST_S, self._look)

    def _look(self) -> None:
        links = self._links
        if links.is_closed:
            return
        leader_id = links.active_controller()
        if leader_id == links.identity.node_id or links.is_linked(leader_id):
            self._missed = 0
        else:
            self._missed += 1
            if self._missed > 1:
                missing = unanswered(links)
                log.info(
                    "still waiting for an active controller, which a majority of the voters elects; %s",
                    f"not there: {missing}" if missing else "all that this node calls are there",
                )
        self._runtime.call_later(REMIND_S, self._look)
