"""The dispatcher of a node whose requests are recorded and may go wrong.

It stands between the connections and the broker's own dispatcher. What no rule is about takes the usual way and is
recorded. Everything here runs on the node's loop.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.requests.context import Outcome, Peer, RequestContext
from barnabas.broker.requests.dispatch import Dispatcher
from barnabas.testing.faults.call import Call, Encoded, name_of, size_of, whole
from barnabas.testing.faults.connection import NEVER, Outbox, OwnRequest, Waiting
from barnabas.testing.faults.requests import ANSWER_BYTES_MAX, Recorded
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import API_VERSIONS, RequestHeader, encode_request_header
from barnabas.wire.primitives import DecodeError, EncodeError
from barnabas.wire.registry import request_type

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from barnabas.broker.requests.dispatch import Answer
    from barnabas.broker.services import Services
    from barnabas.testing.faults.connection import ClientConnection
    from barnabas.testing.faults.engine import Faults
    from barnabas.testing.faults.rules import Rule
    from barnabas.testing.faults.shapes import Topic

log = logging.getLogger("barnabas.faults")

_PRODUCE: Final = 0


class Exchange(Call):
    """A request with what is done to it. Its handler gets it in place of the connection."""

    def __init__(
        self,
        connection: ClientConnection,
        services: Services,
        data: bytes,
        completed: Callable[[Exchange, RequestContext[Any], msgspec.Struct | Outcome], object],
    ) -> None:
        """`data`: the frame without its size. DecodeError when its header can't be read."""
        super().__init__(connection, services, data)
        self.is_late = False  # it has been kept from its handler
        self.rule: Rule | None = None
        self.recorded: Recorded | None = None
        self._completed = completed

    @property
    def peer(self) -> Peer:
        return self.connection.peer

    def complete(self, context: RequestContext[Any], response: msgspec.Struct | Outcome) -> None:
        self._completed(self, context, response)

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        self.connection.on_disconnect(callback)

    def on_next_request(self, callback: Callable[[int], object]) -> None:
        self.connection.on_next_request(callback)

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None:
        """One at a time here: answers that a fault puts off must stay in order."""

    def throttle(self, delay_s: float) -> None:
        self.connection.throttle(delay_s)


