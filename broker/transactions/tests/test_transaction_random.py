"""Random requests against a slow model of Kafka's coordinator, one step of it after the other, with a pending state in two steps
for fences. Answers and data have to be equal, also after failed appends and a load of what was written."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from barnabas.broker.transactions.records import decode_record, encode_key, encode_value
from barnabas.broker.transactions.transaction import Accepted, NeedsProducerId, Transaction, Transition
from barnabas.wire.errors import ErrorCode as E

FIRST_PID = 1000
OPERATIONS = [*["initialize", "complete", "fence", "verify", "reload", "end1"], *["add"] * 3, *["end2"] * 3]


class Answered(Exception):
    """The model answers without a write."""

    def __init__(self, error: E, pid: int = -1, epoch: int = -1) -> None:
        super().__init__(error.name)
        self.answer = (error, pid, epoch)


class Model:
    """One transactional id as Kafka keeps it."""

    def __init__(self) -> None:
        self.pid, self.previous, self.next = FIRST_PID, -1, -1
        self.epoch, self.last_epoch = -1, -1
        self.timeout, self.state = 1000, "Empty"
        self.partitions: set[tuple[str, int]] = set()
        self.start, self.updated, self.client_version = -1, 0, 0
        self.pending: dict[str, Any] | None = None
        self.failed_fence = False
        self.is_fencing = False
        self.ids = iter(range(2000, 10**6))
        self.taken: int | None = None

    def new_id(self) -> int:
        self.taken = next(self.ids)
        return self.taken

    def change(self, state: str, **fields: Any) -> None:
        names = Both.fields(Transaction.new("id", 0, 0, 0).data).keys()
        self.pending = {name: getattr(self, name) for name in names} | fields
        self.pending |= {"state": state, "previous": self.pid}

    def initialize(self, timeout: int, pid: int, epoch: int, level: int, now: int) -> None:
        if self.pending:
            raise Answered(E.CONCURRENT_TRANSACTIONS)
        is_exhausted = pid == self.previous and epoch >= 32766
        if pid != -1 and self.epoch != -1 and pid != self.pid and not is_exhausted:
            raise Answered(E.PRODUCER_FENCED)
        if self.state in ("PrepareCommit", "PrepareAbort"):
            raise Answered(E.CONCURRENT_TRANSACTIONS)
        if self.state == "Ongoing":
            self.fence(level, now)
            return
        new_pid = self.pid
        if self.epoch >= 32766 and (pid == -1 or epoch == self.epoch):
            new_pid, new_epoch = self.new_id(), 0
            last = -1 if pid == -1 else self.epoch
        elif pid == -1:
            new_epoch, last = self.epoch + 1, -1
        elif self.epoch == -1 or epoch == self.epoch:
            new_epoch, last = self.epoch + 1, self.epoch
        elif epoch == self.last_epoch:
            new_epoch, last = self.epoch, self.last_epoch
        else:
            raise Answered(E.PRODUCER_FENCED)
        self.change(
            "Empty",
            pid=new_pid,
            epoch=new_epoch,
            last_epoch=last,
            timeout=timeout,
            partitions=set(),
            start=-1,
            updated=now,
        )

    def fence(self, level: int, now: int) -> None:
        """prepareFenceProducerEpoch, and then EndTxn from inside."""
        bumped = self.epoch if self.failed_fence or self.epoch == 32767 else self.epoch + 1
        self.is_fencing = True
        if level >= 2 and not self.failed_fence:  # Kafka raises the epoch twice
            self.end2(self.pid, bumped, commit=False, now=now)
        else:
            self.epoch, self.last_epoch = bumped, -1
            self.prepare1("PrepareAbort", now)

    def add(self, pid: int, epoch: int, partitions: set[tuple[str, int]], bump: bool, now: int) -> None:
        if self.pending:
            raise Answered(E.CONCURRENT_TRANSACTIONS)
        self.check(pid, epoch)
        if self.state == "Ongoing" and partitions <= self.partitions:
            raise Answered(E.NONE)
        start = self.start if self.state == "Ongoing" else now
        self.change(
            "Ongoing",
            partitions=self.partitions | partitions,
            start=start,
            updated=now,
            client_version=2 if bump else 0,
        )

    def check(self, pid: int, epoch: int) -> None:
        if pid != self.pid:
            raise Answered(E.INVALID_PRODUCER_ID_MAPPING)
        if epoch != self.epoch:
            raise Answered(E.PRODUCER_FENCED)
        if self.state in ("PrepareCommit", "PrepareAbort"):
            raise Answered(E.CONCURRENT_TRANSACTIONS)

    def verify(self, pid: int, epoch: int, partitions: set[tuple[str, int]]) -> dict[tuple[str, int], E]:
        try:
            self.check(pid, epoch)
        except Answered as answered:
            return dict.fromkeys(partitions, answered.answer[0])
        return {p: E.NONE if p in self.partitions else E.TRANSACTION_ABORTABLE for p in partitions}

    def end1(self, pid: int, epoch: int, commit: bool, now: int) -> None:
        if pid != self.pid:
            raise Answered(E.INVALID_PRODUCER_ID_MAPPING)
        if epoch != self.epoch:
            raise Answered(E.PRODUCER_FENCED)
        if self.pending:
            raise Answered(E.CONCURRENT_TRANSACTIONS)
        if self.state == "Ongoing":
            self.prepare1("PrepareCommit" if commit else "PrepareAbort", now)
        elif self.state == ("CompleteCommit" if commit else "CompleteAbort"):
            raise Answered(E.NONE)
        elif self.state == ("PrepareCommit" if commit else "PrepareAbort"):
            raise Answered(E.CONCURRENT_TRANSACTIONS)
        else:
            raise Answered(E.INVALID_TXN_STATE)

    def prepare1(self, state: str, now: int) -> None:
        self.change(state, next=-1, updated=now, client_version=0)

    def end2(self, pid: int, epoch: int, commit: bool, now: int) -> None:
        if self.pending:
            raise Answered(E.CONCURRENT_TRANSACTIONS)
        overflow = not self.is_fencing and (self.previous, 32766, 0) == (pid, epoch, self.epoch)
        # Unlike in Kafka, which takes a producer that is fenced by one of version 0 or 1 for its successor.
        bumped = not self.is_fencing and self.epoch == epoch + 1 and self.client_version == 2
        if pid != self.pid and not overflow:
            raise Answered(E.INVALID_PRODUCER_ID_MAPPING)
        if self.is_fencing:
            valid = epoch >= self.epoch
        elif self.state in ("Ongoing", "Empty"):
            valid = epoch == self.epoch
        elif self.state in ("PrepareCommit", "PrepareAbort"):
            valid = bumped
        else:
            valid = bumped or overflow or epoch == self.epoch
        if not valid:
            raise Answered(E.PRODUCER_FENCED)
        is_retry = bumped or overflow
        if self.state == "Ongoing":
            self.prepare2("PrepareCommit" if commit else "PrepareAbort", now, is_empty=False)
        elif self.state == "Empty":
            if commit:
                raise Answered(E.INVALID_TXN_STATE)
            self.prepare2("PrepareAbort", now, is_empty=True)
        elif self.state.startswith("Complete"):
            same = self.state == ("CompleteCommit" if commit else "CompleteAbort")
            if is_retry and same and self.epoch == 32767:
                raise Answered(E.PRODUCER_FENCED)  # unlike Kafka, which gives the last epoch out
            if is_retry and same:
                raise Answered(E.NONE, self.pid, self.epoch)
            if is_retry or commit:
                raise Answered(E.INVALID_TXN_STATE)
            self.prepare2("PrepareAbort", now, is_empty=True)
        elif self.state == ("PrepareCommit" if commit else "PrepareAbort"):
            raise Answered(E.CONCURRENT_TRANSACTIONS)
        else:
            raise Answered(E.INVALID_TXN_STATE)

    def prepare2(self, state: str, now: int, is_empty: bool) -> None:
        next_pid = -1
        if not self.is_fencing and self.epoch >= 32766:
            next_pid = self.new_id()
        epoch = self.epoch if self.epoch == 32767 else self.epoch + 1
        self.change(
            state,
            next=next_pid,
            epoch=epoch,
            last_epoch=self.epoch,
            start=now if is_empty else self.start,
            updated=now,
            client_version=2,
        )

    def complete(self, now: int) -> None:
        state = "CompleteCommit" if self.state == "PrepareCommit" else "CompleteAbort"
        pid, epoch = self.pid, self.epoch
        if self.client_version >= 2 and self.next != -1:
            pid, epoch = self.next, 0
        self.change(state, pid=pid, epoch=epoch, next=-1, partitions=set(), updated=now)

    def settle(self, committed: bool) -> None:
        assert self.pending is not None
        pending, self.pending = self.pending, None
        if committed:
            for name, value in pending.items():
                setattr(self, name, value)
            if self.state.startswith("Prepare"):
                self.failed_fence = False
        elif self.is_fencing and pending["client_version"] < 2:
            self.failed_fence = True
        self.is_fencing = False

    def load(self) -> None:
        self.last_epoch = -1
        self.failed_fence = False


class Both:
    """The model and the transaction, given the same requests."""

    def __init__(self, epoch: int) -> None:
        self.model = Model()
        self.now = 1_000_000
        self.transaction = Transaction.new("id", FIRST_PID, 1000, 0)
        if epoch >= 0:
            self.model.epoch = epoch
            self.transaction.data = msgspec.structs.replace(self.transaction.data, producer_epoch=epoch)

    def request(self, operation: str, arguments: tuple[Any, ...]) -> None:
        self.now += 7
        self.model.taken = None
        before = msgspec.structs.replace(self.transaction.data)
        try:
            getattr(self.model, operation)(*arguments, now=self.now)
            expected = None
        except Answered as answered:
            expected = answered.answer
        decided = self.decide(operation, arguments, None)
        if isinstance(decided, NeedsProducerId):
            assert self.model.taken is not None
            decided = self.decide(operation, arguments, self.model.taken)
        else:
            assert self.model.taken is None
        assert self.transaction.data == before, "a decision changes nothing"
        if expected is None:
            assert isinstance(decided, Transition), decided
            self.transaction.begin(decided)
        elif isinstance(decided, Accepted):
            assert (E.NONE, decided.producer_id, decided.producer_epoch) == expected
        else:
            assert (decided, -1, -1) == expected
        self.check()

    def verify(self, pid: int, epoch: int, partitions: set[tuple[str, int]]) -> None:
        decided = self.transaction.verify_partitions(pid, epoch, partitions)
        assert decided == self.model.verify(pid, epoch, partitions)

    def decide(self, operation: str, arguments: tuple[Any, ...], new_id: int | None) -> Any:
        transaction, now = self.transaction, self.now
        match operation, arguments:
            case "initialize", (timeout, pid, epoch, level):
                return transaction.initialize(
                    timeout_ms=timeout,
                    producer_id=pid,
                    producer_epoch=epoch,
                    now_ms=now,
                    transaction_version=level,
                    new_producer_id=new_id,
                )
            case "add", (pid, epoch, partitions, bump):
                return transaction.add_partitions(
                    pid, epoch, partitions, supports_epoch_bump=bump, now_ms=now
                )
            case "end1", (pid, epoch, commit):
                return transaction.end(pid, epoch, commit=commit, now_ms=now)
            case "end2", (pid, epoch, commit):
                return transaction.end_bumping(pid, epoch, commit=commit, now_ms=now, new_producer_id=new_id)
            case "fence", (level,):
                return transaction.fence(now, level)
            case _:
                assert operation == "complete"
                return transaction.complete(now)

    def settle(self, committed: bool) -> None:
        if self.model.pending is not None:
            self.model.settle(committed)
            if committed:
                self.transaction.apply()
            else:
                self.transaction.drop()
            self.check()

    def reload(self) -> None:
        """Another coordinator loads what was written."""
        if self.model.pending is None and self.model.epoch >= 0 and not self.model.failed_fence:
            self.model.load()
            written = encode_value(self.transaction.data, 2)
            data = decode_record(encode_key("id"), written).data
            assert data is not None
            self.transaction = Transaction("id", data)
            self.check()

    def check(self) -> None:
        model, transaction = self.model, self.transaction
        data = transaction.data
        assert self.fields(data) == {name: getattr(model, name) for name in self.fields(data)}
        assert (transaction.pending is None) == (model.pending is None)
        if transaction.pending is not None:
            assert self.fields(transaction.pending) == model.pending
        assert transaction.has_failed_epoch_fence == model.failed_fence

    @staticmethod
    def fields(data: Transition) -> dict[str, Any]:
        return {
            "pid": data.producer_id,
            "previous": data.previous_producer_id,
            "next": data.next_producer_id,
            "epoch": data.producer_epoch,
            "last_epoch": data.last_producer_epoch,
            "timeout": data.timeout_ms,
            "state": data.state.label,
            "partitions": set(data.partitions),
            "start": data.start_timestamp,
            "updated": data.last_update_timestamp,
            "client_version": data.client_transaction_version,
        }


class Client:
    """Makes requests that are mostly the right ones, so that all states are reached."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.both = Both(self.random.choice([-1, 0, 7, 32763, 32764, 32765, 32766, 32767]))

    def sender(self) -> tuple[int, int]:
        model = self.both.model
        pid = self.random.choice([model.pid] * 8 + [model.previous] * 2 + [5])
        offset = self.random.choice([0, 0, 0, 0, -1, -1, 1, -2])
        return pid, self.random.choice([max(0, model.epoch + offset)] * 5 + [32766])

    def partitions(self) -> set[tuple[str, int]]:
        return set(self.random.sample([("t", 0), ("t", 1), ("u", 0)], self.random.randint(1, 3)))

    def step(self) -> None:
        both, choose = self.both, self.random.choice
        model = both.model
        if model.pending is not None and self.random.random() < 0.7:
            both.settle(self.random.random() < 0.8)
            return
        operation = choose(OPERATIONS)
        match operation:
            case "reload":
                both.reload()
            case "fence":
                if model.state == "Ongoing" and model.pending is None:
                    both.request("fence", (choose([1, 2]),))
            case "complete":
                if model.state.startswith("Prepare") and model.pending is None:
                    both.request("complete", ())
            case "verify":
                both.verify(*self.sender(), self.partitions())
            case "initialize":
                sender = choose([(-1, -1), self.sender(), self.sender(), (model.pid, model.last_epoch)])
                if sender[1] == -1:
                    sender = -1, -1
                both.request("initialize", (500, *sender, choose([0, 1, 2])))
            case "add":
                both.request("add", (*self.sender(), self.partitions(), choose([True, False])))
            case _:
                both.request(operation, (*self.sender(), choose([True, False])))


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_decisions_are_kafkas(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        client = Client(seed)
        for _ in range(60):
            client.step()
