"""The messages of one topic for the partitions that are led here: from the subscription to batches in the log.

Subscriptions hand each message to an encoder (records/encoder.py); `close` appends what was gathered, one batch a partition,
after each piece of data that was read. A message that asks for something, by a reply subject or a header, takes the path
through `_special`; ingress/asking.py decides whether it is stored and which answer it gets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.headers import find_header
from barnabas.nats.ingress.acks import AckStats, PendingAcks, Send
from barnabas.nats.ingress.admission import Admissions, OpeningPartition
from barnabas.nats.ingress.asking import Asking, is_special
from barnabas.nats.ingress.dedup import DedupWindow
from barnabas.nats.ingress.lane import Lane
from barnabas.nats.ingress.standby import Lapse, Standby
from barnabas.nats.pub_ack import KAFKA_ACK, NO_ACK
from barnabas.nats.records.encoder import Encoder
from barnabas.nats.records.keys import compile_key
from barnabas.nats.records.loops import has_come_through, hop_of
from barnabas.nats.records.partitioners import BadPartition, compile_partitioner
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.headers import Pairs
    from barnabas.nats.dead_letters import Answer, DeadLetters
    from barnabas.nats.ingress.acks import AckSender
    from barnabas.nats.ingress.backpressure import Budget
    from barnabas.nats.ingress.lane import OnRefused
    from barnabas.nats.ingress.queue_group import GroupLanes
    from barnabas.nats.ingress.standby import Asked
    from barnabas.nats.records.routes import Take, Wanted
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.nats")

_NOTHING: Final[Mapping[int, Partition]] = {}
_NONE: Final[frozenset[int]] = frozenset()
_TOO_EARLY: Final = (
    "this broker became the leader before it had caught up with what the leader before had received"
)


OnLapses = Callable[[list[tuple["Partition", Lapse]]], object]
MakeGroup = Callable[["OnRefused", Callable[[], object]], "GroupLanes"]


class Ingest:
    """Of one binding. `send_acks(data, count)` sends messages that are encoded already. With `make_group`, messages for partitions
    that have replicas elsewhere go to those lanes. `on_lapses` is called with partitions that are led here from now on
    and whose standbys lack messages."""

    def __init__(
        self,
        runtime: Runtime,
        binding: Binding,
        partition_count: int,
        stats: CarrierStats,
        cluster_id: str,
        send_acks: Send,
        budget: Budget,
        dead_letters: DeadLetters,
        on_lapses: OnLapses,
        make_group: MakeGroup | None = None,
        ack_stats: AckStats | None = None,
    ) -> None:
        self.binding = binding
        self.stats = stats
        self.lanes: dict[int, Lane] = {}
        self.standbys: dict[int, Standby] = {}
        self.joining: dict[
            int, Partition
        ] = {}  # followers that are on their way into the ISR, without a standby so far
        self._on_lapses = on_lapses
        self.is_new_binding = False  # until partitions are served for the first time
        self._begun_ms = runtime.time_ms()
        self._listens_since_ms = 0  # 0: messages do not come
        self._lapsed: tuple[int, str] | None = self._begun_ms, _TOO_EARLY  # since when they do not, and why
        self._runtime = runtime
        self._send_acks = send_acks
        self._dead_letters = dead_letters
        self._group = make_group(self._put_dead_letter, self._held) if make_group is not None else None
        self.ack_stats = ack_stats or (AckStats() if self._group is None else self._group.ack_stats)
        self._budget = budget
        self._hop = hop_of(cluster_id, binding.topic)
        self._compile(partition_count)
        self._encoders: list[Encoder] = []
        self._takes: dict[int, Take] = {}
        self._admissions = Admissions(runtime, self._store_asking, self._rebuilt)
        self._opening: dict[int, OpeningPartition] = {}  # of those that are about to be opened

    def _compile(self, partition_count: int) -> None:
        binding = self.binding
        self.partition_count = partition_count
        self._key_of = compile_key(binding.key)
        self._partition_of = compile_partitioner(binding.partitioner, partition_count, binding.key)
        self._asking = Asking(self._runtime, binding, self.stats)

    def rebind(self, binding: Binding, partition_count: int) -> None:
        """From the next message on this counts, and what `encoder` makes from now on; earlier encoders are of no use any
        more. Its partitions, what waits for them and who waits for answers stay."""
        self.close()
        window_ms = self.binding.dedup_window_ms
        self.binding = binding
        self._compile(partition_count)
        self._encoders.clear()
        if binding.dedup_window_ms != window_ms:
            for index in sorted(self.lanes):
                self._admissions.relearn_ids(index, self.lanes[index], binding.dedup_window_ms)
            self._serve_encoders()
        if self._group is not None:
            self._serve_group(self._group, self.lanes)
            self._serve_encoders()

    def encoder(self, wanted: Wanted | None = None) -> Encoder:
        """One for each subscription; `wanted` says of a subject whether this one takes it."""
        encoder = Encoder(
            self._key_of,
            self._partition_of,
            self.partition_count,
            self._takes,
            special=self._special,
            refused=self._bad_partition,
            wanted=wanted,
            is_special=is_special,
            reply_is_special=self.binding.acks == "reply",
        )
        self._encoders.append(encoder)
        return encoder

    def serve(
        self,
        leading: Mapping[int, Partition],
        following: Mapping[int, Partition] = _NOTHING,
        opening: frozenset[int] = _NONE,
        joining: Mapping[int, Partition] = _NOTHING,
    ) -> None:
        """These partitions are led here from now on, and no others; of those in `following` this broker is a replica
        in sync; what is for those in `opening` waits until they are one or the other. Those in `joining` are followed, and
        not in sync yet."""
        if self._group is not None:
            leading = {index: each for index, each in leading.items() if len(each.state.replicas) == 1}
            following, opening, joining = _NOTHING, _NONE, _NOTHING
            self._serve_group(self._group, leading)
        for index in [
            index
            for index, lane in self.lanes.items()
            if leading.get(index) is not lane.partition or lane.was_perhaps_led_elsewhere()
        ]:
            self._close_lane(index)
        joined = {index: each for index, each in joining.items() if index in self.standbys}
        self.joining = {index: each for index, each in joining.items() if index not in joined}
        begun = [index for index in sorted(leading) if index not in self.lanes]
        # One that is the only replica from now on has no standby any more, and begins with what it was to keep all the same.
        before = {index: self.standbys[index] for index in begun if index in self.standbys}
        self._keep_standbys({**leading, **following, **joined}, leading)
        for index in begun:
            self.lanes[index] = self._open_lane(leading[index])
        come = {index: self._opening.pop(index) for index in sorted(self._opening) if index not in opening}
        for index in sorted(opening - self._opening.keys()):
            self._opening[index] = OpeningPartition()
        self._serve_encoders()
        for index in begun:
            self._take_over(index, before.get(index))
        self._note_lapses(before)
        if come:
            self._let_in(come)
        self._held()
        if come or self._group is not None:
            self.close()

    def close(self) -> None:
        """Append what was gathered."""
        if self._group is not None:
            self._group.send()
        gathered = [lane for lane in self.lanes.values() if lane.builder.tails]
        admissions = self._admissions
        if not (gathered or self.standbys or admissions.by_index or self._opening):
            return  # as mostly when there are many bindings
        now_ms = self._runtime.time_ms()
        now_s = self._runtime.monotonic()
        for lane in gathered:
            if lane.is_holding:
                lane.count_held()
            else:
                lane.append(now_ms, now_s)
        if self.standbys:
            for standby in self.standbys.values():
                standby.tick(now_s)
        if admissions.by_index and admissions.take_away():
            self._serve_encoders()
        if self._opening:
            self._held()

    def end(self) -> None:
        """For good: append what is gathered, and drop what waits."""
        self.close()
        if self._group is not None:
            self._group.close()
        for index in sorted(self.lanes):
            self._close_lane(index)
        self._keep_standbys({}, _NOTHING)
        self.stats.lost_estimate += sum(len(each.waiting) for each in self._opening.values())
        self._opening.clear()
        self._budget.note(self, 0)

    @property
    def is_whole(self) -> bool:
        """Whether partitions are led here, and all that came for them is in their logs."""
        group = self._group
        return (
            bool(self.lanes or (group is not None and group.served))
            and not (group is not None and group.waiting)
            and not any(lane.is_holding or lane.builder.tails for lane in self.lanes.values())
            and not self._admissions.size
            and not any(opening.size for opening in self._opening.values())
        )

    def resubscribed(self) -> None:
        """What was published before is not delivered any more."""
        for standby in self.standbys.values():
            standby.restart()

    def lapses(self, since_ms: int, cause: str) -> None:
        """Messages may not come here from then on, till `listens`."""
        self._listens_since_ms = 0
        self._lapsed = since_ms, cause
        for standby in self.standbys.values():
            standby.lapses(since_ms, cause)

    def listens(self, now_ms: int) -> None:
        """All that is published from now on comes here. What the partitions led here lack is noted as a gap, but where
        another broker may fill that gap: if it does, this one lacks those messages until it has replicated them."""
        self._listens_since_ms = self._listens_since_ms or now_ms
        self._lapsed = None
        for index, standby in self.standbys.items():
            standby.listens(now_ms)
            if index in self.lanes and not self.lanes[index].is_held:
                standby.lapse = None

    def hold(self, partitions: Iterable[int]) -> None:
        """What comes for these waits from now on: a follower may have what belongs before it."""
        for index in partitions:
            if index in self.lanes:
                self.lanes[index].is_held = True

    def let_go(self, *, is_noted: bool) -> None:
        """What waits because of `hold` goes on. `is_noted`: what these partitions lack is nothing, or a gap in the log."""
        for index, lane in self.lanes.items():
            if lane.is_held:
                lane.let_go()
                if is_noted and index in self.standbys:
                    self.standbys[index].lapse = None

    def begin_standbys(self) -> None:
        """Of followers on their way into the ISR that have what is committed: sooner they would keep a lot for nothing."""
        begun = [index for index, partition in self.joining.items() if partition.is_caught_up]
        for index in begun:
            self.standbys[index] = self._new_standby(self.joining.pop(index), self._first_lapse(index))
        if begun:
            self._serve_encoders()

    def end_of(self, index: int) -> int:
        """The end of a partition that is led here, all that was received appended; -1 when something waits, or is in the
        log and still to be received."""
        lane = self.lanes[index]
        admission = self._admissions.by_index.get(index)
        if lane.builder.tails or (admission is not None and not admission.is_through):
            return -1
        return lane.partition.log.log_end_offset

    # -- roles

    def _serve_group(self, group: GroupLanes, alone: Mapping[int, object]) -> None:
        group.serve(index for index in range(self.partition_count) if index not in alone)

    def _keep_standbys(self, hosted: Mapping[int, Partition], leading: Mapping[int, Partition]) -> None:
        wanted = {
            index: partition
            for index, partition in hosted.items()
            if len(partition.state.replicas) > 1 and not self.binding.queue_group
        }
        for index in [
            index for index, each in self.standbys.items() if wanted.get(index) is not each.partition
        ]:
            self.standbys.pop(index).close()
        for index in sorted(wanted):
            if index not in self.standbys:
                lapse = None if index in leading else self._first_lapse(index)
                self.standbys[index] = self._new_standby(wanted[index], lapse)
        self.is_new_binding = False

    def _new_standby(self, partition: Partition, lapse: Lapse | None) -> Standby:
        runtime = self._runtime
        return Standby(partition, runtime.monotonic(), runtime.time_ms(), self.binding.buffer_bytes, lapse)

    def _first_lapse(self, index: int) -> Lapse:
        """Till it is known that nothing is lacking."""
        if self.is_new_binding or index in self._opening:
            return Lapse(self._begun_ms, self._listens_since_ms, _TOO_EARLY)
        now_ms = self._runtime.time_ms()
        return Lapse(now_ms, now_ms if self._listens_since_ms else 0, _TOO_EARLY, is_older=True)

    def _note_lapses(self, begun: Mapping[int, Standby]) -> None:
        """Of partitions that are led here from now on."""
        found: list[tuple[Partition, Lapse]] = []
        for standby in begun.values():
            if standby.lapse is not None:
                found.append((standby.partition, standby.lapse))
                standby.lapse = None
        if found:
            self._on_lapses(found)

    def _open_lane(self, partition: Partition) -> Lane:
        acks = PendingAcks(partition, self._send_acks, self.ack_stats, self._runtime.monotonic)
        dedup = DedupWindow(self.binding.dedup_window_ms, f"{partition.topic}-{partition.partition}")
        return Lane(partition, self._runtime, self.stats, acks, dedup, self._put_dead_letter, self._held)

    def _take_over(self, index: int, standby: Standby | None) -> None:
        """What was received while another broker led, and is not in the log, comes first."""
        lane = self.lanes[index]
        admission = self._admissions.open(index, lane, standby.matcher.ahead if standby is not None else None)
        self._serve_encoders()
        if standby is not None:
            missing = standby.matcher.pending.drain()
            for tail, asked in missing:
                if asked is None:
                    admission.pass_on(tail)
                else:
                    admission.pass_on_asking(tail, asked)
            if missing:
                log.info(
                    "%s: %d messages were not in the log of its leader before",
                    lane.partition.log.name,
                    len(missing),
                )
        self._admissions.learn_ids(index, lane)
        lane.append(self._runtime.time_ms(), self._runtime.monotonic())

    def _let_in(self, come: Mapping[int, OpeningPartition]) -> None:
        """What has waited for these partitions goes its way, as if it were received now."""
        for index, opening in come.items():
            take = self._takes.get(index)
            if take is None:
                continue  # they are another broker's
            for tail, asked in opening.waiting:
                if asked is None:
                    take(tail)
                else:
                    self._take_asking(index, tail, asked)

    def _rebuilt(self) -> None:
        """The ids of a partition are known."""
        self._held()
        self.close()

    def _close_lane(self, index: int) -> None:
        lane = self.lanes.pop(index)
        standby = self.standbys.get(index)
        waiting: list[tuple[bytes, Asked | None]] = [(tail, None) for tail in lane.builder.tails]
        waiting += self._admissions.close(index)
        if standby is not None and standby.partition is lane.partition:
            now_s = self._runtime.monotonic()
            for tail, asked in waiting:  # received, and in no log yet, unless others have led meanwhile
                standby.matcher.received(tail, now_s, asked)
            standby.restart()
            if self._lapsed is not None:
                standby.lapses(*self._lapsed)
        elif self._group is not None and index in self._group.served:
            self._group.lanes[index].take_over(lane.builder.tails, lane.owed)
            lane.owed = []
            for tail, asked in waiting[len(lane.builder.tails) :]:
                self._take_in_group(self._group, index, tail, asked)
        else:
            self.stats.lost_estimate += len(waiting)
        lane.close()

    def _serve_encoders(self) -> None:
        takes: dict[int, Take] = {index: standby.receive for index, standby in self.standbys.items()}
        if self._group is not None:
            for index in self._group.served:
                takes[index] = self._group.lanes[index].builder.tails.append
        for index, lane in self.lanes.items():
            admission = self._admissions.by_index.get(index)
            takes[index] = lane.builder.tails.append if admission is None else admission.take
        for index, opening in self._opening.items():
            takes[index] = opening.take
        self._takes = takes
        for encoder in self._encoders:
            encoder.serve(takes)

    def _held(self) -> None:
        held = sum(lane.held_bytes for lane in self.lanes.values())
        held += self._admissions.size
        held += sum(opening.size for opening in self._opening.values())
        if self._group is not None:
            held += self._group.held_bytes
        self._budget.note(self, held)

    # -- messages that ask for something

    def _special(self, index: int, reply: bytes, header_block: bytes, found: Pairs, tail: bytes) -> None:
        if found and has_come_through(header_block, self._hop):
            self.stats.looped += 1
            return
        self._take_asking(index, tail, (reply, header_block, found))

    def _take_asking(self, index: int, tail: bytes, asked: Asked) -> None:
        admission = self._admissions.by_index.get(index)
        if admission is not None:
            admission.take_asking(tail, asked)
        elif index in self.lanes:
            self._store_asking(index, tail, asked)
        elif index in self._opening:
            self._opening[index].take_asking(tail, asked)
        elif self._group is not None:
            self._take_in_group(self._group, index, tail, asked)
        else:
            self.standbys[index].receive_asking(tail, asked)

    def _take_in_group(self, group: GroupLanes, index: int, tail: bytes, asked: Asked | None) -> None:
        lane = group.lanes[index]
        if asked is None:
            lane.builder.tails.append(tail)
        else:
            lane.take_asking(tail, asked, self.binding, self._asking.level_of)

    def _store_asking(self, index: int, tail: bytes, asked: Asked) -> None:
        self._asking.store(self.lanes[index], tail, asked)

    # -- messages that are not stored

    def _bad_partition(
        self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes, error: BadPartition
    ) -> None:
        lane = self.lanes.get(error.partition)
        if lane is not None:
            acks: AckSender = lane.acks
        elif self._group is not None:
            acks = self._group.lanes[error.partition].acks
        else:
            return  # its leader's matter
        level = self._asking.level_of(reply, find_header(header_block, KAFKA_ACK))

        def answer(error: ErrorCode, why: str) -> None:
            if level != NO_ACK:
                acks.fail(reply, error, why)

        message = subject, reply, header_block, payload
        self._dead_letters.put_message(
            message, ErrorCode.INVALID_REQUEST, str(error), answer, self.binding.topic
        )

    def _put_dead_letter(self, tail: bytes, error: ErrorCode, why: str, answer: Answer) -> None:
        self._dead_letters.put_tail(tail, error, why, answer, self.binding.topic)
