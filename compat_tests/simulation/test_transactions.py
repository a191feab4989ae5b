"""A few seeds of transactions, planted bugs that they must find, and an exact replay. `make simulate-transactions` runs many."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from barnabas.broker.groups.offsets import OffsetStore
from barnabas.broker.transactions.shard import TransactionShard
from barnabas.storage.log.log import Log
from compat_tests.simulation.transactions import run_seed

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.barnabas_only
MET = (
    "aborted transactions",
    "committed transactions",
    "coordinator moves",
    "end PRODUCER_FENCED",
    "holders that give up",
    "offset fetch UNSTABLE_OFFSET_COMMIT",
    "producers that pause",
    "transactional offsets",
)


def test_invariants_hold_while_faults_happen() -> None:
    counts: Counter[str] = Counter()
    for seed in range(4):
        failure, details, found, log = run_seed(seed)
        assert not failure, "\n".join([*log, details])
        counts += found
    assert all(counts[each] for each in MET), counts


def _no_epoch_is_checked() -> mock._patch[Any]:
    """EndTxn of a fenced producer ends the transaction of its successor."""
    end = TransactionShard.end

    def ended(
        self: TransactionShard, transactional_id: str, producer_id: int, epoch: int, *rest: Any
    ) -> object:
        transaction = self.transactions.get(transactional_id)
        if transaction is not None:
            producer_id, epoch = transaction.data.producer_id, transaction.data.producer_epoch
        return end(self, transactional_id, producer_id, epoch, *rest)

    return mock.patch.object(TransactionShard, "end", ended)


def _open_transactions_are_read() -> mock._patch[Any]:
    """Consumers with read_committed read up to the high watermark."""
    return mock.patch.object(Log, "last_stable_offset", property(lambda self: self.high_watermark))


def _aborted_transactions_are_not_named() -> mock._patch[Any]:
    """A fetch names no aborted transactions."""
    return mock.patch.object(Log, "aborted_within", return_value=[])


def _markers_are_not_sent_again() -> mock._patch[Any]:
    """A new coordinator leaves the ends as they are that its predecessor has decided."""

    def resume(_self: TransactionShard) -> Iterator[None]:
        yield from ()

    return mock.patch.object(TransactionShard, "_resume", resume)


def _unstable_offsets_are_answered() -> mock._patch[Any]:
    """OffsetFetch answers the last committed offset while another one waits for its marker."""
    return mock.patch.object(OffsetStore, "is_pending", return_value=False)


@pytest.mark.parametrize(
    "bug",
    [
        _no_epoch_is_checked,
        _open_transactions_are_read,
        _aborted_transactions_are_not_named,
        _markers_are_not_sent_again,
        _unstable_offsets_are_answered,
    ],
    ids=lambda bug: bug.__name__.strip("_"),
)
def test_a_planted_bug_is_found(bug: Callable[[], mock._patch[Any]]) -> None:
    with bug():
        assert any(run_seed(seed)[0] for seed in range(30))  # some need a rare moment


def test_a_seed_replays_exactly_under_any_hash_seed() -> None:
    def log(hash_seed: str) -> str:
        command = [sys.executable, "-m", "compat_tests.simulation.transactions", "--seed", "1"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False
        )
        (found,) = [line for line in done.stdout.splitlines() if line.startswith("trace ")]
        return found

    assert log("1") == log("2")
