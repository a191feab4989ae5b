"""All metrics of a node: a broker, a controller, or both."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.config.listeners import format_address
from barnabas.broker.metrics.clients import client_metrics, quota_metrics, security_metrics
from barnabas.broker.metrics.controller import controller_metrics, link_metrics, quorum_metrics
from barnabas.broker.metrics.families import OPENMETRICS_END, exposition, one
from barnabas.broker.metrics.groups import group_metrics, transaction_metrics
from barnabas.broker.metrics.listener import MetricsListener
from barnabas.broker.metrics.partitions import (
    follower_metrics,
    log_metrics,
    partition_metrics,
    topic_metrics,
)
from barnabas.broker.metrics.process import (
    EventLoopLag,
    disk_metrics,
    event_loop_metrics,
    process_metrics,
    wall_clock_metrics,
)
from barnabas.broker.metrics.requests import RequestWindow, connection_metrics, request_metrics
from barnabas.controller.config.validators import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from barnabas.broker.metrics.families import Source
    from barnabas.broker.metrics.health import Health
    from barnabas.broker.network.authentication_counts import AuthenticationCounts
    from barnabas.broker.network.connection import Connections
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.quotas.connection_rates import ConnectionRates
    from barnabas.broker.requests.dispatch import Dispatcher
    from barnabas.broker.requests.request_metrics import RequestMetrics
    from barnabas.broker.services import Services
    from barnabas.controller.link.traffic import LinkTraffic
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.compaction.cleaner import LogCleaner

log = logging.getLogger("barnabas.metrics")


def node_sources(
    services: Services,
    dispatcher: Dispatcher,
    connections: Connections,
    cleaner: LogCleaner,
    quotas: tuple[ClientQuotas, ConnectionRates] | None,
    authentications: Mapping[str, AuthenticationCounts],
    state: int,
    max_lag: Callable[[], int],
    traffic: LinkTraffic,
    lag: EventLoopLag | None = None,
    window: RequestWindow | None = None,
) -> list[Source]:
    """`authentications`: by listener. `state`: Kafka's BrokerState. `max_lag()`: of followers here.
    `traffic`: of the links to other nodes. `lag` and `window`: where they are measured."""
    config, controller, manager = services.config, services.controller, services.log_manager
    sources: list[Source] = []
    if config.is_broker:
        partitions_max = config.barnabas_metrics_partitions_max
        sources += [
            lambda: [
                one(
                    "kafka_server_kafkaserver_brokerstate",
                    state,
                    "1 starting, 2 recovering logs, 3 running, 6 in controlled shutdown, 7 stopping",
                )
            ],
            partial(topic_metrics, services.partitions.topic_stats, partitions_max),
            lambda: partition_metrics(
                services.partitions,
                services.runtime.time_ms(),
                config.transaction_max_timeout_ms,
                partitions_max,
            ),
            partial(log_metrics, manager, cleaner),
            lambda: follower_metrics(max_lag()),
            lambda: request_metrics(dispatcher.metrics()),
            partial(
                connection_metrics,
                connections,
                services.purgatory,
                services.fetch_sessions,
                None if lag is None else lag.idle,
            ),
            partial(group_metrics, services.groups, services.partitions, partitions_max),
            partial(transaction_metrics, services.transactions, services.add_partitions_to_txn),
        ]
        if window is not None:
            sources.append(window.families)
    quorum = services.quorum
    sources += [
        partial(controller_metrics, controller, is_controller=config.is_controller),
        lambda: quorum_metrics(config.node_id, controller, None if quorum is None else quorum()),
        partial(link_metrics, traffic),
        partial(wall_clock_metrics, manager.wall_clock),
        partial(quota_metrics, quotas),
        partial(security_metrics, authentications, services.authorizer, len(controller.image.acls.by_id)),
        partial(client_metrics, services.client_metrics),
        process_metrics,
        disk_metrics,
    ]
    if lag is not None:
        sources.append(partial(event_loop_metrics, lag))
    return sources


class NodeMetrics:
    """The listener of a node, the lag of its event loop and the times of its last requests, which are measured only where metrics
    are served."""

    def __init__(
        self,
        runtime: Runtime,
        host: str,
        port: int,
        sources: Callable[[EventLoopLag, RequestWindow], Sequence[Source] | None],
        requests: Callable[[], Iterable[RequestMetrics]],
        health: Callable[[], Health],
    ) -> None:
        """`sources(lag, window)`: None before there are any. `requests()`: what is measured of requests. ConfigError when the address
        cannot be listened on."""
        self._sources = sources
        self._lag = EventLoopLag(runtime)
        try:
            self._listener = MetricsListener(runtime, host, port, self._page, health)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {format_address(host, port)}: {error.strerror or error}; free it or choose another in "
                f"barnabas.metrics.listener"
            ) from error
        self._window = RequestWindow(runtime, requests)
        self._lag.start()

    def close(self) -> None:
        self._listener.close()
        self._lag.stop()
        self._window.stop()

    def _page(self, openmetrics: bool) -> Iterator[bytes] | None:
        sources = self._sources(self._lag, self._window)
        return None if sources is None else make_page(sources, openmetrics=openmetrics)


def make_page(sources: Sequence[Source], *, openmetrics: bool = False) -> Iterator[bytes]:
    """All families of these sources. One that fails is logged and left out, the others are served."""
    for source in sources:
        try:
            yield from exposition(source(), openmetrics=openmetrics)
        except Exception:
            log.exception("a source of metrics has failed")
    if openmetrics:
        yield OPENMETRICS_END