class FaultingDispatcher(Dispatcher):
    """See the module."""

    def __init__(self, services: Services, faults: Faults) -> None:
        super().__init__(services)
        self.services = services
        self._faults = faults
        self._time_ms = services.runtime.time_ms
        self._names = self._name_of  # bound once
        self._outboxes: dict[Any, Outbox] = {}
        self._doomed: set[Any] = set()  # connections that will be closed when what waits has been sent

    # -- the connection's side

    def dispatch(self, connection: Any, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        if connection in self._doomed:
            return Outcome.PENDING
        try:
            call = Exchange(connection, self.services, bytes(buffer[start:end]), self._completed)
        except DecodeError:
            return super().dispatch(connection, buffer, start, end)
        if self._faults.is_idle and not self._outboxes:
            return self._pass_by(call, buffer, start, end)
        if not call.is_internal:
            self._record(call)
        refused = None if call.is_internal else self._faults.refuse(call)
        if refused is not None:
            return self._leave(call, refused)
        rule = call.rule = self._faults.match(call)
        if (
            rule is None
            and call.is_as_sent
            and self._faults.is_plain(call)
            and not self._outboxes.get(connection)
        ):
            return self._served(call, super().dispatch(call, buffer, start, end))
        if rule is not None:
            if call.recorded is not None:
                call.recorded.fault = rule.description
            if self._is_kept(call, rule):
                return Outcome.PENDING
        try:
            return self._serve(call)
        except Exception:
            self._note(call, "closed", Outcome.CLOSE)  # which is what the connection does
            raise

    def call(self, context: RequestContext[Any], request: msgspec.Struct) -> None:
        """A request of the broker to itself: as one of another broker, and never recorded."""
        if self._faults.is_idle:
            super().call(context, request)
            return
        head = encode_request_header(
            RequestHeader(context.api_key, context.api_version, 0, context.client_id)
        )
        body = b"".join(map(bytes, request_type(context.api_key).encode(context.api_version, request)))  # type: ignore[arg-type]
        own = OwnRequest(context, lambda answer: call.decode(answer), self.services.runtime.monotonic())
        call = Exchange(own, self.services, head + body, self._completed)
        rule = call.rule = self._faults.match(call)
        if rule is None:
            super().call(context, request)
        elif not self._is_kept(call, rule):
            try:
                answer = self._serve(call)
            except Exception:
                log.exception("%s of this broker to itself failed", call.api)
                answer = Outcome.CLOSE
            own.complete(None, answer if isinstance(answer, Outcome) else Encoded(answer))
            if rule.drops:
                own.close()

    def encode(self, context: RequestContext[Any], response: msgspec.Struct) -> Answer:
        if type(response) is Encoded:
            return response.frame
        return super().encode(context, response)

    # -- where nothing can happen to it, as in most tests

    def _pass_by(self, call: Exchange, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        """Serve it and record it, at once where there is an answer at once."""
        requests = self._faults.requests
        if not requests.is_recording or call.is_internal:
            return super().dispatch(call, buffer, start, end)
        recorded = call.recorded = self._recorded(call)
        try:
            answer = super().dispatch(call, buffer, start, end)
        except Exception:  # the connection is closed for it
            recorded.outcome, recorded.answered_ms = "closed", self._time_ms()
            requests.add(recorded)
            raise
        if type(answer) is bytes:
            recorded.outcome, recorded.answered_ms = "answered", self._time_ms()
            recorded.answer_bytes, recorded.answer_size = answer, len(answer)
            requests.add(recorded)
            return answer
        requests.add(recorded)
        return self._served(call, answer)

    # -- before it is served

    def _record(self, call: Exchange) -> None:
        requests = self._faults.requests
        if requests.is_recording:
            call.recorded = self._recorded(call)
            requests.add(call.recorded)

    def _recorded(self, call: Exchange) -> Recorded:
        return Recorded(
            call.node,
            call.api_key,
            call.version,
            call.correlation_id,
            call.client_id,
            call.client_host,
            self._time_ms(),
            call.data,
            self._names,
        )

    def _name_of(self, topic: Topic) -> str | None:
        """The name of what is known by name or id."""
        return name_of(topic, self.services)

    def _is_kept(self, call: Exchange, rule: Rule) -> bool:
        """Keep the request from its handler for a while, if that is what the rule says."""
        if rule.holds and not rule.is_hold_served:
            call.is_late = True
            self._faults.hold(rule, partial(self._serve_late, call), call)
        elif rule.delay_s > 0 and not rule.is_delay_served:
            call.is_late = True
            self.services.runtime.call_later(rule.delay_s, partial(self._serve_late, call))
        return call.is_late

    def _serve_late(self, call: Exchange) -> None:
        if call.connection.closed:
            return
        try:
            answer = self._serve(call)
        except DecodeError as error:
            self._note(call, "closed", Outcome.CLOSE)
            call.connection.close(f"a request that cannot be read: {error}")
            return
        except Exception:
            log.exception("%s of %s failed; closing its connection", call.api, call.client_id)
            self._note(call, "closed", Outcome.CLOSE)
            call.connection.close()
            return
        if answer is not Outcome.PENDING:
            context = RequestContext(
                self.services,
                call,
                call.api_key,
                call.version,
                call.correlation_id,
                call.client_id,
                call.caller,
            )
            self._give(call, context, answer)

    @staticmethod
    def _give(call: Exchange, context: RequestContext[Any], answer: Answer | Outcome) -> None:
        """The answer of a request whose connection waits for it."""
        call.connection.complete(context, answer if isinstance(answer, Outcome) else Encoded(answer))

    # -- serving it

    def _serve(self, call: Exchange) -> Answer | Outcome:
        rule = call.rule
        if rule is None:
            return self._pass_on(call, call.data)
        if (rule.closes or rule.drops) and not rule.is_end_served:
            return self._leave(call, Outcome.NO_RESPONSE)
        if rule.answering is not None:
            response = rule.answering(call)
            if response is not None:
                return self._leave(call, call.encode(response))
        if rule.error_code == ErrorCode.UNSUPPORTED_VERSION and call.api_key == API_VERSIONS:
            from barnabas.testing.faults.releases import (
                unsupported,  # late, as the next: for rules that need it
            )

            return self._leave(call, unsupported(call, None))
        if rule.error_code is not None:
            from barnabas.testing.faults.errors import answer_with_error

            found, data = answer_with_error(call, rule)
            if data is None:
                acks = call.request.acks if call.api_key == _PRODUCE else 1
                return self._leave(call, call.encode(found) if acks else Outcome.CLOSE)
            return self._pass_on(call, data)
        return self._pass_on(call, call.data)

    def _pass_on(self, call: Exchange, data: bytes) -> Answer | Outcome:
        """Have the broker serve it."""
        return self._served(call, super().dispatch(call, memoryview(data), 0, len(data)))

    def _served(self, call: Exchange, answer: Answer | Outcome) -> Answer | Outcome:
        if isinstance(answer, Outcome):
            return answer if answer is Outcome.PENDING else self._leave(call, answer)
        return self._leave(call, self._changed(call, answer))

    def _completed(
        self, call: Exchange, context: RequestContext[Any], response: msgspec.Struct | Outcome
    ) -> None:
        """The broker's answer to a request that had to wait."""
        answer: Answer | Outcome
        if isinstance(response, Outcome):
            answer = response
        else:
            try:
                answer = self._changed(call, super().encode(context, response))
            except EncodeError:
                log.exception("an answer cannot be sent; closing the connection")
                answer = Outcome.CLOSE
        self._give(call, context, self._leave(call, answer))

    # -- the answer leaves

    def _leave(self, call: Exchange, answer: Answer | Outcome) -> Answer | Outcome:
        """What the connection gets: the answer, or NO_RESPONSE while it waits in the outbox, or never comes."""
        rule = call.rule
        if not isinstance(answer, Outcome) and rule is not None and rule.rewriting is not None:
            answer = call.encode(rule.rewriting(call, call.decode(answer)))
        if answer is Outcome.CLOSE or (rule is not None and rule.closes):
            return self._close(call)
        now = self.services.runtime.monotonic()
        due = self._faults.due(call, now, 0 if isinstance(answer, Outcome) else size_of(answer))
        outbox = self._outboxes.get(call.connection)
        if rule is not None:
            if rule.drops:
                self._note(call, "dropped", answer)
                self._outbox(call).put(Waiting(None, NEVER, False, _nothing))
                return Outcome.NO_RESPONSE
            if rule.is_delay_served:
                due += rule.delay_s
            if rule.holds and rule.is_hold_served:
                due = NEVER
        if isinstance(answer, Outcome):  # none is due
            self._note(call, "unanswered", answer)
            return answer
        is_cut = rule is not None and rule.truncate_bytes is not None
        if is_cut:
            assert rule is not None
            answer = whole(answer)[: rule.truncate_bytes]
        outcome = "truncated" if is_cut else "answered"
        if due <= now and not outbox and not is_cut:
            self._note(call, outcome, answer)
            return answer
        if due <= now and not outbox:
            self._note(call, outcome, answer)
            call.connection.send(answer)
            return Outcome.CLOSE
        waiting = Waiting(answer, due, is_cut, partial(self._note, call, outcome, answer))
        self._outbox(call).put(waiting)
        if is_cut:
            self._doomed.add(call.connection)
        if due == NEVER and rule is not None:
            self._faults.hold(rule, partial(self._let_go, call, waiting), call)
        return Outcome.NO_RESPONSE

    def _close(self, call: Exchange) -> Outcome:
        """The connection ends, behind the answers that are still to leave."""
        self._note(call, "closed", Outcome.CLOSE)
        outbox = self._outboxes.get(call.connection)
        if not outbox:
            return Outcome.CLOSE
        outbox.put(Waiting(None, self.services.runtime.monotonic(), True, _nothing))
        self._doomed.add(call.connection)
        return Outcome.NO_RESPONSE

    @staticmethod
    def _changed(call: Exchange, answer: Answer) -> Answer:
        """The broker's answer as the release has it that it passes for, and then a rule."""
        if call.as_release is None and call.change is None:
            return answer
        message = call.decode(answer)
        is_changed = call.as_release is not None and call.as_release(message)
        if call.change is not None:
            message = call.change(message)
            is_changed = True
        return call.encode(message) if is_changed else answer

    def _let_go(self, call: Exchange, waiting: Waiting) -> None:
        waiting.due = self.services.runtime.monotonic()
        self._outbox(call).schedule()

    def _outbox(self, call: Exchange) -> Outbox:
        outbox = self._outboxes.get(call.connection)
        if outbox is None:
            for gone in [each for each in self._outboxes if each.closed]:
                self._outboxes.pop(gone).drop()
                self._doomed.discard(gone)
            outbox = self._outboxes[call.connection] = Outbox(self.services.runtime, call.connection)
        return outbox

    def _note(self, call: Exchange, outcome: str, answer: Answer | Outcome) -> None:
        recorded = call.recorded
        if recorded is None:
            return
        kept, size = None, 0
        if not isinstance(answer, Outcome):
            size = size_of(answer)
            if isinstance(answer, bytes):
                kept = answer
            elif size <= ANSWER_BYTES_MAX:
                kept = whole(answer)
        if outcome != "answered":
            kept = None
        self._faults.requests.answered(recorded, outcome, self._time_ms(), kept, size)


def _nothing() -> None:
    """It never leaves."""
