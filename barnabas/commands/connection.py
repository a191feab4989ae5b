"""How commands reach a cluster: their common options, kafka-python's clients, and Kafka's errors.

kafka-python is imported here, when a command needs it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from time import monotonic, sleep, time  # noqa: TID251 - a client's process: it has no runtime, and nothing simulates it
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.commands.client_properties import client_settings, read_properties
from barnabas.commands.options import CommandFailed, Option, Options
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import RequestHeader, decode_response_header, encode_request_header

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

    from kafka.admin import KafkaAdminClient

    from barnabas.wire.message_type import MessageType

Result = TypeVar("Result")

DEFAULT_SERVER: Final = "127.0.0.1:9092"
BOOTSTRAP_SERVER: Final = Option(
    "bootstrap-server", "The servers to connect to.", "HOST:PORT,...", default=DEFAULT_SERVER
)
COMMAND_CONFIG: Final = Option("command-config", "A file with properties of the client.", "FILE")
CONNECTION: Final = (BOOTSTRAP_SERVER, COMMAND_CONFIG)

_LIBRARY_VERSION: Final = 3  # its first number
_TIMEOUT_MS: Final = 60_000  # Kafka's default.api.timeout.ms: how long a tool waits for a broker
_ATTEMPT_MS: Final = 2000  # of connecting; a refusal is noticed after it
_RETRY_S: Final = 0.1
# Errors that are over when a coordinator or a leader is there
_PASSING: Final = frozenset(
    [
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ]
)


class ServerError(Exception):
    """An error code of a response; the text is Kafka's."""

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(message or message_of(code))
        self.code = code


def message_of(code: int) -> str:
    """The text that Kafka's clients show for a code without a text."""
    return ErrorCode.of(code).message


_EXCEPTIONS: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ClusterAuthorizationException",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "GroupAuthorizationException",
    ErrorCode.NON_EMPTY_GROUP: "GroupNotEmptyException",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "TopicAuthorizationException",
}


def java_text(error: Exception) -> str:
    """As Java's clients show an error: the class of its exception, and the text."""
    code = error.code if isinstance(error, ServerError) else getattr(error, "errno", None)
    if not isinstance(code, int):
        return reason_of(error)
    name = ErrorCode.of(code).name
    camel = "".join(part.capitalize() for part in name.removesuffix("_EXCEPTION").split("_"))
    exception = _EXCEPTIONS.get(ErrorCode.of(code), f"{camel}Exception")
    return f"org.apache.kafka.common.errors.{exception}: {reason_of(error)}"


def raise_for(code: int, message: str | None = None) -> None:
    """ServerError unless the code is 0."""
    if code:
        raise ServerError(code, message)


def reason_of(error: Exception) -> str:
    """Kafka's text for an error of the server, of kafka-python or of this package."""
    code = getattr(error, "errno", None)
    if isinstance(error, ServerError) or not isinstance(code, int):
        return str(error.args[0]) if error.args else type(error).__name__
    return message_of(code)


def kafka() -> ModuleType:
    """kafka-python. CommandFailed with one line when it is not installed, or an older one is."""
    try:
        import kafka as library
        from kafka.version import __version__ as version
    except ModuleNotFoundError:
        version = "0"
    if int(version.partition(".")[0]) < _LIBRARY_VERSION:
        raise CommandFailed("this command needs kafka-python 3: pip install 'barnabas[cli]'")
    logging.basicConfig(level=logging.ERROR, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)")
    return library


def connect(kind: Any, options: Options, properties: Mapping[str, str], **settings: Any) -> Any:
    """A client of kafka-python, connected to the servers of --bootstrap-server. CommandFailed when none answers.

    `properties`: the client's, as Kafka names them; `settings`: arguments of kafka-python.
    """
    arguments = {
        "bootstrap_timeout_ms": _TIMEOUT_MS,
        "reconnect_backoff_max_ms": 1000,
        **client_settings(properties, kind.DEFAULT_CONFIG),
        **settings,
        "bootstrap_servers": options.value("bootstrap-server").split(","),
    }
    errors = kafka().errors
    log, failures = logging.getLogger("kafka"), _Failures()
    log.addHandler(failures)
    log.propagate = False
    timeout_s = arguments["bootstrap_timeout_ms"] / 1000
    deadline = monotonic() + timeout_s
    said = ""
    try:
        while True:
            left_ms = (deadline - monotonic()) * 1000
            try:
                return _connected(kind, {**arguments, "bootstrap_timeout_ms": min(_ATTEMPT_MS, left_ms)})
            except errors.KafkaTimeoutError:
                what = f"no connection to {options.value('bootstrap-server')}{failures.reason}"
                if failures.is_refusal or monotonic() >= deadline:
                    raise CommandFailed(f"gave up after {timeout_s:g} s" if what == said else what) from None
                if not said:
                    sys.stderr.write(f"{what}; trying for {timeout_s:g} s\n")
                    said = what
            except errors.KafkaError as error:
                raise CommandFailed(reason_of(error)) from None
    finally:
        log.removeHandler(failures)
        log.propagate = True


