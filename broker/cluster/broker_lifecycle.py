"""A broker's life in a cluster (KIP-631): registration, heartbeats, controlled shutdown.

                  registered              opened            unfenced
    REGISTERING ------------> CATCHING_UP ------> FENCED <----------> SERVING
                                                   |  ^    fenced       |
                                registration lost  v  | registered      | registration lost
                                              REGISTERING_AGAIN <-------+

    FENCED, SERVING -- leave --> LEAVING -- shut down --> GONE
    LEAVING <-- registered / registration lost --> LEAVING_UNREGISTERED

`next_state` is the table; a pair that it does not list is an error. `BrokerLifecycle` sends the requests and sets the timers.

The controller decides: its answer to a heartbeat has whether the broker is fenced, and whether a broker in controlled shutdown
may stop. A broker that was fenced because its heartbeats were late keeps its registration and is unfenced again; one whose
registration is lost registers again, with its partitions open.

A broker has a session for broker.session.timeout.ms after it has sent a heartbeat that is answered with "not fenced". The
controller counts from when it receives one, so the session ends here before the controller elects another leader. Without a
session this broker does not serve partitions as their leader (`has_session`), as another broker may lead them by now.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Any, Final

from barnabas.controller.operations.features import SUPPORTED_FEATURES
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from barnabas.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from barnabas.wire.uuids import uuid_from_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barnabas.broker.cluster.controller_channel import ControllerChannel
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.config.listeners import Endpoint
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.storage.manager.manager import LogManager

log = logging.getLogger("barnabas.lifecycle")

RETRY_S: Final = 0.1
HAND_OVER_S: Final = 10.0  # between two hand-overs
LEAVING_RETRY_S: Final = 0.02  # other brokers take over leaderships within milliseconds
LEAVING_TIMEOUT_S: Final = 1.5  # for the answer to a heartbeat of a broker that leaves
LEAVING_CHECK_S: Final = 0.1  # between two checks of a broker that leaves whether there can be a controller
LEAVING_CHECKS: Final = 3  # in a row that find no majority of voters
LEAVING_UNANSWERED_MAX: Final = 2  # heartbeats in a row: no controller is left
SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
BROKER_REGISTRATION: Final = 62
BROKER_HEARTBEAT: Final = 63
_FATAL: Final = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "its directories belong to another cluster (cluster.id in meta.properties)",
    ErrorCode.UNSUPPORTED_VERSION: "it does not support a feature that the cluster runs with; use a newer release",
    ErrorCode.INVALID_REGISTRATION: "its log directories are those of another broker (directory.id in meta.properties)",
}
_NEVER: Final = float("-inf")


class State(enum.Enum):
    """The states of a broker."""

    REGISTERING = enum.auto()
    CATCHING_UP = enum.auto()  # registered; its partitions open once its metadata holds the registration
    FENCED = enum.auto()  # its partitions are open and clients can connect
    SERVING = enum.auto()
    REGISTERING_AGAIN = enum.auto()  # with open partitions
    LEAVING = enum.auto()  # controlled shutdown
    LEAVING_UNREGISTERED = enum.auto()
    GONE = enum.auto()


class Event(enum.Enum):
    """The events that change the state."""

    REGISTERED = enum.auto()
    OPENED = enum.auto()  # the partitions
    UNFENCED = enum.auto()  # by the answer to a heartbeat
    FENCED = enum.auto()  # by the answer to a heartbeat
    REGISTRATION_LOST = enum.auto()  # a heartbeat was answered with STALE_BROKER_EPOCH
    LEAVE = enum.auto()  # a controlled shutdown begins
    SHUT_DOWN = enum.auto()  # no more heartbeats


_NEXT: Final = {
    State.REGISTERING: {
        Event.REGISTERED: State.CATCHING_UP,
        Event.LEAVE: State.GONE,  # it leads nothing
        Event.SHUT_DOWN: State.GONE,
    },
    State.CATCHING_UP: {
        Event.OPENED: State.FENCED,
        Event.LEAVE: State.GONE,
        Event.SHUT_DOWN: State.GONE,
    },
    State.FENCED: {
        Event.UNFENCED: State.SERVING,
        Event.FENCED: State.FENCED,
        Event.REGISTRATION_LOST: State.REGISTERING_AGAIN,
        Event.LEAVE: State.LEAVING,
        Event.SHUT_DOWN: State.GONE,
    },
    State.SERVING: {
        Event.UNFENCED: State.SERVING,
        Event.FENCED: State.FENCED,
        Event.REGISTRATION_LOST: State.REGISTERING_AGAIN,
        Event.LEAVE: State.LEAVING,
        Event.SHUT_DOWN: State.GONE,
    },
    State.REGISTERING_AGAIN: {
        Event.REGISTERED: State.FENCED,
        Event.LEAVE: State.LEAVING_UNREGISTERED,
        Event.SHUT_DOWN: State.GONE,
    },
    State.LEAVING: {
        Event.LEAVE: State.LEAVING,
        Event.UNFENCED: State.LEAVING,
        Event.FENCED: State.LEAVING,
        Event.REGISTRATION_LOST: State.LEAVING_UNREGISTERED,
        Event.SHUT_DOWN: State.GONE,
    },
    State.LEAVING_UNREGISTERED: {
        Event.LEAVE: State.LEAVING_UNREGISTERED,
        Event.REGISTERED: State.LEAVING,
        Event.SHUT_DOWN: State.GONE,
    },
    State.GONE: {Event.LEAVE: State.GONE, Event.SHUT_DOWN: State.GONE},
}
_HEARTBEATING: Final = (State.FENCED, State.SERVING, State.LEAVING)
_IS_LEAVING: Final = (State.LEAVING, State.LEAVING_UNREGISTERED)


class UnexpectedEvent(Exception):
    """The state does not list the event: a defect."""


def next_state(state: State, event: Event) -> State:
    found = _NEXT[state].get(event)
    if found is None:
        raise UnexpectedEvent(f"{event.name} of a broker that is {state.name}")
    return found


class _Heartbeat(enum.Enum):
    """The exchange of heartbeats: at most one waits for its answer."""

    DUE = enum.auto()  # now, or when the timer fires
    SENT = enum.auto()
    OUTDATED = enum.auto()  # sent; the next one follows its answer at once


class BrokerLifecycle:
    """See the module. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        controller: Controller,
        channel: ControllerChannel,
        log_manager: LogManager,
        cluster_id: str,
        endpoints: Iterable[Endpoint],
        *,
        previous_broker_epoch: int,
        when_roles_taken: Callable[[Callable[[], object]], object],
        open_partitions: Callable[[Callable[[], object]], object],
        on_serving: Callable[[], object],
        has_quorum_ended: Callable[[], bool],
        on_fatal: Callable[[str], object],
    ) -> None:
        """`endpoints`: where clients connect. `previous_broker_epoch`: of the registration before the last clean stop of this
        node; -1 for none. `when_roles_taken(call)` calls back when the partitions have the roles that the metadata has;
        `open_partitions(opened)` opens them. `has_quorum_ended()`: no controller can answer. `on_fatal(why)`: the cluster
        refuses this broker."""
        self.state = State.REGISTERING
        self.broker_epoch = -1
        self._runtime = runtime
        self._config = config
        self._controller = controller
        self._channel = channel
        self._log_manager = log_manager
        self._cluster_id = cluster_id
        self._endpoints = endpoints
        self._when_roles_taken = when_roles_taken
        self._open_partitions = open_partitions
        self._on_serving = on_serving
        self._has_quorum_ended = has_quorum_ended
        self._on_fatal = on_fatal
        self._node_id = config.node_id
        self._incarnation_id = runtime.random_bytes(16)
        self._previous_epoch = previous_broker_epoch
        self._interval_s = config.broker_heartbeat_interval_ms / 1000
        self._session_ends_at = _NEVER  # on the monotonic clock
        self._heartbeat = _Heartbeat.DUE
        self._sent_at = 0.0  # when the last heartbeat was
        self._timer: Timer | None = None  # until the next request
        self._applied_offset = -1  # of the metadata whose roles the partitions have
        self._wants_fence = False  # so that other brokers lead, as the disk here refuses appends
        self._wanted_fence_at = -HAND_OVER_S
        self._on_gone: list[Callable[[], object]] = []  # of the controlled shutdown
        self._unanswered = 0  # heartbeats in a row, while leaving
        self._checks_failed = 0  # in a row, while leaving
        self._warned_of_duplicate = False
        controller.add_image_listener(self._metadata_changed)
        controller.add_broker_listener(self._brokers_changed)

    def start(self) -> None:
        """Register, as soon as a controller answers."""
        self._register()

    def _pass(self, event: Event) -> None:
        self.state = next_state(self.state, event)

    # -- registration

    def _register(self) -> None:
        request = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(
                    name=endpoint.listener,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=SECURITY_PROTOCOLS[endpoint.security_protocol],
                )
                for endpoint in self._endpoints
            ],
            features=[
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
            ],
            rack=self._config.broker_rack,
            log_dirs=self._log_manager.directories.online_ids(),
            previous_broker_epoch=self._previous_epoch,
        )
        self._channel.send(BROKER_REGISTRATION, request, self._registration_answered)

    def _registration_answered(self, response: Any, failure: ErrorCode) -> None:
        if self.state is State.GONE:
            return
        error = failure or ErrorCode.of(response.error_code)
        if error in _FATAL:
            self._on_fatal(f"the controller does not register node {self._node_id}: {_FATAL[error]}")
            return
        if error:
            self._warn_of(error)
            self._later(RETRY_S, self._register)
            return
        self.broker_epoch = self._previous_epoch = response.broker_epoch
        self._log_manager.registered(response.broker_epoch)
        log.info("registered in broker epoch %d", self.broker_epoch)
        self._pass(Event.REGISTERED)
        if self.state is State.CATCHING_UP:
            self._channel.when_at(self.broker_epoch, self._caught_up)
        else:
            self.heartbeat_now()

    def _warn_of(self, error: ErrorCode) -> None:
        """A registration is refused for now."""
        if error != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            log.warning("not registered yet: %s", error.name)
        elif not self._warned_of_duplicate:
            self._warned_of_duplicate = True
            log.warning(
                "a live broker with node.id=%d is still registered: waiting until the controller finds that it has ended",
                self._node_id,
            )

    def _caught_up(self) -> None:
        if self.state is State.GONE:
            return
        if self._controller.image.offset < self.broker_epoch:  # `when_at` has timed out
            self._channel.when_at(self.broker_epoch, self._caught_up)
            return
        self._open_partitions(self._opened)

    def _opened(self) -> None:
        if self.state is State.GONE:
            return
        self._applied_offset = self._controller.image.offset
        self._pass(Event.OPENED)
        self.heartbeat_now()

    # -- heartbeats

    def has_session(self) -> bool:
        """Whether the active controller certainly counts this broker as alive."""
        return self._runtime.monotonic() < self._session_ends_at

    def heartbeat_now(self) -> None:
        """Send a heartbeat now: the state of this broker has changed, or the active controller."""
        if self.state not in _HEARTBEATING:
            return
        if self._heartbeat is not _Heartbeat.DUE:
            self._heartbeat = _Heartbeat.OUTDATED
            return
        self._cancel_timer()
        self._heartbeat = _Heartbeat.SENT
        self._sent_at = self._runtime.monotonic()
        is_leaving = self.state is State.LEAVING
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._applied_offset,
            want_fence=self._wants_fence,
            want_shut_down=is_leaving,
            offline_log_dirs=self._directory_ids(sorted(self._log_manager.directories.offline)),
            cordoned_log_dirs=self._cordoned(),
        )
        self._channel.send(
            BROKER_HEARTBEAT,
            request,
            self._heartbeat_answered,
            timeout_s=LEAVING_TIMEOUT_S if is_leaving else max(self._interval_s, 1.0),
            settles=False,  # opening a thousand new partitions must not delay heartbeats
        )

    def _directory_ids(self, log_dirs: Iterable[str]) -> list[bytes]:
        return [uuid_from_string(text) for text in map(self._log_manager.directories.id_of, log_dirs) if text]

    def _cordoned(self) -> list[bytes] | None:
        """Ids of the cordoned directories; None where there are none, and the controller has none either."""
        named = self._directory_ids(self._log_manager.directories.cordoned)
        own = self._controller.image.brokers.get(self._node_id)
        known = own is not None and own.cordoned_log_dirs
        return sorted(named) if named or known else None

    def _heartbeat_answered(self, response: Any, failure: ErrorCode) -> None:
        if self.state is State.GONE:
            return
        is_outdated = self._heartbeat is _Heartbeat.OUTDATED
        self._heartbeat = _Heartbeat.DUE
        error = failure or ErrorCode.of(response.error_code)
        if error == ErrorCode.STALE_BROKER_EPOCH:
            log.warning("broker epoch %d is no longer registered: registering again", self.broker_epoch)
            self._incarnation_id = self._runtime.random_bytes(16)
            self._session_ends_at = _NEVER
            self._pass(Event.REGISTRATION_LOST)
            self._register()
        elif error:
            self._heartbeat_failed(error, is_unanswered=bool(failure))
        else:
            self._unanswered = 0
            self._follow(response.is_fenced)
            if self.state is State.LEAVING and response.should_shut_down:
                self._go()
            elif is_outdated:
                self.heartbeat_now()
            else:
                self._later(self._pause_s(), self.heartbeat_now)

    def _heartbeat_failed(self, error: ErrorCode, *, is_unanswered: bool) -> None:
        log.warning("a heartbeat was not answered: %s", error.name)
        if is_unanswered and self.state is State.LEAVING:
            self._unanswered += 1
            if self._unanswered >= LEAVING_UNANSWERED_MAX:
                self._leave_anyway("no controller answers")
                return
        self._later(RETRY_S, self.heartbeat_now)

    def _follow(self, is_fenced: bool) -> None:
        """Apply the controller's answer to a heartbeat."""
        before = self.state
        if is_fenced or before is State.FENCED:
            self._wants_fence = False
        session_s = self._config.broker_session_timeout_ms / 1000
        self._session_ends_at = _NEVER if is_fenced else self._sent_at + session_s
        self._pass(Event.FENCED if is_fenced else Event.UNFENCED)
        if (before, self.state) == (State.FENCED, State.SERVING):
            log.info("unfenced: serving")
            self._on_serving()
        elif (before, self.state) == (State.SERVING, State.FENCED) and not self._has_handed_over():
            log.warning("the controller has fenced this broker, as its heartbeats were late; catching up")

    def _pause_s(self) -> float:
        """Until the next heartbeat."""
        if self.state is State.LEAVING:
            return LEAVING_RETRY_S
        return RETRY_S if self.state is State.FENCED or self._does_another_leave() else self._interval_s

    def _metadata_changed(self, image: MetadataImage) -> None:
        offset = image.offset
        self._when_roles_taken(lambda: self._note_applied(offset))

    def _note_applied(self, offset: int) -> None:
        self._applied_offset = max(self._applied_offset, offset)

    def _brokers_changed(self, image: MetadataImage, broker_ids: set[int]) -> None:
        """A broker in controlled shutdown waits until the others have applied the metadata. So this one reports its offset at
        once, and again until the other has ended: the first heartbeat may have reached a controller that is not active."""
        changed = [image.brokers[broker_id] for broker_id in sorted(broker_ids) if broker_id in image.brokers]
        if not any(each.is_leaving and each.broker_id != self._node_id for each in changed):
            return
        offset = image.offset

        def report() -> None:
            self._note_applied(offset)
            self.heartbeat_now()

        self._when_roles_taken(report)

    def _does_another_leave(self) -> bool:
        return any(broker.is_leaving for broker in self._controller.image.brokers.values())

    def hand_over(self) -> None:
        """The disk refuses appends (it is full): have other replicas in sync lead. This broker stays a follower, and is in sync
        again when there is room."""
        if self._has_handed_over() or self.state in _IS_LEAVING:
            return
        self._wanted_fence_at = self._runtime.monotonic()
        self._wants_fence = True
        log.warning("the disk refuses appends: handing leadership over to other brokers")
        self.heartbeat_now()

    def _has_handed_over(self) -> bool:
        """Whether there was a hand-over less than HAND_OVER_S ago."""
        return self._runtime.monotonic() - self._wanted_fence_at < HAND_OVER_S

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        self._cancel_timer()

        def due() -> None:
            self._timer = None
            call()

        self._timer = self._runtime.call_later(delay_s, due)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the end

    def leave(self, gone: Callable[[], object], timeout_s: float) -> None:
        """Controlled shutdown: other brokers take over the leaderships of this one, then `gone()` is called; also after
        `timeout_s`, and sooner when no controller answers or none can."""
        was_leaving = self.state in _IS_LEAVING
        self._pass(Event.LEAVE)
        if self.state is State.GONE:
            self._cancel_timer()
            gone()
            return
        self._on_gone.append(gone)
        if was_leaving:
            return
        log.info(
            "controlled shutdown: waiting up to %g s until other brokers lead what this one leads", timeout_s
        )
        self._runtime.call_later(
            timeout_s, lambda: self._leave_anyway("other brokers have not taken over all leaderships")
        )
        self.heartbeat_now()
        self._check_quorum()

    def _check_quorum(self) -> None:
        if self.state is State.GONE:
            return
        self._checks_failed = self._checks_failed + 1 if self._has_quorum_ended() else 0
        if self._checks_failed >= LEAVING_CHECKS:
            self._leave_anyway("most voters have ended, so no broker can take over")
        else:
            self._runtime.call_later(LEAVING_CHECK_S, self._check_quorum)

    def _leave_anyway(self, why: str) -> None:
        if self.state is not State.GONE:
            log.warning("this broker stops while it leads partitions: %s", why)
            self._go()

    def _go(self) -> None:
        on_gone, self._on_gone = self._on_gone, []
        self.stop()
        for gone in on_gone:
            gone()

    def stop(self) -> None:
        """No more heartbeats."""
        self._pass(Event.SHUT_DOWN)
        self._cancel_timer()
