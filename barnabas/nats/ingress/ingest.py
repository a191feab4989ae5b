"""The messages of one topic for the partitions that are led here: from the subscription to batches in the log.

Subscriptions hand each message to an encoder (records/encoder.py); `close` appends what was gathered, one batch a partition,
after each piece of data that was read. Special messages (ingress/special_messages.py) go through `_special`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from barnabas.nats.client.headers import find_header
from barnabas.nats.ingress.acks import AckStats, PendingAcks
from barnabas.nats.ingress.admission import Admissions
from barnabas.nats.ingress.dedup import DedupWindow
from barnabas.nats.ingress.lane import Lane
from barnabas.nats.ingress.queue_group import GroupLanes
from barnabas.nats.ingress.roles import Roles
from barnabas.nats.ingress.special_messages import SpecialMessages, is_special
from barnabas.nats.ingress.standbys import Standbys
from barnabas.nats.pub_ack import KAFKA_ACK, NO_ACK
from barnabas.nats.records.encoder import Encoder
from barnabas.nats.records.hops import has_come_through, hop_of
from barnabas.nats.records.keys import compile_key
from barnabas.nats.records.partitioners import BadPartition, compile_partitioner
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.binding.binding import Binding
    from barnabas.nats.carrier import CarrierStats
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.headers import Pairs
    from barnabas.nats.dead_letters import Answer, DeadLetters
    from barnabas.nats.ingress.acks import AckSender
    from barnabas.nats.ingress.backpressure import Budget
    from barnabas.nats.ingress.gap_tracker import Backfill
    from barnabas.nats.ingress.special_messages import Special
    from barnabas.nats.ingress.standby import Standby
    from barnabas.nats.ingress.standbys import OnLapses
    from barnabas.nats.records.routes import Take, Wanted

log = logging.getLogger("barnabas.nats")


class Ingest:
    """The ingest of one topic. A binding with a queue group has lanes of the group for partitions with replicas elsewhere, other
    bindings have standbys of them."""

    def __init__(
        self,
        host: ExtensionHost,
        client: NatsClient,
        binding: Binding,
        partition_count: int,
        stats: CarrierStats,
        budget: Budget,
        dead_letters: DeadLetters,
        on_lapses: OnLapses,
        *,
        is_new: bool = False,
        backfill: Backfill | None = None,
        ack_stats: AckStats | None = None,
    ) -> None:
        """`on_lapses`, `is_new` and `backfill` are those of Standbys; `ack_stats` are shared with other topics."""
        runtime = host.runtime
        self.binding = binding
        self.stats = stats
        self.ack_stats = ack_stats or AckStats()
        self.lanes: dict[int, Lane] = {}
        self.standbys = Standbys(
            host,
            client,
            binding.topic,
            binding.buffer_bytes,
            self._append_all,
            self._serve_encoders,
            on_lapses,
            is_new=is_new,
            backfill=backfill,
        )
        self._runtime = runtime
        self._send_acks = client.publish_encoded
        self._dead_letters = dead_letters
        self._group: GroupLanes | None = None
        if binding.queue_group:
            self._group = GroupLanes(
                host,
                binding.topic,
                self._send_acks,
                stats,
                self.ack_stats,
                self._put_dead_letter,
                self._note_held,
            )
        self._budget = budget
        self._hop = hop_of(host.cluster_id, binding.topic)
        self._compile(partition_count)
        self._encoders: list[Encoder] = []
        self._takes: dict[int, Take] = {}
        self._admissions = Admissions(runtime, self._store_special, self._ids_rebuilt)

    def _compile(self, partition_count: int) -> None:
        binding = self.binding
        self.partition_count = partition_count
        self._key_of = compile_key(binding.key)
        self._partition_of = compile_partitioner(binding.partitioner, partition_count, binding.key)
        self._special_messages = SpecialMessages(self._runtime, binding, self.stats)

    def rebind(self, binding: Binding, partition_count: int) -> None:
        """The binding has changed: this counts from the next message on. Encoders made before must not be used any more. Lanes,
        the messages that wait in them, and acknowledgements that are owed stay."""
        self.close()
        window_ms = self.binding.dedup_window_ms
        self.binding = binding
        self._compile(partition_count)
        self._encoders.clear()
        self.standbys.resize(binding.buffer_bytes)
        if binding.dedup_window_ms != window_ms:
            for index in sorted(self.lanes):
                self._admissions.relearn_ids(index, self.lanes[index], binding.dedup_window_ms)
            self._serve_encoders()
        if self._group is not None:
            self._serve_group(self._group, self.lanes)
            self._serve_encoders()

    def encoder(self, wanted: Wanted | None = None) -> Encoder:
        """Makes the encoder of a subscription; `wanted` says of a subject whether this one takes it."""
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

    def serve(self, roles: Roles) -> None:
        """Takes messages for the partitions of these roles, and no others. Messages for partitions that are about to be opened
        wait until they have another role."""
        if self._group is not None:
            alone = {index: each for index, each in roles.leading.items() if len(each.state.replicas) == 1}
            roles = Roles(alone, {})
            self._serve_group(self._group, alone)
        leading = roles.leading
        for index in [
            index
            for index, lane in self.lanes.items()
            if leading.get(index) is not lane.partition or lane.was_perhaps_led_elsewhere()
        ]:
            self._close_lane(index)
        begun = [index for index in sorted(leading) if index not in self.lanes]
        standbys = self.standbys.serve(roles, begun)
        for index in begun:
            self.lanes[index] = self._open_lane(leading[index])
        opened = self._admissions.serve(roles.opening)
        self._serve_encoders()
        for index in begun:
            self._take_over(index, standbys.get(index))
        self.standbys.note_lapses(standbys)
        for index, messages in opened.items():
            self._take_waiting(index, messages)
        self._note_held()
        if opened or self._group is not None:
            self.close()

    def close(self) -> None:
        """Appends the messages that were gathered."""
        if self._group is not None:
            self._group.send()
        gathered = [lane for lane in self.lanes.values() if lane.builder.tails]
        admissions, standbys = self._admissions, self.standbys.by_index
        if not (gathered or standbys or admissions.by_index or admissions.opening):
            return  # the usual case when there are many bindings
        now_ms = self._runtime.time_ms()
        now_s = self._runtime.monotonic()
        for lane in gathered:
            if lane.is_holding:
                lane.count_held()
            else:
                lane.append(now_ms, now_s)
        for standby in standbys.values():
            standby.tick(now_s)
        if admissions.by_index and admissions.remove_done():
            self._serve_encoders()
        if admissions.opening:
            self._note_held()

    def end(self) -> None:
        """Ends for good: appends the messages that were gathered, and drops those that wait."""
        self.close()
        if self._group is not None:
            self._group.close()
        for index in sorted(self.lanes):
            self._close_lane(index)
        self.standbys.stop()
        self.stats.lost_estimate += sum(map(len, self._admissions.serve(frozenset()).values()))
        self._budget.note(self, 0)

    @property
    def is_whole(self) -> bool:
        """Whether partitions are led here, and all messages received for them are in their logs."""
        group = self._group
        return (
            bool(self.lanes or (group is not None and group.served))
            and not (group is not None and group.waiting)
            and not any(lane.is_holding or lane.builder.tails for lane in self.lanes.values())
            and not self._admissions.size
        )

    def resubscribed(self) -> None:
        """The connection is new: messages published before are not delivered any more."""
        self.standbys.resubscribed()

    def interrupted(self, since_ms: int, cause: str) -> None:
        """Messages may be missed from then on, until `subscribed`."""
        self.standbys.interrupted(since_ms, cause)

    def subscribed(self, now_ms: int) -> None:
        """All messages published from now on are received."""
        self.standbys.subscribed(now_ms, [index for index, lane in self.lanes.items() if lane.is_held])

    def hold(self, partitions: Iterable[int]) -> None:
        """Messages for these partitions wait from now on: followers may have messages that belong before them, and are asked."""
        for index in partitions:
            if index in self.lanes:
                self.lanes[index].is_held = True
        self.standbys.call()

    def release(self, *, is_noted: bool) -> None:
        """Messages that wait because of `hold` are appended. `is_noted`: these partitions lack nothing, or a gap is recorded."""
        for index, lane in self.lanes.items():
            if lane.is_held:
                lane.release()
                if is_noted:
                    self.standbys.clear_lapse(index)

    def may_take_over(self, _topic: str, index: int, broker: int, broker_epoch: int | None) -> bool:
        """Whether a follower of a partition that is led here may join the ISR: it could lead without a message missing."""
        return self._group is not None or self.standbys.may_take_over(index, broker, broker_epoch)

    def _append_all(self) -> dict[int, int]:
        """Appends all that was received. Returns the ends of the logs, -1 while messages wait, or are in the log and still to be
        received."""
        self.close()
        ends: dict[int, int] = {}
        for index, lane in self.lanes.items():
            admission = self._admissions.by_index.get(index)
            is_through = admission is None or admission.is_through
            ends[index] = lane.partition.log.log_end_offset if is_through and not lane.builder.tails else -1
        return ends

    # -- roles

    def _serve_group(self, group: GroupLanes, alone: Mapping[int, object]) -> None:
        group.serve(index for index in range(self.partition_count) if index not in alone)

    def _open_lane(self, partition: Partition) -> Lane:
        acks = PendingAcks(partition, self._send_acks, self.ack_stats, self._runtime.monotonic)
        dedup = DedupWindow(self.binding.dedup_window_ms, f"{partition.topic}-{partition.partition}")
        return Lane(partition, self._runtime, self.stats, acks, dedup, self._put_dead_letter, self._note_held)

    def _take_over(self, index: int, standby: Standby | None) -> None:
        """Begins to lead: messages received while another broker led come first if they are not in the log."""
        lane = self.lanes[index]
        admission = self._admissions.open(index, lane, standby.matcher.ahead if standby is not None else None)
        self._serve_encoders()
        if standby is not None:
            missing = standby.matcher.pending.drain()
            for tail, special in missing:
                admission.admit(tail, special)
            if missing:
                log.info(
                    "%s: %d messages were received and not in the log of the leader before",
                    lane.partition.log.name,
                    len(missing),
                )
        self._admissions.learn_ids(index, lane)
        lane.append(self._runtime.time_ms(), self._runtime.monotonic())

    def _take_waiting(self, index: int, messages: Iterable[tuple[bytes, Special | None]]) -> None:
        """Takes messages as if they were received now."""
        take = self._takes.get(index)
        if take is None:
            return  # for another broker
        for tail, special in messages:
            if special is None:
                take(tail)
            else:
                self._take_special(index, tail, special)

    def _ids_rebuilt(self) -> None:
        self._note_held()
        self.close()

    def _close_lane(self, index: int) -> None:
        lane = self.lanes.pop(index)
        waiting: list[tuple[bytes, Special | None]] = [(tail, None) for tail in lane.builder.tails]
        waiting += self._admissions.close(index)
        is_kept = self.standbys.take_back(lane.partition, waiting)
        if not is_kept and self._group is not None and index in self._group.served:
            group_lane = self._group.lanes[index]
            group_lane.take_over(lane.builder.tails, lane.owed)
            lane.owed = []
            for tail, special in waiting[len(lane.builder.tails) :]:
                group_lane.take(tail, special, self.binding, self._special_messages.level_of)
        elif not is_kept:
            self.stats.lost_estimate += len(waiting)
        lane.close()

    def _serve_encoders(self) -> None:
        takes: dict[int, Take] = {index: standby.receive for index, standby in self.standbys.by_index.items()}
        if self._group is not None:
            for index in self._group.served:
                takes[index] = self._group.lanes[index].builder.tails.append
        for index, lane in self.lanes.items():
            admission = self._admissions.by_index.get(index)
            takes[index] = lane.builder.tails.append if admission is None else admission.take
        for index, waiting in self._admissions.opening.items():
            takes[index] = waiting.take
        self._takes = takes
        for encoder in self._encoders:
            encoder.serve(takes)

    def _note_held(self) -> None:
        held = sum(lane.held_bytes for lane in self.lanes.values())
        held += self._admissions.size
        if self._group is not None:
            held += self._group.held_bytes
        self._budget.note(self, held)

    # -- special messages

    def _special(self, index: int, reply: bytes, header_block: bytes, found: Pairs, tail: bytes) -> None:
        if found and has_come_through(header_block, self._hop):
            self.stats.looped += 1
            return
        self._take_special(index, tail, (reply, header_block, found))

    def _take_special(self, index: int, tail: bytes, special: Special) -> None:
        admission = self._admissions.by_index.get(index)
        if admission is not None:
            admission.take(tail, special)
        elif index in self.lanes:
            self._store_special(index, tail, special)
        elif index in self._admissions.opening:
            self._admissions.opening[index].take(tail, special)
        elif self._group is not None:
            level_of = self._special_messages.level_of
            self._group.lanes[index].take(tail, special, self.binding, level_of)
        else:
            self.standbys.by_index[index].receive(tail, special)

    def _store_special(self, index: int, tail: bytes, special: Special) -> None:
        self._special_messages.store(self.lanes[index], tail, special)

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
            return  # the partition's leader handles it
        level = self._special_messages.level_of(reply, find_header(header_block, KAFKA_ACK))

        def answer(error: ErrorCode, why: str) -> None:
            if level != NO_ACK:
                acks.fail(reply, error, why)

        message = subject, reply, header_block, payload
        self._dead_letters.put_message(
            message, ErrorCode.INVALID_REQUEST, str(error), answer, self.binding.topic
        )

    def _put_dead_letter(self, tail: bytes, error: ErrorCode, why: str, answer: Answer) -> None:
        self._dead_letters.put_tail(tail, error, why, answer, self.binding.topic)
