"""The registry of one broker: its store, its answers, and the port that it has where the controls are not there."""

from __future__ import annotations

import json
import threading  # noqa: TID251 - requests come in threads
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from barnabas.runtime.http import HttpError
from barnabas.testing.control.http import Answer, ControlServer, Request
from barnabas.testing.schema_registry.errors import InvalidSchema, RegistryError
from barnabas.testing.schema_registry.formats import AVRO
from barnabas.testing.schema_registry.messages import ErrorMessage
from barnabas.testing.schema_registry.routes import CONTENT_TYPE, PREFIX, REGISTRY
from barnabas.testing.schema_registry.store import Draft, Reference, State, Store

if TYPE_CHECKING:
    from barnabas.testing.broker_loop import BrokerLoop

HOST: Final = "127.0.0.1"


class SchemaRegistry:
    """Schemas in memory, empty when it is made. It listens once its URL has been asked for."""

    def __init__(self, loop: BrokerLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._store = Store()
        self._server: ControlServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """What clients take as `schema.registry.url`. BrokerFailed while the broker does not run."""
        self._loop.call(self._listen)
        return f"http://{HOST}:{self._port}/{PREFIX}"

    def begin(self) -> None:
        """The broker has been started: listen again, on the same port. OSError when another program has taken it."""
        if self._port:
            self._loop.call(self._listen)

    def _listen(self) -> None:
        """On the loop, so that two threads do not do it at once."""
        if self._server is None:
            self._server = ControlServer(self._loop.loop, self._loop.call, HOST, self._port, self.answer)
            self._port = self._server.server.port

    def end(self) -> None:
        """The broker is being stopped."""
        if self._server is not None:
            self._server.close()
            self._server = None

    # -- for the test itself

    def register(
        self,
        subject: str,
        schema: object,
        schema_type: str = AVRO,
        references: Iterable[tuple[str, str, int]] = (),
    ) -> int:
        """Register a schema, given as text or as what its JSON is; its id. `references` are (name, subject, version).
        RegistryError."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        draft = Draft(
            schema=text, schema_type=schema_type, references=[Reference(*each) for each in references]
        )
        with self._lock:
            return self._store.register(subject, draft, normalize=False).schema.id

    def schemas(self, subject: str) -> list[str]:
        """The texts of a subject's versions, from the first to the last; empty where there is no such subject."""
        with self._lock:
            versions = self._store.versions(subject) if subject in self._store.subjects() else []
        return [each.schema.parsed.text for each in versions]

    def subjects(self) -> list[str]:
        """The names of all subjects."""
        with self._lock:
            return self._store.subjects()

    # -- requests

    def answer(self, request: Request) -> Answer:
        """Serve a request to a path below PREFIX; in any thread."""
        try:
            found, given = REGISTRY.find(request)
            with self._lock:
                return Answer(200, found.call(self._store, given, request), CONTENT_TYPE)
        except RegistryError as error:
            return _failure(error.status, error.code, str(error))
        except HttpError as error:
            has_route = error.status not in (404, 405)
            message = str(error) if has_route else f"HTTP {error.status} {HTTPStatus(error.status).phrase}"
            return _failure(error.status, error.status, message)
        except RecursionError:  # a chain of types, each in the next one
            too_deep = InvalidSchema("its types are nested too deeply")
            return _failure(too_deep.status, too_deep.code, str(too_deep))

    # -- its state as a whole

    def state(self) -> State:
        """A copy."""
        with self._lock:
            return self._store.state.copy()

    def restore(self, state: State | None) -> None:
        """Hold what a copy has; None: nothing."""
        with self._lock:
            self._store.state = State() if state is None else state.copy()

    def restore_subjects(self, before: State | None, kept: tuple[str, ...]) -> None:
        """As `Store.restore_subjects`; None: there were none."""
        with self._lock:
            self._store.restore_subjects(before or State(), kept)


def _failure(status: int, code: int, message: str) -> Answer:
    return Answer(status, ErrorMessage(code, message), CONTENT_TYPE)
