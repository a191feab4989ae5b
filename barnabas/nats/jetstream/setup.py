"""Finds the stream of a binding, and creates consumers that deliver only the binding's subjects.

A consumer with several filter subjects needs nats-server 2.10. An older server ignores them silently and delivers everything,
so its answer is compared with the request. A server that can't filter (it is old, or the subjects overlap) delivers
everything, and ingress filters; that costs bandwidth, and is impossible for a stream that removes acknowledged messages.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.binding.binding import KV
from barnabas.nats.binding.subjects import REST, covers, overlap
from barnabas.nats.client.errors import NatsError
from barnabas.nats.jetstream.api import (
    DUPLICATE_FILTERS,
    FILTERS_OVERLAP,
    LIMITS,
    STREAM_NOT_FOUND,
    ConsumerConfig,
    ConsumerInfo,
    JetStreamApi,
    JetStreamError,
    StreamInfo,
)
from barnabas.runtime.procedures import Call

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.nats.binding.binding import Binding

log = logging.getLogger("barnabas.nats")

NAME_MAX: Final = 128
_NAME_ALPHABET: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Blocked(NatsError):
    """An administrator has to act, as the text says."""


class Consumer(msgspec.Struct):
    """A consumer that exists. `takes_all`: the server filters nothing."""

    info: ConsumerInfo
    takes_all: bool


def consumer_name(*parts: str) -> str:
    """A consumer's name made of these parts. Characters that servers do not take become "_"."""
    name = "-".join(part for part in parts if part)
    return "".join(each if each in _NAME_ALPHABET else "_" for each in name)[:NAME_MAX]


async def find_stream(api: JetStreamApi, binding: Binding) -> StreamInfo:
    """The stream that the binding reads. Blocked when there is none, or more than one."""
    name = binding.stream or await _stream_of(api, binding.patterns)
    try:
        return await Call[StreamInfo](lambda done: api.stream_info(name, done))
    except JetStreamError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        if binding.mode == KV:
            text = f"there is no bucket {binding.bucket}: make it (nats kv add {binding.bucket})"
        else:
            text = f"there is no stream {name}; make it, or name another one with nats.stream"
        raise Blocked(text) from error


async def _stream_of(api: JetStreamApi, patterns: Iterable[str]) -> str:
    found: set[str] = set()
    for pattern in patterns:
        names = await Call[tuple[str, ...]](
            lambda done, pattern=pattern: api.stream_names(pattern, done)  # type: ignore[misc]
        )
        if not names:
            raise Blocked(f"no stream takes {pattern}; make one, or name one with nats.stream")
        found.update(names)
    if len(found) > 1:
        raise Blocked(
            f"the subjects lie in several streams, {', '.join(sorted(found))}: name one with nats.stream"
        )
    return found.pop()


def unmatched_patterns(stream: StreamInfo, patterns: Iterable[str]) -> list[str]:
    """The patterns that no subject of the stream matches: perhaps the wrong stream is configured."""
    config = stream.config
    if config.mirror is not None or config.sources or not config.subjects:
        return []
    taken = config.subjects
    return [pattern for pattern in patterns if not any(overlap(pattern, each) for each in taken)]


def needs_filter(stream: StreamInfo, patterns: tuple[str, ...]) -> bool:
    """Whether the stream may hold subjects that no pattern matches. Messages from before a change of its subjects do not
    count: ingress compares subjects again."""
    if REST in patterns:
        return False
    config = stream.config
    if config.mirror is not None or config.sources or not config.subjects:
        return True
    return not all(any(covers(pattern, subject) for pattern in patterns) for subject in config.subjects)


async def make_consumer(
    api: JetStreamApi, stream: StreamInfo, config: ConsumerConfig, patterns: tuple[str, ...]
) -> Consumer:
    """Creates a consumer with this configuration for the patterns, or for everything if the server can't filter. Blocked if
    that is impossible."""
    name = stream.config.name
    if not needs_filter(stream, patterns):
        return Consumer(await create(api, name, config), takes_all=True)
    try:
        filtered = with_filters(config, patterns)
        info = await create(api, name, filtered)
    except JetStreamError as error:
        if error.err_code not in (FILTERS_OVERLAP, DUPLICATE_FILTERS):
            raise
        why = f"the server refuses to filter by {', '.join(patterns)}: {error.description}"
    else:
        if sorted(info.config.filters) == sorted(patterns):
            return Consumer(info, takes_all=False)
        await delete(api, name, info.name)
        why = "the server filters by one subject at most (it is older than 2.10)"
    if stream.config.retention != LIMITS:
        raise Blocked(
            f"{why}, and what the stream {name} delivers it also removes: bind one subject, or one topic for each"
        )
    log.warning("stream %s: %s; it delivers everything, and other subjects are dropped here", name, why)
    return Consumer(await create(api, name, config), takes_all=True)


def with_filters(config: ConsumerConfig, patterns: tuple[str, ...]) -> ConsumerConfig:
    """The configuration with these filter subjects. Every server knows the form for one."""
    if len(patterns) == 1:
        return msgspec.structs.replace(config, filter_subject=patterns[0], filter_subjects=None)
    return msgspec.structs.replace(config, filter_subject="", filter_subjects=patterns or None)


def create(api: JetStreamApi, stream: str, config: ConsumerConfig) -> Call[ConsumerInfo]:
    return Call(lambda done: api.create_consumer(stream, config, done))


async def delete(api: JetStreamApi, stream: str, name: str) -> None:
    """Removes a consumer, if there is one."""
    try:
        await Call[bool](lambda done: api.delete_consumer(stream, name, done))
    except NatsError as error:
        log.debug("consumer %s of stream %s could not be removed: %s", name, stream, error)
