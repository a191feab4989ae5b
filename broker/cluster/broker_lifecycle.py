"""A broker's life in a cluster (KIP-631): it registers, catches up with the metadata, asks to be unfenced, and goes on
telling that it lives; before it goes, it asks others to take over what it leads.

STARTING -> registered -> caught up (its partitions are open) -> unfenced: it serves -> leaving -> gone.

The state of things is the controller's: whatever it answers to a heartbeat counts. A broker that was taken for dead goes
on with the same registration and is unfenced again; one whose registration is gone registers anew.

A broker has a session for broker.session.timeout.ms after it has sent a heartbeat that is answered with "not fenced". The
controller counts from when it receives one, so the session ends here before another broker is elected for this one's
silence. Until the next answer this broker does not tell how things stand (`has_session`), as they may have gone on elsewhere.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from barnabas.controller.operations.features import SUPPORTED_FEATURES
from barnabas.storage.manager.directory import decode_uuid
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from barnabas.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.services import Services
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Timer

log = logging.getLogger("barnabas.lifecycle")

RETRY_S: Final = 0.1
HAND_OVER_S: Final = 10.0  # not more often
LEAVING_RETRY_S: Final = 0.02  # the others hear of it within milliseconds
LEAVING_TIMEOUT_S: Final = 1.5  # for the answer to a heartbeat of a broker that leaves
LEAVING_LOOK_S: Final = 0.1  # how often one that leaves looks whether there can be a controller
LEAVING_LOOKS: Final = 3  # at which there could be none, in a row
LEAVING_UNANSWERED_MAX: Final = 2  # in a row: there is nobody left to hand anything over
SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
BROKER_REGISTRATION: Final = 62
BROKER_HEARTBEAT: Final = 63
_FATAL: Final = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "its directories belong to another cluster (cluster.id in meta.properties)",
    ErrorCode.UNSUPPORTED_VERSION: "it does not support a feature that the cluster runs with; use a newer release",
    ErrorCode.INVALID_REGISTRATION: "its log directories are those of another broker (directory.id in meta.properties)",
}


class BrokerLifecycle:
    """See the module. All calls on the loop's thread."""

    def __init__(self, services: Services, *, previous_broker_epoch: int) -> None:
        """`previous_broker_epoch`: of the registration that this node's last stop ended cleanly; -1 for none."""
        self._services = services
        self._runtime = services.runtime
        self._incarnation_id = services.runtime.random_bytes(16)
        self._previous_epoch = previous_broker_epoch
        self._interval_s = services.config.broker_heartbeat_interval_ms / 1000
        self._session_ends_at = float("-inf")  # on the monotonic clock
        self._asked_at = 0.0  # when the heartbeat that has no answer yet was sent
        self.broker_epoch = -1
        self.is_fenced = True
        self._is_open = False  # whether the partitions are open and clients can come
        self._leaving: Callable[[], object] | None = None
        self._unanswered = 0  # heartbeats in a row, while leaving
        self._hopeless_looks = 0  # in a row, while leaving
        self._gone = False
        self._asking = False  # a heartbeat is under way
        self._ask_again = False  # things have changed since it left
        self._handing_over = False
        self._handed_over_at = -HAND_OVER_S
        self._timer: Timer | None = None
        self._applied_offset = -1  # of the metadata that the partitions here have taken their roles from
        self._told_of_duplicate = False
        self.on_caught_up: Callable[[Callable[[], object]], object] = lambda opened: opened()
        self.on_serving: Callable[[], object] = lambda: None
        self.has_quorum_ended: Callable[[], bool] = lambda: False  # so that no controller can answer
        self.on_fatal: Callable[[str], object] = lambda _: None
        services.controller.add_image_listener(self._metadata_changed)
        services.controller.add_broker_listener(self._brokers_changed)

    def start(self) -> None:
        """Register, as soon as a controller answers."""
        self._register()

    # -- registration

    def _register(self) -> None:
        self._timer = None
        if self._gone:
            return
        services = self._services
        log_manager = services.log_manager
        request = BrokerRegistrationRequest(
            broker_id=services.node_id,
            cluster_id=services.cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(
                    name=endpoint.listener,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=SECURITY_PROTOCOLS[endpoint.security_protocol],
                )
                for endpoint in services.endpoints.values()
            ],
            features=[
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
            ],
            rack=services.config.broker_rack,
            log_dirs=log_manager.online_ids(),
            previous_broker_epoch=self._previous_epoch,
        )
        services.to_controller.send(BROKER_REGISTRATION, request, self._registered)

    def _registered(self, response: Any, failure: ErrorCode) -> None:
        error = failure or ErrorCode.of(response.error_code)
        if error in _FATAL:
            self.on_fatal(f"the controller does not take node {self._services.node_id} in: {_FATAL[error]}")
            return
        if error:
            if error == ErrorCode.DUPLICATE_BROKER_REGISTRATION and not self._told_of_duplicate:
                self._told_of_duplicate = True
                log.warning(
                    "the controller still knows a live broker with node.id=%d: waiting until it is known to be gone",
                    self._services.node_id,
                )
            elif error != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                log.warning("not registered yet: %s", error.name)
            self._later(RETRY_S, self._register)
            return
        self.broker_epoch = response.broker_epoch
        self._previous_epoch = self.broker_epoch
        self._services.log_manager.broker_epoch = self.broker_epoch
        log.info("registered in broker epoch %d", self.broker_epoch)
        if self._is_open:
            self.heartbeat_now()
        else:
            self._services.to_controller.when_at(self.broker_epoch, self._caught_up)

    def _caught_up(self) -> None:
        if self._services.controller.image.offset < self.broker_epoch:  # it takes long: wait on
            self._services.to_controller.when_at(self.broker_epoch, self._caught_up)
            return
        self.on_caught_up(self._opened)

    def _opened(self) -> None:
        self._is_open = True
        self._applied_offset = self._services.controller.image.offset
        self.heartbeat_now()

    # -- heartbeats

    def has_session(self) -> bool:
        """Whether the active controller counts this broker as alive, as far as can be known here."""
        return self._runtime.monotonic() < self._session_ends_at

    def heartbeat_now(self) -> None:
        """Tell the controller how things are, now; they have changed, or it has."""
        if self.broker_epoch < 0 or self._gone or not self._is_open:
            return
        if self._asking:
            self._ask_again = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._asking = True
        self._asked_at = self._runtime.monotonic()
        log_manager = self._services.log_manager
        request = BrokerHeartbeatRequest(
            broker_id=self._services.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._applied_offset,
            want_fence=self._handing_over,
            want_shut_down=self._leaving is not None,
            offline_log_dirs=[
                decode_uuid(text)
                for text in map(log_manager.directory_id, sorted(log_manager.offline))
                if text
            ],
            cordoned_log_dirs=self._cordoned(),
        )
        self._services.to_controller.send(
            BROKER_HEARTBEAT,
            request,
            self._answered,
            timeout_s=max(self._interval_s, 1.0) if self._leaving is None else LEAVING_TIMEOUT_S,
            settles=False,  # or a thousand new partitions would cost the session
        )

    def _cordoned(self) -> list[bytes] | None:
        """Ids of the directories that shall take nothing new; None where the controller knows of none either."""
        log_manager = self._services.log_manager
        named = [decode_uuid(text) for text in map(log_manager.directory_id, log_manager.cordoned) if text]
        own = self._services.controller.image.brokers.get(self._services.node_id)
        known = own is not None and own.cordoned_log_dirs
        return sorted(named) if named or known else None

    def _answered(self, response: Any, failure: ErrorCode) -> None:
        self._asking = False
        if self._gone:
            return
        again, self._ask_again = self._ask_again, False
        error = failure or ErrorCode.of(response.error_code)
        if error == ErrorCode.STALE_BROKER_EPOCH:
            log.warning(
                "broker epoch %d is not the controller's any more: registering anew", self.broker_epoch
            )
            self._incarnation_id = self._runtime.random_bytes(16)
            self._session_ends_at = float("-inf")
            self._register()
            return
        if error:
            log.warning("a heartbeat was not answered: %s", error.name)
            if failure and self._leaving is not None:
                self._unanswered += 1
                if self._unanswered >= LEAVING_UNANSWERED_MAX:
                    self._leave_anyway("no controller answers")
                    return
            self._later(RETRY_S, self.heartbeat_now)
            return
        self._unanswered = 0
        if self.is_fenced or response.is_fenced:
            self._handing_over = False
        self._follow(response)
        if self._leaving is not None and response.should_shut_down:
            self._go()
        elif again:
            self.heartbeat_now()
        else:
            self._later(self._pause_s(), self.heartbeat_now)

    def _pause_s(self) -> float:
        if self._leaving is not None:
            return LEAVING_RETRY_S
        return RETRY_S if self.is_fenced or self._is_awaited() else self._interval_s

    def _metadata_changed(self, image: MetadataImage) -> None:
        offset = image.offset
        self._services.partitions.when_roles_taken(lambda: self._has_applied(offset))

    def _has_applied(self, offset: int) -> None:
        self._applied_offset = max(self._applied_offset, offset)

    def _brokers_changed(self, image: MetadataImage, broker_ids: set[int]) -> None:
        """One that leaves waits until this one has said that it knows: as soon as it does, and again and again until the
        other is gone, as the first may have come to a controller that was not the active one."""
        changed = [image.brokers[broker_id] for broker_id in sorted(broker_ids) if broker_id in image.brokers]
        if not any(each.is_leaving and each.broker_id != self._services.node_id for each in changed):
            return
        offset = image.offset

        def tell() -> None:
            self._has_applied(offset)
            self.heartbeat_now()

        self._services.partitions.when_roles_taken(tell)

    def _is_awaited(self) -> bool:
        return any(broker.is_leaving for broker in self._services.controller.image.brokers.values())

    def _follow(self, response: Any) -> None:
        was_fenced, self.is_fenced = self.is_fenced, response.is_fenced
        session_s = self._services.config.broker_session_timeout_ms / 1000
        self._session_ends_at = float("-inf") if self.is_fenced else self._asked_at + session_s
        if was_fenced and not self.is_fenced:
            log.info("unfenced: serving")
            self.on_serving()
        elif self.is_fenced and not was_fenced and self._leaving is None and not self._has_handed_over():
            log.warning("the controller has taken this broker for dead and fenced it; catching up")

    def hand_over(self) -> None:
        """The disk does not take what this broker leads (it is full): others in sync lead instead. It stays as a
        follower, and is in sync again when there is room."""
        if self._has_handed_over() or self._leaving is not None:
            return
        self._handed_over_at = self._runtime.monotonic()
        self._handing_over = True
        log.warning("the disk refuses what this broker leads: giving leadership to others")
        self.heartbeat_now()

    def _has_handed_over(self) -> bool:
        """A moment ago."""
        return self._runtime.monotonic() - self._handed_over_at < HAND_OVER_S

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()

        def due() -> None:
            self._timer = None
            call()

        self._timer = self._runtime.call_later(delay_s, due)

    # -- the end

    def leave(self, gone: Callable[[], object], timeout_s: float) -> None:
        """Controlled shutdown: others take over what this broker leads, then `gone()` is called; also after
        `timeout_s`, when nobody does, and sooner when no controller answers or none can."""
        if self._gone or self.broker_epoch < 0 or not self._is_open:
            gone()
            return
        self._leaving = gone
        log.info(
            "leaving: others take over what this broker leads; waiting for them for up to %g s", timeout_s
        )
        self._runtime.call_later(
            timeout_s, lambda: self._leave_anyway("nobody has taken over all that it leads")
        )
        self.heartbeat_now()
        self._look_for_quorum()

    def _look_for_quorum(self) -> None:
        if self._gone:
            return
        self._hopeless_looks = self._hopeless_looks + 1 if self.has_quorum_ended() else 0
        if self._hopeless_looks >= LEAVING_LOOKS:
            self._leave_anyway("most voters have ended before, so nobody can take over")
        else:
            self._runtime.call_later(LEAVING_LOOK_S, self._look_for_quorum)

    def _leave_anyway(self, why: str) -> None:
        if not self._gone:
            log.warning("this broker leaves with what it leads: %s", why)
            self._go()

    def _go(self) -> None:
        leaving, self._leaving = self._leaving, None
        self.stop()
        if leaving is not None:
            leaving()

    def stop(self) -> None:
        """No more heartbeats."""
        self._gone = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