def _connected(kind: Any, arguments: Mapping[str, Any]) -> Any:
    """A client of this kind. A constructor of kafka-python that raises leaves its thread to go on trying, so this ends it."""
    networks: list[Any] = []

    def network(**settings: Any) -> Any:
        networks.append(kind.DEFAULT_CONFIG["kafka_client"](**settings))
        return networks[-1]

    try:
        return kind(**arguments, kafka_client=network)
    except BaseException:
        for each in networks:
            each.close()
        raise


class _Failures(logging.Handler):
    """Keeps what kafka-python reports while it connects.

    It tries until the timeout whatever the error is, also after a login that was refused and a certificate that is not trusted,
    and has no other way to tell.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""
        self.is_refusal = False

    @property
    def reason(self) -> str:
        """What follows `no connection to HOST:PORT`."""
        if "ECONNREFUSED" in self.last:
            return f": {self.last}; start a broker there, or name another with --bootstrap-server"
        return f": {self.last}" if self.last else ""

    def emit(self, record: logging.LogRecord) -> None:
        error = next((each for each in record.args or () if isinstance(each, Exception)), None)
        if error is not None and not self.is_refusal and type(error).__name__ != "KafkaTimeoutError":
            self.last = str(error).rpartition("Error: ")[2]
            self.is_refusal = type(error).__name__ == "SaslAuthenticationFailedError" or (
                "CERTIFICATE_VERIFY_FAILED" in self.last
            )


class Cluster:
    """The admin client of a command.

    A context manager. KafkaError and ServerError are what its methods raise.
    """

    def __init__(self, options: Options, config: str = "command-config") -> None:
        """`config`: the option with the file of properties."""
        library = kafka()
        file = options.value(config)
        properties = {} if file is None else read_properties(file)
        self.errors: type[Exception] = library.errors.KafkaError
        self.admin: KafkaAdminClient = connect(library.KafkaAdminClient, options, properties)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close(self.admin)

    def ask(self, request: Any, node: int | None = None) -> Any:
        """Send a request that the admin client has no method for to a node, or to any. The response."""
        # kafka-python has no public way to do this; its own methods are made of these two.
        manager = self.admin._manager
        return manager.run(manager.send, request, node)

    def ask_coordinator(self, request: Any, group: str) -> Any:
        """Send a request to the coordinator of a group."""
        return self.ask(request, self.coordinator(group))

    def coordinator(self, group: str) -> int:
        """The id of the group's coordinator, as any broker says now."""
        manager = self.admin._manager
        manager.cluster._coordinators.clear()  # else it would be the one that was found first
        return int(manager.run(self.admin._find_coordinator_id, group))

    def topics(self, names: list[str] | None = None) -> list[dict[str, Any]]:
        """The metadata of topics, or of all; topics that do not exist have an error_code."""
        found: list[dict[str, Any]] = self.admin.describe_topics(names)
        return found


def close(client: Any) -> None:
    """Close a client of kafka-python, whose threads may report errors of connections that it is closing itself."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    client.close()


class WireRequest:
    """A message of barnabas.wire as a request of kafka-python, for APIs that kafka-python does not have.

    It has what kafka-python's connection uses of a request, of the request's header, and of the class of the response.
    """

    _min_version = _max_version = None

    def __init__(self, request: MessageType[Any], response: MessageType[Any], message: Any) -> None:
        self.API_KEY = request.api_key
        self.API_VERSION: int | None = None  # the connection sets it to the highest that both have
        self.min_version, self.max_version = request.min_version, request.max_version
        self.name = request.name
        self.header = self
        self.correlation_id = 0
        self._request, self._response, self._message = request, response, message
        self._client_id = ""
        self._body = b""

    def with_header(self, correlation_id: int, client_id: str) -> None:
        """What the header says besides API and version."""
        self.correlation_id, self._client_id = correlation_id, client_id

    def encode(self, *, framed: bool, header: bool) -> bytes:
        """The frame."""
        assert framed
        assert header
        assert self.API_VERSION is not None
        parts: list[Any] = [
            encode_request_header(
                RequestHeader(self.API_KEY, self.API_VERSION, self.correlation_id, self._client_id)
            )
        ]
        self._request.writers[self.API_VERSION](self._message, parts.append)
        body = b"".join(parts)
        return len(body).to_bytes(4, "big") + body

    def expect_response(self) -> bool:
        """Always."""
        return True

    def get_response_class(self) -> WireRequest:
        """What reads the response: this."""
        return self

    def parse_header(self, buffer: Any) -> WireRequest:
        """The header of the response, of which the correlation id is used."""
        data = buffer.read()
        assert self.API_VERSION is not None
        self.correlation_id, position = decode_response_header(self.API_KEY, self.API_VERSION, data)
        self._body = data[position:]
        return self

    def decode(self, _: Any) -> Any:
        """The response."""
        assert self.API_VERSION is not None
        return self._response.decode(self.API_VERSION, self._body)[0]


def now_ms() -> int:
    """The wall clock's time."""
    return int(time() * 1000)


def retried(call: Callable[[], Result], timeout_ms: int = _TIMEOUT_MS) -> Result:
    """The result of a call that may meet a coordinator or a leader which is not there yet."""
    deadline = monotonic() + timeout_ms / 1000
    while True:
        try:
            return call()
        except Exception as error:
            code = error.code if isinstance(error, ServerError) else getattr(error, "errno", None)
            if code not in _PASSING or monotonic() >= deadline:
                raise
        sleep(_RETRY_S)
