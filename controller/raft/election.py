"""Pre-vote, which the library lacks.

A voter whose election timeout has passed asks the others whether they would vote for it in the next term, and begins that term
only when a majority would: voters that hear from no leader and have no newer log. So a voter that was partitioned or paused does
not disturb the quorum when it comes back. Since asking has no effect, a voter asks as soon as its connection to the leader breaks.

Of two voters that ask at the same time the one with the newer log has priority, then the one with the lower id. So they do not
split the vote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.controller.raft.library import ELECTION_TIMEOUT_MIN_S, LEADER, RaftLibrary
from barnabas.controller.raft.messages import Message, PreVote, RequestPreVote
from barnabas.controller.raft.voters import Directory

LEADER_LOST_WAIT_S: Final = 0.03  # at most, before asking when the leader's connection has broken
ASK_AGAIN_S: Final = 0.05


class Election:
    """The leader that this voter hears from, and its own candidacy. Times are those of the engine's clock."""

    def __init__(
        self,
        node_id: int,
        directory: Directory,
        library: RaftLibrary,
        send: Callable[[int, Message], object],
        random: Callable[[], float],
    ) -> None:
        self._node_id = node_id
        self._directory = directory
        self._library = library
        self._send = send
        self._random = random
        self._heard_from: int | None = None
        self._heard_at = float("-inf")
        self._round = 0  # of requests until a leader, or another candidate, is supported
        self._term = 0  # of the pre-votes that were requested; 0: none were
        self._pre_votes: set[int] = set()  # voters whose last answer in this round was a grant

    def disconnected(self, node_id: int, now: float) -> None:
        self._pre_votes.discard(node_id)
        if node_id == self._heard_from:
            self._heard_from = None
            library = self._library
            if library.state != LEADER:
                library.elect_at(min(library.election_deadline, now + LEADER_LOST_WAIT_S * self._random()))

    def heard(self, node_id: int, now: float) -> None:
        """A message of a leader, in a term not below this voter's, has come."""
        self._heard_from, self._heard_at = node_id, now
        self._term = 0

    def due(self, now: float) -> bool:
        """Whether to request pre-votes now."""
        library = self._library
        return library.state != LEADER and now > library.election_deadline and self.may_campaign

    @property
    def may_campaign(self) -> bool:
        """Whether this node is a voter, or was one until a change that may not be committed (voters.py)."""
        possible = self._library.journal.voters.possible(self._library.commit_index)
        return any(voter.is_node(self._node_id, self._directory) for voters in possible for voter in voters)

    def ask(self, now: float) -> None:
        """Request pre-votes of all voters, and again soon: a voter may have heard the leader a little later than this one. An answer may
        take longer than until then, so it counts as long as this round lasts."""
        library = self._library
        library.elect_at(now + ASK_AGAIN_S * (1 + self._random()))
        self._heard_from = None
        if self._term != library.term + 1:
            self._round += 1
            self._term = library.term + 1
            self._pre_votes = {self._node_id}
        _, last_index, last_term = library.journal.entries[-1]
        for node_id in library.nodes:
            self._send(node_id, RequestPreVote(self._term, last_index, last_term, self._round))

    def asked(self, node_id: int, message: RequestPreVote, now: float) -> None:
        granted = self._supports(node_id, message, now)
        if granted:
            self._term = 0
        self._send(node_id, PreVote(self._library.term, message.round, granted))

    def _supports(self, node_id: int, message: RequestPreVote, now: float) -> bool:
        library = self._library
        _, last_index, last_term = library.journal.entries[-1]
        theirs, ours = (message.last_term, message.last_index), (last_term, last_index)
        if message.term <= library.term or theirs < ours or library.state == LEADER:
            return False
        if self._heard_from not in (None, node_id) and now - self._heard_at < ELECTION_TIMEOUT_MIN_S:
            return False
        rivals = self._term == message.term and theirs == ours
        return not rivals or node_id < self._node_id

    def answered(self, node_id: int, message: PreVote) -> bool:
        """Whether to start the election: a majority would vote for this node."""
        if self._term != self._library.term + 1 or message.round != self._round:
            return False
        if not message.granted:
            self._pre_votes.discard(node_id)
            return False
        self._pre_votes.add(node_id)
        if not self._library.is_majority(self._pre_votes):
            return False
        self._term = 0
        return True
