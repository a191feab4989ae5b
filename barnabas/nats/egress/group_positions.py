"""The positions of a publishing binding: offsets of an ordinary consumer group without members.

One request commits the positions of all partitions, every second and after many published records. Positions that do not
change are committed again from time to time, because a group without members loses old ones.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.nats.cluster.positions import Position
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from barnabas.nats.cluster.positions import Positions
    from barnabas.nats.egress.partition_publisher import PartitionPublisher
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

# A former leader that learns late of its successor may commit after it, and move the group back.
COMMIT_AGAIN_S: Final = 10.0
RENEW_MAX_S: Final = 3600.0
FETCH_AGAIN_S: Final = 0.5


class GroupPositions:
    """Fetches and commits the positions of one binding. `publishers` is the binding's dictionary, by partition. All calls on
    the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        positions: Positions,
        group: str,
        publishers: Mapping[int, PartitionPublisher],
        retention_s: float,
    ) -> None:
        """`retention_s`: how long a group keeps a position."""
        self.fetch_problem = ""  # a state, while the positions are unknown
        self.commit_problem = ""  # a state
        self._runtime = runtime
        self._positions = positions
        self._group = group
        self._publishers = publishers
        self._fetch_timer: Timer | None = None
        self._commit_again_at_s: dict[PartitionPublisher, float] = {}  # of those that have begun lately
        self._fetching: set[PartitionPublisher] = set()
        self._is_committing = False
        self._renewed_at = runtime.monotonic()
        self._renew_s = min(RENEW_MAX_S, retention_s / 4)
        self._is_stopped = False

    def stop(self) -> None:
        """Ignores positions that are being fetched. A commit in flight still counts."""
        self._is_stopped = True
        if self._fetch_timer is not None:
            self._fetch_timer.cancel()

    def forget(self, publisher: PartitionPublisher) -> None:
        """The publisher has stopped."""
        self._fetching.discard(publisher)
        self._commit_again_at_s.pop(publisher, None)

    # -- fetching

    def fetch(self, publishers: Iterable[PartitionPublisher]) -> None:
        """Fetches the publishers' positions, and begins or moves them there."""
        wanted = [each for each in publishers if each not in self._fetching]
        if not wanted or self._is_stopped:
            return
        self._fetching.update(wanted)
        topic_id = wanted[0].partition.topic_id
        indexes = [each.partition.partition for each in wanted]
        self._positions.fetch(self._group, topic_id, indexes, partial(self._fetched, wanted))

    def fetch_for_new(self) -> None:
        """Begins the publishers that have not begun."""
        self.fetch([each for each in self._publishers.values() if not each.is_begun])

    def _fetched(
        self, publishers: list[PartitionPublisher], error: ErrorCode, positions: dict[int, Position]
    ) -> None:
        wanted = [each for each in publishers if each in self._fetching]
        self._fetching.difference_update(wanted)
        if not error:
            self.fetch_problem = ""
        if self._is_stopped:
            return
        for publisher in wanted:
            position = positions.get(publisher.partition.partition)
            if publisher.is_begun:
                publisher.moved_to(position)
            elif not error:
                publisher.begin(position)
                self._commit_again_at_s[publisher] = self._runtime.monotonic() + COMMIT_AGAIN_S
        if error and any(not each.is_begun for each in wanted):
            problem = f"waiting: the position of group {self._group} is not known yet: {error.name}"
            if problem != self.fetch_problem:
                log.info("%s", problem)
            self.fetch_problem = problem
            if self._fetch_timer is not None:
                self._fetch_timer.cancel()
            delay_s = FETCH_AGAIN_S * self._runtime.random.uniform(0.5, 1)
            self._fetch_timer = self._runtime.call_later(delay_s, self.fetch_for_new)

    # -- committing

    def commit(self, *, is_last: bool = False) -> None:
        """Commits positions that have changed, unless a commit is in flight; the last one does not wait for that."""
        if (self._is_committing and not is_last) or self._is_stopped:
            return
        now = self._runtime.monotonic()
        renews = now - self._renewed_at >= self._renew_s
        moved: dict[int, Position] = {}
        for index, publisher in sorted(self._publishers.items()):
            offset = publisher.confirmed
            if publisher.has_position and (
                renews or offset != publisher.committed or self._commits_again(publisher, now)
            ):
                epoch = publisher.partition.log.epochs.epoch_for_offset(offset - 1) if offset > 0 else -1
                moved[index] = Position(offset, epoch, publisher.metadata())
        if not moved:
            return
        if renews:
            self._renewed_at = now
        self._is_committing = True
        publishers = dict(self._publishers)
        topic_id = next(iter(publishers.values())).partition.topic_id
        self._positions.commit(self._group, topic_id, moved, partial(self._committed, publishers, moved))

    def _commits_again(self, publisher: PartitionPublisher, now_s: float) -> bool:
        """True once, COMMIT_AGAIN_S after the start. Not while an administrator may be about to move the group."""
        if publisher.problem or self._commit_again_at_s.get(publisher, now_s + 1) > now_s:
            return False
        del self._commit_again_at_s[publisher]
        return True

    def _committed(
        self, publishers: dict[int, PartitionPublisher], moved: dict[int, Position], error: ErrorCode
    ) -> None:
        self._is_committing = False
        if error:
            problem = _why_not_committed(self._group, error)
            if problem != self.commit_problem:
                log.warning("%s", problem)
            self.commit_problem = problem
            return
        self.commit_problem = ""
        for index, position in moved.items():
            if self._publishers.get(index) is publishers[index]:
                publishers[index].committed_to(position.offset)


def _why_not_committed(group: str, error: ErrorCode) -> str:
    if error == ErrorCode.UNKNOWN_MEMBER_ID:
        return (
            f"blocked: the position can't be committed: group {group} has members of its own. Stop them, or choose another "
            "group by nats.publish.group"
        )
    return f"waiting: the position of group {group} can't be committed now: {error.name}"
