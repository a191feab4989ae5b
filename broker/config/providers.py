"""Config providers (KIP-297, KIP-421): `${provider:path:key}` in a value is replaced by what a file or a variable has.

Only the node's own properties declare providers (`config.providers`): a dynamic config, which anyone who may alter configs
has written, can refer to one of them and add none (CVE-2024-31141). A reference to an unknown provider, file entry or
variable stays as it is, as in Kafka; a replaced value is not searched again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from barnabas.broker.config.sources import parse_properties
from barnabas.controller.config.validators import ConfigError

PROVIDERS: Final = "config.providers"
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
_BEGIN: Final = "${"
_END: Final = "}"

Lookup = Callable[[str, str], str | None]  # the value of (path, key); None: there is none. ConfigError

log = logging.getLogger("barnabas.node")


class ConfigProviders:
    """The providers that the properties declare. ConfigError for one that can't be used."""

    def __init__(self, given: Mapping[str, str], environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._lookups: dict[str, Lookup] = {}
        for name in filter(None, map(str.strip, given.get(PROVIDERS, "").split(","))):
            prefix = f"{PROVIDERS}.{name}."
            class_name = given.get(f"{prefix}class", "").strip()
            make = _MAKERS.get(class_name.removeprefix(_PACKAGE))
            if class_name and make is None:
                raise ConfigError(
                    f"{prefix}class: this version has FileConfigProvider, DirectoryConfigProvider and "
                    f"EnvVarConfigProvider, no {class_name}"
                )
            if make is not None:
                params = f"{prefix}param."
                own = {key.removeprefix(params): given[key] for key in given if key.startswith(params)}
                self._lookups[name] = make(own, environ)

    def resolve(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """The values with their references replaced. ConfigError when a file can't be read; its text has no values."""
        if not self._lookups or not any(_BEGIN in text for text in values.values()):
            return values
        return {name: self._resolve(text) if _BEGIN in text else text for name, text in values.items()}

    def resolve_stored(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """As `resolve`, for dynamic values: one that can't be resolved stays as it is, and is logged by its name."""
        resolved = dict(values)
        for name, text in values.items():
            try:
                resolved.update(self.resolve({name: text}))
            except ConfigError as error:
                log.warning("the dynamic value of %s can't be resolved: %s", name, error)
        return resolved

    def _resolve(self, text: str) -> str:
        return "".join(self._pieces(text))

    def _pieces(self, text: str) -> Iterator[str]:
        position = 0
        while True:
            begin = text.find(_BEGIN, position)
            end = text.find(_END, begin)
            if begin < 0 or end < 0:
                yield text[position:]
                return
            provider, colon, rest = text[begin + len(_BEGIN) : end].partition(":")
            if not colon:  # no reference
                yield text[position : begin + len(_BEGIN)]
                position = begin + len(_BEGIN)
                continue
            yield text[position:begin]
            path, colon, key = rest.partition(":")
            if not colon:
                path, key = "", path
            lookup = self._lookups.get(provider)
            found = None if lookup is None else lookup(path, key)
            position = end + len(_END)
            yield text[begin:position] if found is None else found


def _is_allowed(path: Path, allowed: list[Path]) -> bool:
    return not allowed or any(path.is_relative_to(each) for each in allowed)


def _allowed_paths(params: Mapping[str, str]) -> list[Path]:
    paths = [Path(each.strip()) for each in params.get("allowed.paths", "").split(",") if each.strip()]
    for path in paths:
        if not path.is_absolute():
            raise ConfigError(f"Path {path} is not absolute")
        if not path.exists():
            raise ConfigError(f"Path {path} does not exist")
    return paths


def _normal(path: str) -> Path:
    """Without `..`, so that it can't leave the allowed paths."""
    return Path(os.path.normpath(path))


def _of_files(params: Mapping[str, str], _environ: Mapping[str, str]) -> Lookup:
    """`${file:path:key}`: an entry of a properties file."""
    allowed = _allowed_paths(params)

    def lookup(path: str, key: str) -> str | None:
        file = _normal(path)
        if not path or not _is_allowed(file, allowed):
            return None
        try:
            text = file.read_bytes().decode("utf-8", "replace")
        except OSError:
            raise ConfigError(f"Could not read properties from file {path}") from None
        return parse_properties(text).get(key)

    return lookup


def _of_directories(params: Mapping[str, str], _environ: Mapping[str, str]) -> Lookup:
    """`${directory:path:key}`: the content of a file of the directory, as Kubernetes mounts secrets."""
    allowed = _allowed_paths(params)

    def lookup(path: str, key: str) -> str | None:
        directory = _normal(path)
        file = directory / key
        if not path or not key or os.sep in key or not _is_allowed(file, allowed) or not file.is_file():
            return None
        try:
            return file.read_bytes().decode("utf-8", "replace")
        except OSError:
            raise ConfigError(f"Could not read file {file} for property {key}") from None

    return lookup


def _of_variables(params: Mapping[str, str], environ: Mapping[str, str]) -> Lookup:
    """`${env:key}`: a variable of the environment."""
    try:
        pattern = re.compile(params.get("allowlist.pattern", ".*"), re.DOTALL)
    except re.error as error:
        raise ConfigError(f"allowlist.pattern of EnvVarConfigProvider: {error}") from None

    def lookup(path: str, key: str) -> str | None:
        if path:
            raise ConfigError(f"Path is not supported for EnvVarConfigProvider, invalid value '{path}'")
        return environ.get(key) if pattern.fullmatch(key) else None

    return lookup


_MAKERS: Final[Mapping[str, Callable[[Mapping[str, str], Mapping[str, str]], Lookup]]] = {
    "FileConfigProvider": _of_files,
    "DirectoryConfigProvider": _of_directories,
    "EnvVarConfigProvider": _of_variables,
}
