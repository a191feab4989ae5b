"""`barnabas format`: prepares the empty directories of a node, with the first users of SCRAM, as kafka-storage does.

A node makes what it needs when it starts, so this is for clusters whose clients and brokers log in by SCRAM.
"""

from __future__ import annotations

import os
import re
import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.broker.cluster.kafka_metadata import KafkaMetadata, metadata_directory
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.partitions.log_directories import log_manager_settings
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.operations.features import first_features
from barnabas.controller.operations.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_NAMES,
    SALT_RANDOM_BYTES,
    credential_record,
    salt_of,
    salted_password,
)
from barnabas.extensions import EXTENSIONS
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.storage.disk.disk import RealDisk
from barnabas.storage.errors import LogDirectoryError
from barnabas.storage.manager.manager import LogManager

if TYPE_CHECKING:
    import msgspec

    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.messages.metadata_records import UserScramCredentialRecord

ONE_NODE: Final = "set barnabas.cores=1, and the node.id and the log.dirs (they end in node-<id>) of one node"
_FIELDS: Final = ("name", "salt", "iterations", "password", "saltedpassword")
_FIELD: Final = re.compile(r'\s*([a-z]+)\s*=\s*(?:"([^"]*)"|([^,"]*))\s*(?:,|$)')


def format_storage(
    file: str | None, settings: Iterable[str], cluster_id: str | None, users: Sequence[str]
) -> int:
    """The process's exit code. Prints one line with the result, or with the reason of a failure. `users`: of --add-scram."""
    try:
        config = BrokerConfig.load(None if file is None else Path(file), os.environ, settings, EXTENSIONS)
        config.check_is_one_node(ONE_NODE)
        runtime = AsyncioRuntime()
        try:
            found_id = _format(config, runtime, cluster_id, [parse_user(each, runtime) for each in users])
        finally:
            runtime.close()
    except (ConfigError, LogDirectoryError, MetadataError, OSError) as error:
        print(f"barnabas: {error}", file=sys.stderr)  # noqa: T201 - the terminal is the interface here
        return 1
    print(  # noqa: T201 - the terminal is the interface here
        f"formatted {', '.join(config.log_dirs)} for cluster {found_id}, SCRAM credentials: {len(users)}"
    )
    return 0


def _format(
    config: BrokerConfig, runtime: Runtime, cluster_id: str | None, users: Sequence[msgspec.Struct]
) -> str:
    if not config.is_controller:
        raise ConfigError(
            "process.roles: the metadata of a cluster begins on a node with the role controller"
        )
    disk = RealDisk()
    log_manager = open_directories(disk, config, runtime, cluster_id)
    metadata = KafkaMetadata(disk, config, log_manager, runtime)
    try:
        metadata.enter()
        controller = Controller(LocalMetadataLog(disk, metadata.journal_directory, runtime))
        controller.open()
        try:
            if controller.image.features:
                raise MetadataError(
                    f"{metadata.directory} has the metadata of a cluster already; a running broker's users are set with "
                    f"kafka-configs"
                )
            failures: list[str] = []
            controller.run(
                lambda image: _begin(image, config, users),
                lambda _: None,
                lambda _, message: failures.append(message),
            )
            if failures:
                raise MetadataError(failures[0])
        finally:
            controller.close()
    finally:
        metadata.unlock()
        log_manager.close()
    return log_manager.directories.cluster_id


def open_directories(
    disk: RealDisk, config: BrokerConfig, runtime: Runtime, cluster_id: str | None
) -> LogManager:
    """The log directories of a node, open; those without a cluster id have this one, or a new one for None. LogDirectoryError."""
    log_manager = LogManager(
        disk,
        config.log_dirs,
        runtime,
        node_id=config.node_id,
        cluster_id=cluster_id,
        settings=log_manager_settings(config),
        metadata_dir=metadata_directory(config),
    )
    log_manager.open()
    return log_manager


def _begin(image: MetadataImage, config: BrokerConfig, users: Sequence[msgspec.Struct]) -> Decision[None]:
    return Decision([*first_features(image, config), *users], None)


def parse_user(text: str, runtime: Runtime) -> UserScramCredentialRecord:
    """The credential of `MECHANISM=[name=...,password=...]`. ConfigError names what is wrong, and no password."""
    mechanism, equals, fields = text.partition("=")
    if not equals:
        raise ConfigError("--add-scram: Failed to find equals sign in SCRAM argument")
    number = MECHANISM_NAMES.get(mechanism.strip())
    if number is None:
        raise ConfigError(
            f"--add-scram: {mechanism[:100]!r} is no mechanism; it must be one of {', '.join(MECHANISM_NAMES)}"
        )
    values = _parse_fields(fields.strip())
    name = _required(values, "name")
    iterations = _iterations(values.get("iterations"))
    salted = values.get("saltedpassword")
    if (salted is None) == ("password" not in values):
        raise ConfigError('--add-scram: You must supply one of "password" or "saltedpassword" to add-scram')
    if salted is not None:
        salt = _base64("salt", _required(values, "salt"))
        return credential_record(name, number, salt, _base64("saltedpassword", salted), iterations)
    given = values.get("salt")
    salt = salt_of(runtime.random_bytes(SALT_RANDOM_BYTES)) if given is None else _base64("salt", given)
    password = salted_password(values["password"].encode(), number, salt, iterations)
    return credential_record(name, number, salt, password, iterations)


def _parse_fields(text: str) -> Mapping[str, str]:
    if not (text.startswith("[") and text.endswith("]")):
        raise ConfigError("--add-scram: Expected configuration string to start with [ and to end with ]")
    text = text[1:-1]
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        field = _FIELD.match(text, position)
        if field is None or field[1] not in _FIELDS or field[1] in found:
            raise ConfigError(
                f'--add-scram: field {len(found) + 1} is none of {", ".join(_FIELDS)}, each once, as name=value or name="value"'
            )
        found[field[1]] = field[3].strip() if field[2] is None else field[2]
        position = field.end()
    return found


def _required(values: Mapping[str, str], name: str) -> str:
    if not values.get(name):
        raise ConfigError(f'--add-scram: You must supply "{name}" to add-scram')
    return values[name]


def _iterations(text: str | None) -> int:
    if text is None:
        return ITERATIONS_MIN
    if not text.isdecimal() or not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
        raise ConfigError(
            f"--add-scram: The 'iterations' value must be >= {ITERATIONS_MIN} and <= {ITERATIONS_MAX}"
        )
    return int(text)


def _base64(name: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ConfigError(f"--add-scram: Failed to decode given {name}; it must be base64") from None
