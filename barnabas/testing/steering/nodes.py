"""Nodes that die, stop, stand still, come back, join and leave. Functions run on the broker's loop.

A node that is killed comes back with the bytes that it had written, in memory or in files, and recovers; what would have been
lost with the machine's power is not imitated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from barnabas.testing.broker_node import BrokerNode
from barnabas.testing.contents import awake_services_of
from barnabas.testing.operations import LOOK_AGAIN_S, RequestFailed, awake_services, when
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.unregister_broker import UnregisterBrokerRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from barnabas.testing.operations import Done

UNREGISTER_BROKER: Final = 64


class Numbered(Protocol):
    """A node of whatever kind."""

    node_id: int


N = TypeVar("N", bound=Numbered)


class UnknownNode(LookupError):
    """There is no such node."""


def node_of(nodes: Sequence[N], node_id: int) -> N:
    """UnknownNode."""
    for node in nodes:
        if node.node_id == node_id:
            return node
    raise UnknownNode(f"there is no node {node_id}; there are {[node.node_id for node in nodes]}")


def kill(nodes: Sequence[BrokerNode], node_id: int) -> None:
    """As kill -9. Nothing happens where it does not run."""
    node_of(nodes, node_id).drop()


def pause(nodes: Sequence[BrokerNode], node_id: int) -> None:
    """As SIGSTOP: connections stay, nothing is answered. ValueError where it does not run."""
    node = node_of(nodes, node_id)
    if not node.is_running:
        raise ValueError(f"node {node_id} does not run")
    node.runtime.pause()


def resume(nodes: Sequence[BrokerNode], node_id: int) -> None:
    """As SIGCONT."""
    node_of(nodes, node_id).runtime.resume()


def stop(nodes: Sequence[BrokerNode], node_id: int, done: Done) -> None:
    """In order: others take over what it leads first."""
    node = node_of(nodes, node_id)
    if not node.is_running:
        done(None)
        return
    node.runtime.resume()

    def left() -> None:
        node.stop()
        done(None)

    node.node.begin_stop(left)


def start(nodes: Sequence[BrokerNode], node_id: int, done: Done) -> None:
    """`done` when it serves. Nothing happens where it runs."""
    node = node_of(nodes, node_id)
    if not node.is_running:
        node.start(node.loop)
    _when_ready(nodes, node, done)


def restart(nodes: Sequence[BrokerNode], node_id: int, done: Done) -> None:
    """Stop it in order, and start it again."""

    def stopped(error: Exception | None) -> None:
        if error is not None:
            done(error)
        else:
            start(nodes, node_id, done)

    stop(nodes, node_id, stopped)


def _when_ready(nodes: Sequence[BrokerNode], node: BrokerNode, done: Done) -> None:
    def told() -> None:
        done(None if node.failure is None else RuntimeError(node.failure))

    when(nodes, lambda: node.is_ready or node.failure is not None, told, done)


def add(nodes: list[BrokerNode], make: Callable[[int], BrokerNode], done: Done) -> BrokerNode:
    """`make(node_id)` makes it; a broker that is no controller. It is among `nodes` at once, and serves at `done`."""
    first = nodes[0]
    if not first.controller_port:
        raise ValueError(
            "a broker of one node has no controller that others could find: begin with two or more"
        )
    node = make(max(each.node_id for each in nodes) + 1)
    node.properties["process.roles"] = "broker"
    node.properties["controller.quorum.voters"] = first.properties["controller.quorum.voters"]
    nodes.append(node)
    try:
        node.start(first.loop)
    except BaseException:
        nodes.remove(node)
        raise
    _when_ready(nodes, node, done)
    return node


def remove(nodes: list[BrokerNode], node_id: int, done: Done) -> None:
    """Of those that were added: stopped in order, and forgotten by the cluster; replicas that it has stay in the metadata,
    as with Kafka. ValueError where it is a controller."""
    node = node_of(nodes, node_id)
    if node.controller_port or len(nodes) == 1:
        raise ValueError(f"node {node_id} is one of the controllers, which stay; kill it, or stop it")

    def stopped(error: Exception | None) -> None:
        if error is not None:
            done(error)
            return
        nodes.remove(node)
        node.release_ports()
        unregister()

    def unregister() -> None:
        awake_services(nodes)[0].controller_channel.send(
            UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=node_id), answered
        )

    def answered(response: Any, error: ErrorCode) -> None:
        code = error or ErrorCode.of(response.error_code)
        if code == ErrorCode.INVALID_REQUEST:  # the controller has not seen it go yet
            nodes[0].loop.call_later(LOOK_AGAIN_S, unregister)
        elif code:
            done(RequestFailed(code, f"node {node_id} is not forgotten"))
        else:
            when(nodes, is_forgotten, lambda: done(None), done)

    def is_forgotten() -> bool:
        return not any(node_id in services.controller.image.brokers for services in awake_services_of(nodes))

    stop(nodes, node_id, stopped)
