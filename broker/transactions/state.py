"""The states of a transactional id, and which may follow which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class TransactionState(IntEnum):
    """The numbers stand in __transaction_state; `label` is what Kafka's tools print."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # being removed
    PREPARE_EPOCH_FENCE = (
        7  # of Kafka's memory, never written: here a fence decides PREPARE_ABORT in the same step
    )

    @property
    def label(self) -> str:
        """Such as PrepareCommit."""
        return _LABELS[self]


_S = TransactionState

_LABELS: Final = {state: state.name.title().replace("_", "") for state in _S}
STATES_BY_LABEL: Final = {label: state for state, label in _LABELS.items()}

# No transaction is open and no marker is missing: the id may begin a transaction, be initialized, and expire.
IDLE: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})

# The end is decided, and markers are being written.
ENDING: Final = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})

PREDECESSORS: Final = {
    _S.EMPTY: IDLE,
    _S.ONGOING: IDLE | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: IDLE
    | {_S.ONGOING, _S.PREPARE_EPOCH_FENCE},  # IDLE: an abort of nothing, since transaction.version 2
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: IDLE,
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}
