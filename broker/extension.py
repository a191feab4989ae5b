"""The port of extensions: a broker's interface for parts that Kafka does not have.

- An extension adds configs of topics and brokers, which every controller validates (controller/extension.py).
- It starts when the partitions are open and stops before they are closed. It runs on the loop's thread and never blocks it.
- It follows the committed metadata (`Controller.add_listener`), appends to partitions that this broker leads
  (`Partition.append`), observes those that it follows (`Partition.observer`), and commits offsets of groups.
- It may keep a follower out of the ISR, delay the responses to changes of metadata until it has applied them, and has metrics.
- It asks any broker of the cluster, and may report its state, which other extensions can show.

A node gets a list of extensions; one that has nothing to do on this node loads no more than its configs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from barnabas.broker.requests.context import PENDING, LocalReply, Outcome, RequestContext
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.security.caller import own_caller
from barnabas.controller.extension import ConfigExtension
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.controller_channel import ControllerChannel
    from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
    from barnabas.broker.cluster.peer_client import AskBroker
    from barnabas.broker.cluster.producer_ids import ProducerIdAllocator
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.config.listeners import Endpoint
    from barnabas.broker.groups.coordinator import GroupCoordinator
    from barnabas.broker.metrics.families import Family
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.broker.partitions.replica import LocalReplica, RemoteReplica
    from barnabas.broker.services import Services
    from barnabas.controller.metadata.controller import Controller
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import Disk

Done = Callable[[], object]
Answered = Callable[[Any, ErrorCode], object]  # the response and NONE, or None and an error; once
Ask = Callable[[int, int, msgspec.Struct, Answered], object]  # API key, version, request


class Report(msgspec.Struct, frozen=True):
    """The state of an extension, to be shown to an operator."""

    name: str
    rows: Iterable[Mapping[str, Any]]  # of values that JSON has; made one at a time, as each is asked for


class ExtensionHost(msgspec.Struct, eq=False):
    """The broker that an extension runs on, as far as an extension may use it."""

    runtime: Runtime
    config: BrokerConfig
    node_id: int
    cluster_id: str
    controller: Controller  # the committed metadata, and its listeners
    controller_channel: ControllerChannel  # requests to the active controller, such as CreateTopics
    partitions: PartitionManager  # those that are led or followed here
    groups: GroupCoordinator  # which broker coordinates a group
    producer_ids: ProducerIdAllocator
    endpoints: Mapping[str, Endpoint]  # where clients reach this broker, by listener name
    inter_broker_authentication: InterBrokerAuthentication | None  # None: there are no other brokers
    ask_here: Ask  # a request to this broker itself
    ask: AskBroker  # a request to any broker of the cluster, in this broker's name
    reports: Callable[[], list[Report]]  # of the extensions that run on this broker
    disk: Disk
    directory: str  # of the extension's own files, on `disk`


def _ask_none(_node_id: int, _key: int, _version: int, _request: msgspec.Struct, answered: Answered) -> None:
    answered(None, ErrorCode.NETWORK_EXCEPTION)


def host_of(
    services: Services,
    disk: Disk,
    directory: str,
    ask: AskBroker = _ask_none,
    reports: Callable[[], list[Report]] = list,
) -> ExtensionHost:
    """The interface of a broker, for its extensions."""
    return ExtensionHost(
        runtime=services.runtime,
        config=services.config,
        node_id=services.node_id,
        cluster_id=services.cluster_id,
        controller=services.controller,
        controller_channel=services.controller_channel,
        partitions=services.partitions,
        groups=services.groups,
        producer_ids=services.producer_ids,
        endpoints=services.endpoints,
        inter_broker_authentication=services.inter_broker_authentication,
        ask_here=partial(_ask_here, services),
        ask=ask,
        reports=reports,
        disk=disk,
        directory=directory,
    )


def _ask_here(
    services: Services, api_key: int, version: int, request: msgspec.Struct, answered: Answered
) -> None:
    reply = LocalReply(
        lambda response: answered(response, ErrorCode.NONE),
        lambda: answered(None, ErrorCode.UNKNOWN_SERVER_ERROR),
    )
    context = RequestContext(services, reply, api_key, version, 0, None, own_caller(services.node_id))
    response: msgspec.Struct | Outcome = REGISTRATIONS[api_key].handler(context, request)
    if response is not PENDING:
        context.complete(response)


class RunningExtension(Protocol):
    """An extension on a broker. All calls on the loop's thread."""

    def may_take_over(self, partition: LocalReplica, replica: RemoteReplica) -> bool:
        """Whether a follower that has caught up with a partition led here may join the ISR, where it can become the leader."""

    def when_settled(self, done: Done) -> None:
        """Call back when the changes of metadata so far are applied; soon in any case."""

    def leave(self, done: Done) -> None:
        """Before `stop`, while leadership can still move: finish work that only this broker can do. Call back soon in any case."""

    def stop(self) -> None:
        """Stop for good; blocking."""

    def metrics(self) -> Iterable[Family]:
        """Its metrics, where they are served."""

    def report(self) -> Report | None:
        """Its state; None where there is nothing to show."""


class Extension(ConfigExtension, Protocol):
    """One extension, before it runs."""

    def start(self, host: ExtensionHost) -> RunningExtension | None:
        """Start on this broker, whose partitions are open; None where there is nothing to do. Blocking."""


class Extensions:
    """The extensions of a node. Before `start`, and when none runs, every callback comes at once."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self._extensions = extensions
        self._running: list[RunningExtension] = []

    def start(self, host: ExtensionHost) -> None:
        for extension in self._extensions:
            running = extension.start(host)
            if running is not None:
                self._running.append(running)

    def stop(self) -> None:
        for extension in self._running:
            extension.stop()

    def may_take_over(self, partition: LocalReplica, replica: RemoteReplica) -> bool:
        return all(extension.may_take_over(partition, replica) for extension in self._running)

    def when_settled(self, done: Done) -> None:
        _in_sequence([extension.when_settled for extension in self._running], done)

    def leave(self, done: Done) -> None:
        _in_sequence([extension.leave for extension in self._running], done)

    def metrics(self) -> list[Callable[[], Iterable[Family]]]:
        return [extension.metrics for extension in self._running]

    def reports(self) -> list[Report]:
        return [report for extension in self._running if (report := extension.report()) is not None]


def _in_sequence(calls: Sequence[Callable[[Done], object]], done: Done) -> None:
    if calls:
        calls[0](lambda: _in_sequence(calls[1:], done))
    else:
        done()
