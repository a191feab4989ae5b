"""Finding the stream of a binding, and making a consumer that takes the binding's subjects and no others.

A consumer of several subjects needs nats-server 2.10: an older one passes filter_subjects over without a word and
delivers everything. So what the server says that it made is compared with what was asked for. Where it can't filter
(an old server, or subjects that overlap) it delivers everything and the filtering is done here, which costs the way of
what is not wanted, and is no way at all where a message is removed because a consumer has had it.
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
from barnabas.nats.jetstream.steps import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.nats.binding.binding import Binding

log = logging.getLogger("barnabas.nats")

NAME_MAX: Final = 128
_NAME_ALPHABET: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Blocked(NatsError):
    """It can't go on before somebody does something; the text says what."""


class Consumer(msgspec.Struct):
    """A consumer as it was made. `takes_all`: the server filters nothing."""

    info: ConsumerInfo
    takes_all: bool


def consumer_name(*parts: str) -> str:
    """A name for a consumer that says whose it is: characters that servers do not take there become "_"."""
    name = "-".join(part for part in parts if part)
    return "".join(each if each in _NAME_ALPHABET else "_" for each in name)[:NAME_MAX]


async def find_stream(api: JetStreamApi, binding: Binding) -> StreamInfo:
    """The stream that the binding reads. Blocked when there is none, or when it would be several."""
    name = binding.stream or await _stream_of(api, binding.patterns)
    try:
        return await Answer[StreamInfo](lambda done: api.stream_info(name, done))
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
        names = await Answer[tuple[str, ...]](
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
    """The patterns that nothing can match that comes to the stream: somebody may have named another one than he meant."""
    config = stream.config
    if config.mirror is not None or config.sources or not config.subjects:
        return []
    taken = config.subjects
    return [pattern for pattern in patterns if not any(overlap(pattern, each) for each in taken)]


def needs_filter(stream: StreamInfo, patterns: tuple[str, ...]) -> bool:
    """Whether the stream may hold subjects that no pattern matches. What it took before its own subjects were changed
    does not count here: subjects are looked at again when messages come."""
    if REST in patterns:
        return False
    config = stream.config
    if config.mirror is not None or config.sources or not config.subjects:
        return True
    return not all(any(covers(pattern, subject) for pattern in patterns) for subject in config.subjects)


async def make_consumer(
    api: JetStreamApi, stream: StreamInfo, config: ConsumerConfig, patterns: tuple[str, ...]
) -> Consumer:
    """A consumer as `config` says, of the patterns, or of everything where the server can't filter. Blocked where it must."""
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
    log.warning(
        "stream %s: %s; it delivers everything, and what is not wanted is passed over here", name, why
    )
    return Consumer(await create(api, name, config), takes_all=True)


def with_filters(config: ConsumerConfig, patterns: tuple[str, ...]) -> ConsumerConfig:
    """The same with these filters and no others; every server knows the form for one."""
    if len(patterns) == 1:
        return msgspec.structs.replace(config, filter_subject=patterns[0], filter_subjects=None)
    return msgspec.structs.replace(config, filter_subject="", filter_subjects=patterns or None)


def create(api: JetStreamApi, stream: str, config: ConsumerConfig) -> Answer[ConsumerInfo]:
    return Answer(lambda done: api.create_consumer(stream, config, done))


async def delete(api: JetStreamApi, stream: str, name: str) -> None:
    """Have a consumer removed; that it is not there is as good."""
    try:
        await Answer[bool](lambda done: api.delete_consumer(stream, name, done))
    except NatsError as error:
        log.debug("consumer %s of stream %s could not be removed: %s", name, stream, error)
