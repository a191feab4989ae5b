"""Reachability of the other nodes: log lines while this node waits for them, and the loss of the majority."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from barnabas.controller.link.handshake import HungUp
from barnabas.controller.link.messages import LinkRefused

if TYPE_CHECKING:
    from barnabas.controller.link.links import Links
    from barnabas.runtime.interface import Runtime

REMIND_FIRST_S: Final = 5.0  # until the missing nodes are logged
REMIND_S: Final = 10.0  # between later lines

log = logging.getLogger("barnabas.link")


def unlinked_addresses(links: Links) -> str:
    """The addresses that this node calls and has no link to, each with the result of the last call; "" for none."""
    texts = []
    for dialer in links.dialers():
        if dialer.is_self or (dialer.node_id is not None and links.is_linked(dialer.node_id)):
            continue
        name = dialer.name if dialer.node_id is None else f"node {dialer.node_id} at {dialer.name}"
        texts.append(f"{name} ({_in_words(dialer.error)})")
    return ", ".join(texts)


def has_lost_majority(links: Links) -> bool:
    """Whether so many voters refuse connections that there can be no active controller until one of them starts again. A voter
    with several addresses counts once; an address that has never answered may be that of a running voter."""
    live: dict[int, bool] = {}
    unknown = 0
    known = links.voter_ids
    for dialer in links.dialers():
        node_id = dialer.node_id
        if dialer.is_self or (known and node_id is not None and node_id not in known):
            continue
        if node_id is None:
            unknown += 1
        elif links.is_linked(node_id) or not isinstance(dialer.error, ConnectionRefusedError):
            live[node_id] = True
        else:
            live.setdefault(node_id, False)
    is_voter = links.identity.node_id in known if known else links.identity.is_controller
    voters = len(live) + unknown + (1 if is_voter else 0)
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
    """Logs while this node has no link to an active controller, until the links close."""

    def __init__(self, runtime: Runtime, links: Links) -> None:
        self._runtime = runtime
        self._links = links
        self._missed = 1  # checks in a row without one; an election takes no longer than one
        runtime.call_later(REMIND_FIRST_S, self._check)

    def _check(self) -> None:
        links = self._links
        if links.is_closed:
            return
        leader_id = links.active_controller()
        if leader_id == links.identity.node_id or links.is_linked(leader_id):
            self._missed = 0
        else:
            self._missed += 1
            if self._missed > 1:
                missing = unlinked_addresses(links)
                log.info(
                    "still waiting for an active controller, which a majority of the voters elects; %s",
                    f"not there: {missing}" if missing else "all that this node calls are there",
                )
        self._runtime.call_later(REMIND_S, self._check)
