"""The health of a node, as probes see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.cluster.broker_lifecycle import State

if TYPE_CHECKING:
    from barnabas.controller.metadata.quorum_info import QuorumInfo

# Kafka's BrokerState
STARTING: Final = 1
RECOVERY: Final = 2
RUNNING: Final = 3
PENDING_CONTROLLED_SHUTDOWN: Final = 6
SHUTTING_DOWN: Final = 7

NO_METADATA: Final = "the cluster's metadata is not known yet"
NO_CONTROLLER: Final = "no active controller is known"
_WHY: Final = {
    State.REGISTERING: "the controller has not registered the broker yet",
    State.CATCHING_UP: "the broker opens its partitions",
    State.FENCED: "the controller has fenced the broker",
    State.REGISTERING_AGAIN: "the controller has lost the broker's registration",
    State.LEAVING: "the broker shuts down",
    State.LEAVING_UNREGISTERED: "the broker shuts down",
    State.GONE: "the broker has shut down",
}


class Health(msgspec.Struct, frozen=True):
    """`has_started`: the node has its metadata and its logs. `reasons`: why it does not serve clients."""

    has_started: bool
    reasons: list[str]

    @property
    def is_ready(self) -> bool:
        return not self.reasons


def broker_health(state: State | None) -> Health:
    """Of a broker with its metadata. `state`: of its life in a cluster; None where it is alone."""
    why = None if state is None else _WHY.get(state)
    has_started = state not in (State.REGISTERING, State.CATCHING_UP)
    return Health(has_started, [] if why is None else [why])


def controller_health(*, is_active: bool, quorum: QuorumInfo | None) -> Health:
    """Of a controller that is no broker. `quorum` None: it is alone."""
    knows_leader = is_active or quorum is None or quorum.leader_id >= 0
    return Health(True, [] if knows_leader else [NO_CONTROLLER])


def broker_state(state: State | None, *, was_ready: bool) -> int:
    """Kafka's BrokerState. `was_ready`: whether it has served clients since its start."""
    if state in (State.LEAVING, State.LEAVING_UNREGISTERED):
        return PENDING_CONTROLLED_SHUTDOWN
    if state is State.GONE:
        return SHUTTING_DOWN
    if state is None or state is State.SERVING or was_ready:
        return RUNNING
    return RECOVERY if state is State.FENCED else STARTING
