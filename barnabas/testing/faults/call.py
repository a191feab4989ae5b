"""A request that rules look at, as tests see it."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.broker.requests.registry import AUTHENTICATE_BROKER
from barnabas.storage.disk.disk import FileRegion
from barnabas.testing.faults.shapes import groups, targets, transactional_ids
from barnabas.wire.headers import API_VERSIONS, decode_request_header, decode_response_header
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import API_NAMES, request_type, response_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.requests.dispatch import Answer
    from barnabas.broker.services import Services
    from barnabas.testing.faults.connection import ClientConnection
    from barnabas.testing.faults.shapes import Target, Topic

_FOLLOWER: Final = r"broker-\d+-fetcher-\d+"  # compiled with its first use
_EXTENSION: Final = r"broker-\d+-extension"  # such as the console, which asks any broker anything
# Client ids of the other requests between brokers, by API.
_BETWEEN_BROKERS: Final = {24: r"broker-\d+-add-partitions-to-txn", 27: r"broker-\d+-markers"}
FETCH: Final = 1


class Encoded(msgspec.Struct, gc=False):
    """An answer that needs no encoding any more."""

    frame: Answer


class Call:
    """A request. Tests see `api`, `version`, `client_id`, `client_host`, `node` and `request`, the decoded message, whose
    class is in barnabas.wire.messages; `new_answer()` gives an empty answer to fill. The rest is the engine's."""

    def __init__(
        self,
        connection: ClientConnection,
        services: Services,
        data: bytes,
    ) -> None:
        """`data`: the frame without its size. DecodeError when its header can't be read."""
        header, self.body_start = decode_request_header(data)
        self.api_key = header.api_key
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.client_id = header.client_id
        self.connection = connection
        self.caller = connection.caller
        self.node = services.node_id
        self.data = data
        self.change: Callable[[Any], Any] | None = None  # what a fault does to the broker's answer
        self.as_release: Callable[[Any], bool] | None = None  # likewise an older release: whether anything
        self.is_as_sent = True  # `data` is
        self._services = services

    @property
    def closed(self) -> bool:
        """Whether the client has gone."""
        return self.connection.closed

    # -- for tests

    @property
    def client_host(self) -> str:
        """The peer's address."""
        return self.caller.client_host

    @property
    def api(self) -> str:
        """Kafka's name of the API, such as "Fetch"."""
        return API_NAMES.get(self.api_key, str(self.api_key))

    @cached_property
    def request(self) -> Any:
        """The decoded request. DecodeError."""
        return request_type(self.api_key).decode(self.version, self.data, self.body_start)[0]

    def new_answer(self) -> Any:
        """An answer of this API with nothing in it."""
        return response_type(self.api_key).message_class()

    # -- what it is about

    @property
    def is_internal(self) -> bool:
        """Whether another broker has sent it."""
        if self.api_key == AUTHENTICATE_BROKER:
            return True
        client_id = self.client_id
        if client_id is None or not client_id.startswith("broker-"):
            return False
        if re.fullmatch(_EXTENSION, client_id):
            return True
        between_brokers = _BETWEEN_BROKERS.get(self.api_key)
        if between_brokers is not None:
            return re.fullmatch(between_brokers, client_id) is not None
        return self._is_of_follower

    @cached_property
    def _is_of_follower(self) -> bool:
        """A follower says so in the request, too."""
        if re.fullmatch(_FOLLOWER, self.client_id or "") is None:
            return False
        try:
            request = self.request
        except (DecodeError, KeyError):
            return False
        replica_id = getattr(request, "replica_id", -1)
        state = getattr(request, "replica_state", None)
        return replica_id >= 0 or (state is not None and state.replica_id >= 0)

    def targets(self) -> list[Target]:
        """The topics and partitions it is about; of a fetch those of its session, too, and all topics where null means
        all."""
        found = list(targets(self.request))
        if getattr(self.request, "topics", ()) is None:
            found += [(name, None) for name in sorted(self._services.controller.image.topics)]
        if self.api_key == FETCH:
            found += [each for each in self.session_partitions() if each not in found]
        return found

    def session_partitions(self) -> list[Target]:
        session_id, epoch = self.request.session_id, self.request.session_epoch
        session = self._services.fetch_sessions.get(session_id) if session_id and epoch > 0 else None
        return [] if session is None else list(session.partitions)

    def topics_known(self) -> frozenset[str]:
        """All topics that there are now, by name."""
        return frozenset(self._services.controller.image.topics)

    def groups(self) -> list[str]:
        return list(groups(self.request))

    def transactional_ids(self) -> list[str]:
        return list(transactional_ids(self.request))

    def name_of(self, topic: Topic | None) -> str | None:
        """The name of what is known by name or id."""
        return name_of(topic, self._services)

    def id_of(self, topic: str) -> bytes:
        """The id of a topic; zeros where there is none of that name."""
        found = self._services.controller.image.topics.get(topic)
        return bytes(16) if found is None else found.topic_id

    def time_ms(self) -> int:
        """The broker's clock."""
        return self._services.runtime.time_ms()

    # -- bytes

    def encode(self, answer: Any) -> bytes:
        """The frame of an answer. EncodeError."""
        kind = response_type(self.api_key)
        is_flexible = kind.flexible(self.version) and self.api_key != API_VERSIONS
        body = b"".join(map(_bytes, kind.encode(self.version, answer)))
        head = self.correlation_id.to_bytes(4, "big", signed=True) + (b"\0" if is_flexible else b"")
        return (len(head) + len(body)).to_bytes(4, "big") + head + body

    def decode(self, answer: Answer) -> Any:
        """The message in an answer's frame."""
        data = whole(answer)[4:]
        _, start = decode_response_header(self.api_key, self.version, data)
        return response_type(self.api_key).decode(self.version, data, start)[0]

    def with_request(self, request: Any) -> bytes:
        """The frame with another request in place of its own."""
        body = b"".join(map(_bytes, request_type(self.api_key).encode(self.version, request)))
        return self.data[: self.body_start] + body

    def replace(self, request: Any) -> None:
        """Have another request served in place of its own."""
        self.data = self.with_request(request)
        self.request = request
        self.is_as_sent = False


def name_of(topic: Topic | None, services: Services) -> str | None:
    """The name of a topic by its name or id; None where no topic has the id."""
    if not isinstance(topic, bytes):
        return topic
    found = services.controller.image.topic_by_id(topic)
    return None if found is None else found.name


def whole(answer: Answer) -> bytes:
    """An answer's frame in one piece, what lies in files read."""
    return answer if isinstance(answer, bytes) else b"".join(map(_bytes, answer))


def _bytes(part: Any) -> bytes:
    return part.read() if isinstance(part, FileRegion) else bytes(part)


def size_of(answer: Answer) -> int:
    return len(answer) if isinstance(answer, bytes) else sum(map(len, answer))
