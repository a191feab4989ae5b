"""`barnabas cluster`: the id of a cluster, its brokers, and the end of a broker's registration, as kafka-cluster.sh."""

from __future__ import annotations

from typing import Final

from barnabas.commands.connection import (
    BOOTSTRAP_SERVER,
    COMMAND_CONFIG,
    Cluster,
    ServerError,
    WireRequest,
    java_text,
    raise_for,
)
from barnabas.commands.options import CommandFailed, Option, Options, Tool, UsageError
from barnabas.commands.terminal import row, say
from barnabas.wire.messages.unregister_broker import (
    UNREGISTER_BROKER_REQUEST,
    UNREGISTER_BROKER_RESPONSE,
    UnregisterBrokerRequest,
)

_OPTIONS: Final = (
    BOOTSTRAP_SERVER._replace(short="b"),
    COMMAND_CONFIG._replace(short="c"),
    Option("config", "As --command-config (deprecated).", "FILE"),
    Option("id", "With unregister, the broker.", "NUMBER", int, short="i"),
    Option("include-fenced-brokers", "With list-endpoints, also brokers that are fenced."),
)


def _run(options: Options) -> int:
    command = options.words[0] if options.words else ""
    if command not in _COMMANDS:
        raise UsageError(f"The command is one of {', '.join(_COMMANDS)}")
    if command == "unregister":
        options.require("id")
    if options.has("config"):
        if options.has("command-config"):
            raise UsageError("--config and --command-config cannot be specified together.")
        say(
            "Option --config has been deprecated and will be removed in a future version. Use --command-config instead."
        )
    with Cluster(options, "config" if options.has("config") else "command-config") as cluster:
        try:
            _COMMANDS[command](cluster, options)
        except (ServerError, cluster.errors) as error:
            raise CommandFailed(java_text(error)) from None
    return 0


def _print_id(cluster: Cluster, _: Options) -> None:
    say(f"Cluster ID: {cluster.admin.describe_cluster()['cluster_id']}")


def _unregister(cluster: Cluster, options: Options) -> None:
    message = UnregisterBrokerRequest(broker_id=options.value("id"))
    response = cluster.ask(WireRequest(UNREGISTER_BROKER_REQUEST, UNREGISTER_BROKER_RESPONSE, message))
    raise_for(response.error_code, response.error_message)
    say(f"Broker {options.value('id')} is no longer registered.")


def _list_endpoints(cluster: Cluster, options: Options) -> None:
    brokers = [
        broker
        for broker in cluster.admin.describe_cluster()["brokers"]
        if options.has("include-fenced-brokers") or not broker.get("is_fenced")
    ]
    racks = [len(broker["rack"]) for broker in brokers if broker["rack"]]
    widths = [10, max([len(broker["host"]) for broker in brokers] or [100]), 10, max(racks or [10]), 10, 15]
    say(row(["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"], widths))
    for broker in sorted(brokers, key=lambda each: int(each["broker_id"])):
        state = "fenced" if broker.get("is_fenced") else "unfenced"
        rack = broker["rack"] or "null"
        cells = [broker["broker_id"], broker["host"], broker["port"], rack, state, "broker"]
        say(row(cells, widths))


_COMMANDS: Final = {
    "cluster-id": _print_id,
    "unregister": _unregister,
    "list-endpoints": _list_endpoints,
}

TOOL: Final = Tool(
    "cluster",
    "kafka-cluster.sh",
    "cluster-id prints the id of the cluster, list-endpoints its brokers, unregister ends the registration of a broker that is "
    "gone for good.",
    _OPTIONS,
    _run,
    "|".join(_COMMANDS),
)
