"""Sessions of brokers with the active controller.

A broker's session ends when no heartbeat has come for broker.session.timeout.ms. It ends at once when the broker's last link closes
and its listener refuses a connection: the process has ended. When a link breaks while the broker still listens, the session
continues, and the listener is probed, at growing intervals, until the link is back. The end of a session fences the broker in the
metadata. That is always safe: a live broker continues its heartbeats and is unfenced.

A controller that becomes active starts a new session for every unfenced broker, so each has time to find the new controller. A
broker without a link is probed at once. A session without a heartbeat does not prevent a broker of the same id from registering:
it has restarted.

Controlled shutdown: a broker may stop once every other active broker has confirmed, with a heartbeat, that it has applied the
metadata in which the stopping one leads nothing. Metadata that was sent but not applied does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.controller.metadata.decision import ApiError, Decision, Steps
from barnabas.controller.operations.brokers import fence, register
from barnabas.controller.operations.heartbeats import changes_nothing, heartbeat
from barnabas.controller.sessions.broker_probes import BrokerProbes, Probe
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from barnabas.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

if TYPE_CHECKING:
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage
    from barnabas.controller.operations.settings import ControllerSettings
    from barnabas.runtime.interface import Runtime, Timer

RETRY_S: Final = 0.1
LATE_S: Final = 0.5  # a timer that is this late means that the process was stopped

log = logging.getLogger("barnabas.controller")


@dataclass(slots=True)
class _Session:
    """One broker in one epoch."""

    broker_id: int
    broker_epoch: int
    last_contact: float  # on the monotonic clock
    has_contacted: bool  # since this controller became active, and since the broker's last link closed
    metadata_offset: int = -1  # up to which it has applied the metadata
    leaving_offset: int = -1  # of the metadata in which it leads nothing; -1: not in controlled shutdown
    fencing: bool = False

    def note_shutdown(self, broker: BrokerRegistration, image: MetadataImage) -> None:
        """Keep the offset of the first metadata in which the broker is in controlled shutdown."""
        if broker.is_leaving and self.leaving_offset < 0:
            self.leaving_offset = image.offset


class BrokerSessions:
    """See the module. Idle while this node's controller is not the active one. All calls on the loop's thread."""

    def __init__(
        self,
        controller: Controller,
        settings: ControllerSettings,
        runtime: Runtime,
        cluster_id: str,
        probe: Probe | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        """`is_alone`: this is the only controller, and its own broker has no session."""
        self._controller = controller
        self._settings = settings
        self._runtime = runtime
        self._cluster_id = cluster_id
        self._probes = BrokerProbes(runtime, probe, self._probed_address, self._refused)
        self._is_alone = is_alone
        self._sessions: dict[int, _Session] = {}
        self._links: dict[int, set[int]] = {}  # node id -> numbers of its links; also while not active
        self._is_active = False
        self._sweep_timer: Timer | None = None
        self._sweep_due = 0.0

    def start(self) -> None:
        """Follow the controller, which may be active already."""
        self._controller.on_activity(self._activity_changed)
        self._controller.add_broker_listener(self._brokers_changed)
        self._activity_changed(self._controller.is_active)

    def close(self) -> None:
        self._activity_changed(False)

    # -- events

    def link_opened(self, node_id: int, number: int) -> None:
        """A link to a node has opened. Each link has its own number."""
        self._links.setdefault(node_id, set()).add(number)
        session = self._sessions.get(node_id)
        if session is not None:
            self._probes.stop(node_id)
            session.last_contact = self._runtime.monotonic()

    def link_closed(self, node_id: int, number: int) -> None:
        links = self._links.get(node_id, set())
        links.discard(number)
        session = self._sessions.get(node_id)
        if session is not None and not links:
            session.has_contacted = False
            self._probes.begin(node_id)

    def register(
        self, request: BrokerRegistrationRequest, done: Callable[[BrokerRegistrationResponse], object]
    ) -> None:
        """BrokerRegistration."""

        def registered(result: int | ApiError) -> None:
            if isinstance(result, ApiError):
                log.info("broker %d is not registered: %s", request.broker_id, result.message)
                done(BrokerRegistrationResponse(error_code=result.error))
                return
            if self._is_active:
                self._begin_session(request.broker_id, result)
            log.info("broker %d is registered in broker epoch %d", request.broker_id, result)
            done(BrokerRegistrationResponse(broker_epoch=result))

        self._controller.run(
            lambda image: register(
                image, self._settings, request, self._cluster_id, is_alive=self.is_alive(request.broker_id)
            ),
            registered,
            lambda error, _: done(BrokerRegistrationResponse(error_code=error)),
        )

    def heartbeat(
        self, request: BrokerHeartbeatRequest, done: Callable[[BrokerHeartbeatResponse], object]
    ) -> None:
        """BrokerHeartbeat."""
        if not self._is_active:
            done(BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER))
            return
        image = self._controller.image
        broker = image.brokers.get(request.broker_id)
        if broker is not None and broker.broker_epoch == request.broker_epoch:
            session = self._sessions.get(request.broker_id)
            if session is None or session.broker_epoch != request.broker_epoch:
                session = self._begin_session(request.broker_id, request.broker_epoch)
            session.metadata_offset = max(session.metadata_offset, request.current_metadata_offset)
            self._contact(session)
            if changes_nothing(image, request) and not session.fencing:
                is_caught_up = request.current_metadata_offset >= broker.broker_epoch
                done(BrokerHeartbeatResponse(is_caught_up=is_caught_up, is_fenced=False))
                return
        may_shut_down = False

        def decide(image: MetadataImage) -> Steps[BrokerHeartbeatResponse]:
            nonlocal may_shut_down
            broker = image.brokers.get(request.broker_id)
            may_shut_down = broker is not None and self._may_shut_down(image, broker)
            return heartbeat(image, self._settings, request, may_shut_down=may_shut_down)

        self._controller.run(
            decide,
            lambda response: self._answer(request, response, done, may_shut_down=may_shut_down),
            lambda error, _: done(BrokerHeartbeatResponse(error_code=error)),
        )

    def _answer(
        self,
        request: BrokerHeartbeatRequest,
        response: BrokerHeartbeatResponse,
        done: Callable[[BrokerHeartbeatResponse], object],
        *,
        may_shut_down: bool,
    ) -> None:
        """Answer a heartbeat whose changes are committed."""
        image = self._controller.image
        broker = image.brokers.get(request.broker_id)
        if (
            not may_shut_down
            and broker is not None
            and broker.is_leaving
            and self._may_shut_down(image, broker)
        ):
            self.heartbeat(request, done)  # again at once: all others have applied it, or there are none
            return
        done(response)

    def _may_shut_down(self, image: MetadataImage, broker: BrokerRegistration) -> bool:
        """Whether all other active brokers have applied metadata in which this broker leads nothing."""
        session = self._sessions.get(broker.broker_id)
        if session is None or session.leaving_offset < 0:
            return False
        return all(
            self._offset_of(other.broker_id) >= session.leaving_offset
            for other in image.brokers.values()
            if other.broker_id != broker.broker_id and other.is_active
        )

    def _offset_of(self, broker_id: int) -> int:
        if self._is_alone and broker_id == self._settings.node_id:
            return self._controller.image.offset
        session = self._sessions.get(broker_id)
        return -1 if session is None else session.metadata_offset

    def _brokers_changed(self, image: MetadataImage, broker_ids: set[int]) -> None:
        for broker_id in sorted(broker_ids):
            broker, session = image.brokers.get(broker_id), self._sessions.get(broker_id)
            if broker is not None and session is not None and session.broker_epoch == broker.broker_epoch:
                session.note_shutdown(broker, image)
                if not broker.fenced:
                    self._set_timer()
                    if not self._links.get(broker_id):  # it may have ended while its heartbeat waited
                        self._probes.begin(broker_id)

    # -- sessions

    def _activity_changed(self, is_active: bool) -> None:
        if is_active == self._is_active:
            return
        self._is_active = is_active
        self._probes.stop_all()
        self._sessions.clear()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if not is_active:
            return
        now = self._runtime.monotonic()
        for broker in sorted(self._controller.image.brokers.values(), key=lambda each: each.broker_id):
            if broker.fenced:
                continue
            session = _Session(broker.broker_id, broker.broker_epoch, now, has_contacted=False)
            session.note_shutdown(broker, self._controller.image)
            self._sessions[broker.broker_id] = session
            if not self._links.get(broker.broker_id):
                self._probes.begin(broker.broker_id)
        self._set_timer()

    def _begin_session(self, broker_id: int, broker_epoch: int) -> _Session:
        """Begin a session, unless there is one in this epoch."""
        known = self._sessions.get(broker_id)
        if known is not None and known.broker_epoch == broker_epoch:
            self._contact(known)
            return known
        self._probes.stop(broker_id)
        session = _Session(broker_id, broker_epoch, self._runtime.monotonic(), has_contacted=True)
        image = self._controller.image
        if broker_id in image.brokers:
            session.note_shutdown(image.brokers[broker_id], image)
        self._sessions[broker_id] = session
        return session

    def _contact(self, session: _Session) -> None:
        session.last_contact = self._runtime.monotonic()
        session.has_contacted = True

    def is_alive(self, broker_id: int) -> bool:
        """Whether a broker of this id has contacted this controller within the session timeout and has had a link since. (A link
        alone is not enough: it may belong to the process that registers.)"""
        session = self._sessions.get(broker_id)
        if session is None or not session.has_contacted:
            return False
        return self._runtime.monotonic() - session.last_contact < self._timeout_s()

    def _timeout_s(self) -> float:
        return int(self._settings.value("broker.session.timeout.ms") or 9000) / 1000

    def _set_timer(self) -> None:
        """Wake when the next session may end."""
        if self._sweep_timer is not None or not self._is_active:
            return
        ends = [
            session.last_contact + self._timeout_s()
            for session in self._sessions.values()
            if self._is_serving(session) and not session.fencing
        ]
        if ends:
            now = self._runtime.monotonic()
            self._sweep_due = max(now, min(ends))
            self._sweep_timer = self._runtime.call_later(self._sweep_due - now, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._runtime.monotonic()
        has_run = now - self._sweep_due <= LATE_S
        for session in list(self._sessions.values()):
            if not has_run:  # heartbeats may be unread
                session.last_contact = now
            elif session.last_contact + self._timeout_s() <= now + 0.001:
                self._fence(session, "no heartbeat came for broker.session.timeout.ms")
        self._set_timer()

    def _is_serving(self, session: _Session) -> bool:
        broker = self._controller.image.brokers.get(session.broker_id)
        return (
            broker is not None
            and broker.broker_epoch == session.broker_epoch
            and not broker.fenced
            and not (self._is_alone and broker.broker_id == self._settings.node_id)
        )

    def _fence(self, session: _Session, reason: str) -> None:
        if session.fencing or not self._is_serving(session):
            return
        session.fencing = True
        self._probes.stop(session.broker_id)
        last_contact = session.last_contact

        def decide(image: MetadataImage) -> Decision[bool] | Steps[bool]:
            if session.last_contact != last_contact:  # it was heard of while this waited
                return Decision([], False)
            return fence(image, self._settings, session.broker_id, session.broker_epoch)

        def fenced(is_change: bool) -> None:
            if not is_change and session.last_contact != last_contact:
                again()
                return
            if self._sessions.get(session.broker_id) is session:
                del self._sessions[session.broker_id]
            if is_change:
                log.warning("broker %d is fenced: %s", session.broker_id, reason)

        def failed(error: ErrorCode, message: str) -> None:
            # One that has paused is about to be confirmed.
            if self._is_active and error != ErrorCode.NOT_CONTROLLER:
                log.error("broker %d could not be fenced: %s", session.broker_id, message)
            self._runtime.call_later(RETRY_S, again)  # not now: `run` may fail before it returns

        def again() -> None:
            session.fencing = False
            self._set_timer()

        self._controller.run(decide, fenced, failed)

    # -- probes

    def _probed_address(self, broker_id: int) -> tuple[str, int] | None:
        """The inter-broker listener of an unfenced broker without a link."""
        session = self._sessions.get(broker_id)
        if session is None or not self._is_serving(session) or self._links.get(broker_id):
            return None
        if broker_id == self._settings.node_id:
            return None
        endpoints = self._controller.image.brokers[broker_id].endpoints
        wanted = self._settings.value("inter.broker.listener.name")
        chosen = [each for each in endpoints if each.name == wanted] or endpoints
        return (chosen[0].host, chosen[0].port) if chosen and chosen[0].port else None

    def _refused(self, broker_id: int) -> None:
        session = self._sessions.get(broker_id)
        if session is not None:
            self._fence(session, "its link closed, and its listener refuses connections")
