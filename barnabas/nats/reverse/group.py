"""Where the partitions of a publishing binding stand, kept as the positions of an ordinary consumer group without members.

One request commits the positions of all partitions, every second and whenever much has been published. They are renewed
now and then, as a group without members loses those that are old.
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
    from barnabas.nats.reverse.partition import PartitionPublisher
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

# The leader before may commit last, having heard late that it is none: then the group stands further back than it should.
COMMIT_AGAIN_S: Final = 10.0
RENEW_S: Final = 3600.0  # at the latest
ASK_AGAIN_S: Final = 0.5


class GroupPositions:
    """Of one binding. `publishers` is its own dictionary, by partition. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        positions: Positions,
        group: str,
        publishers: Mapping[int, PartitionPublisher],
        retention_s: float,
    ) -> None:
        """`retention_s`: how long the group keeps a position."""
        self.ask_problem = ""  # as a state, while where the group stands is not known
        self.commit_problem = ""  # as a state
        self._runtime = runtime
        self._positions = positions
        self._group = group
        self._publishers = publishers
        self._ask_timer: Timer | None = None
        # When those that have begun lately commit once more.
        self._again_at_s: dict[PartitionPublisher, float] = {}
        self._asking: set[PartitionPublisher] = set()  # whose position is on its way
        self._is_committing = False
        self._renewed_at = runtime.monotonic()
        self._renew_s = min(RENEW_S, retention_s / 4)
        self._is_stopped = False

    def stop(self) -> None:
        """What is asked is not heard any more; what is being committed is."""
        self._is_stopped = True
        if self._ask_timer is not None:
            self._ask_timer.cancel()

    def forget(self, publisher: PartitionPublisher) -> None:
        """It is no more."""
        self._asking.discard(publisher)
        self._again_at_s.pop(publisher, None)

    # -- asking

    def ask(self, publishers: Iterable[PartitionPublisher]) -> None:
        """Have them begin, or go on, where the group stands."""
        wanted = [each for each in publishers if each not in self._asking]
        if not wanted or self._is_stopped:
            return
        self._asking.update(wanted)
        topic_id = wanted[0].partition.topic_id
        indexes = [each.partition.partition for each in wanted]
        self._positions.fetch(self._group, topic_id, indexes, partial(self._fetched, wanted))

    def ask_for_new(self) -> None:
        """For those that have not begun."""
        self.ask([each for each in self._publishers.values() if not each.is_begun])

    def _fetched(
        self, publishers: list[PartitionPublisher], error: ErrorCode, positions: dict[int, Position]
    ) -> None:
        asked = [each for each in publishers if each in self._asking]
        self._asking.difference_update(asked)
        if not error:
            self.ask_problem = ""
        if self._is_stopped:
            return
        for publisher in asked:
            position = positions.get(publisher.partition.partition)
            if publisher.is_begun:
                publisher.moved_to(position)
            elif not error:
                publisher.begin(position)
                self._again_at_s[publisher] = self._runtime.monotonic() + COMMIT_AGAIN_S
        if error and any(not each.is_begun for each in asked):
            problem = f"waiting: where group {self._group} stands is not known yet: {error.name}"
            if problem != self.ask_problem:
                log.info("%s", problem)
            self.ask_problem = problem
            if self._ask_timer is not None:
                self._ask_timer.cancel()
            delay_s = ASK_AGAIN_S * self._runtime.random.uniform(0.5, 1)
            self._ask_timer = self._runtime.call_later(delay_s, self._ask_again)

    def _ask_again(self) -> None:
        self._ask_timer = None
        self.ask_for_new()

    # -- committing

    def commit(self, *, at_last: bool = False) -> None:
        """Commit what has moved, unless that is under way; `at_last` in any case."""
        if (self._is_committing and not at_last) or self._is_stopped:
            return
        now = self._runtime.monotonic()
        renews = now - self._renewed_at >= self._renew_s
        moved: dict[int, Position] = {}
        for index, publisher in sorted(self._publishers.items()):
            offset = publisher.confirmed
            if publisher.has_position and (
                renews or offset != publisher.committed or self._commits_again(publisher, now)
            ):
                epoch = publisher.partition.log.epoch_for_offset(offset - 1) if offset > 0 else -1
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
        """Once. Not where an admin may be about to move the group."""
        if publisher.problem or self._again_at_s.get(publisher, now_s + 1) > now_s:
            return False
        del self._again_at_s[publisher]
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
