"""Where in a message topics, partitions, groups, transactional ids and error codes stand, found out from its class.

Kafka's messages are alike: lists of topics that hold lists of partitions, and answers that repeat the lists of their
requests with an error code in each element. So what a fault needs to know of an API is in the names and types of the
fields, and an API that is added needs nothing here.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.wire.registry import request_type, response_type

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC_KEYS: Final = ("name", "topic", "topic_name", "topic_id")
PARTITION_KEYS: Final = ("index", "partition", "partition_index", "partition_id")
GROUP_KEYS: Final = ("group_id",)
TRANSACTION_KEYS: Final = ("transactional_id",)
OTHER_KEYS: Final = (
    "resource_type", "resource_name", "member_id", "group_instance_id", "feature", "key", "log_dir", "producer_id",
)  # fmt: skip
_KINDS: Final = {
    "topic": TOPIC_KEYS,
    "partition": PARTITION_KEYS,
    "group": GROUP_KEYS,
    "transaction": TRANSACTION_KEYS,
    "resource": ("resource_name",),
    "member": ("member_id",),
    "feature": ("feature",),
    "key": ("key",),
}
_NOT_ASKED: Final = ("forgotten_topics_data", "cursor")  # lists of a request that its answer does not repeat
_TRANSACTIONAL_IDS: Final = (*TRANSACTION_KEYS, "v3_and_below_transactional_id")
_LIST = re.compile(r"list\[(\w+)\]")

Topic = str | bytes  # a name, or an id
Target = tuple[Topic | None, int | None]  # topic and partition, as a request names them


class ListField(msgspec.Struct, frozen=True):
    """A field that holds a list: of structs (`element`), or of numbers or strings. `outer`: it is one of the elements of
    that list, where an answer does not repeat a list of its request but what lies in it (AlterReplicaLogDirs)."""

    name: str
    element: Any
    outer: str = ""

    @property
    def is_struct(self) -> bool:
        return issubclass(self.element, msgspec.Struct)

    def elements(self, message: Any) -> list[Any] | None:
        """What it holds in a message; None where that means all there are, and where there is no such field."""
        if not self.outer:
            held: list[Any] | None = getattr(message, self.name, None)
            return held
        return [each for holder in getattr(message, self.outer) for each in getattr(holder, self.name)]


_list_fields: dict[Any, tuple[ListField, ...]] = {}


def list_fields(message_class: Any) -> tuple[ListField, ...]:
    """The fields of a message class that are lists, in order."""
    found = _list_fields.get(message_class)
    if found is None:
        found = _list_fields[message_class] = _find_list_fields(message_class)
    return found


def _find_list_fields(message_class: Any) -> tuple[ListField, ...]:
    names = {**vars(import_module(message_class.__module__)), "int": int, "str": str, "bytes": bytes}
    found = []
    for name, annotation in message_class.__annotations__.items():
        match = _LIST.search(annotation)
        if match is not None and isinstance(names.get(match[1]), type):
            found.append(ListField(name, names[match[1]]))
    return tuple(found)


def error_field(message_class: Any) -> str | None:
    """The field that holds the error code of this message or element."""
    names = message_class.__annotations__
    return next((name for name in ("error_code", "partition_error_code") if name in names), None)


@cache
def kind(field: ListField) -> str | None:
    """What the elements of a list are: "topic", "partition", "group", ...; None when it is none of these."""
    if not field.is_struct:
        if "partition" in field.name or field.element is int:
            return "partition" if field.element is int and "partition" in field.name else None
        return next((each for each in ("topic", "group", "transaction", "key") if each in field.name), None)
    names = field.element.__annotations__
    for each, keys in _KINDS.items():
        if any(key in names for key in keys) and (each != "topic" or _holds_topics(field)):
            return each
    return None


def _holds_topics(field: ListField) -> bool:
    """`name` is not a topic's everywhere (the protocols of JoinGroup, ...)."""
    names = field.element.__annotations__
    nested = [each.name for each in list_fields(field.element)]
    return (
        "topic" in field.name
        or "topic" in names
        or "topic_name" in names
        or any("partition" in each for each in nested)
        or ("topic_id" in names)
    )


class Level(msgspec.Struct, frozen=True):
    """A list of an answer whose elements have an error code, or hold such lists, and the lists of the request that
    they answer. The root is the answer itself and stands for no list."""

    name: str
    element: Any
    kind: str | None
    error: str | None
    asked: tuple[ListField, ...]
    inner: tuple[Level, ...]

    @property
    def depth(self) -> int:
        """Of the deepest error code: 0 for one of the answer itself."""
        return max([each.depth + 1 for each in self.inner], default=0)


@cache
def levels(api_key: int) -> Level:
    """The root of an API's answer."""
    request, response = request_type(api_key).message_class, response_type(api_key).message_class
    return _level("", response, None, (), request)


def _level(
    name: str,
    element: Any,
    its_kind: str | None,
    asked: tuple[ListField, ...],
    request: Any | None,
) -> Level:
    inner = []
    for field in list_fields(element):
        if field.is_struct:
            below = _inner(field, request)
            if below is not None:
                inner.append(below)
    return Level(name, element, its_kind, error_field(element), asked, tuple(inner))


def _inner(field: ListField, request: Any | None) -> Level | None:
    its_kind = kind(field)
    candidates = () if request is None else list_fields(request)
    asked = tuple(each for each in candidates if kind(each) == its_kind and each.name not in _NOT_ASKED)
    names = field.element.__annotations__
    if its_kind is not None and not asked:  # one list deeper than in the answer
        asked = tuple(
            ListField(each.name, each.element, holder.name)
            for holder in candidates
            if holder.is_struct
            for each in list_fields(holder.element)
            if kind(each) == its_kind
        )
    if its_kind is None and "log_dir" not in names:  # one answer for each that was asked, in order
        asked = tuple(each for each in candidates if each.is_struct)
        its_kind = kind(asked[0]) if asked and "name" in names else None
    below = next((each.element for each in asked if each.is_struct), None)
    level = _level(field.name, field.element, its_kind, asked, below)
    return level if level.error is not None or level.inner else None


def topic_of(element: Any) -> Topic | None:
    """The topic that an element of a list of topics names, or a plain one is."""
    if isinstance(element, str | bytes):
        return element
    for key in TOPIC_KEYS:
        value = getattr(element, key, None)
        if value and (isinstance(value, str) or any(value)):
            found: Topic = value
            return found
    return None


def partition_of(element: Any) -> int | None:
    """The partition that an element of a list of partitions names, or a plain one is."""
    if isinstance(element, int):
        return element
    for key in PARTITION_KEYS:
        value = getattr(element, key, None)
        if isinstance(value, int):
            return value
    return None


def targets(message: Any) -> Iterator[Target]:
    """What a request is about: (topic, partition), without a partition where it names none. The topics of elements that
    are resources (ConfigResource.Type 2) are among them."""
    yield from _targets(message, None)


def _targets(message: Any, topic: Topic | None) -> Iterator[Target]:
    for field in list_fields(type(message)):
        if field.name in _NOT_ASKED:
            continue
        its_kind = kind(field)
        for element in getattr(message, field.name) or ():
            if its_kind == "topic":
                name = topic_of(element)
                inner = list(_targets(element, name)) if field.is_struct else []
                yield from inner or [(name, None)]
            elif its_kind == "partition" and topic is not None:
                yield topic, partition_of(element)
            elif its_kind == "resource" and getattr(element, "resource_type", 2) == 2:
                yield element.resource_name, None
            elif field.is_struct:
                yield from _targets(element, topic)


@cache
def names_topics(api_key: int) -> bool:
    """Whether requests of an API can name topics."""
    return _names_topics(request_type(api_key).message_class)


def _names_topics(message_class: Any) -> bool:
    return any(
        kind(field) in ("topic", "resource") or (field.is_struct and _names_topics(field.element))
        for field in list_fields(message_class)
        if field.name not in _NOT_ASKED
    )


@cache
def names_groups(api_key: int) -> bool:
    """Whether requests of an API can name groups."""
    message_class = request_type(api_key).message_class
    names = message_class.__annotations__
    return (
        "group_id" in names
        or "key_type" in names
        or any(kind(field) == "group" for field in list_fields(message_class))
    )


def groups(message: Any) -> Iterator[str]:
    """The groups that a request names."""
    group_id = getattr(message, "group_id", None)
    if group_id:
        yield group_id
    if getattr(message, "key_type", None) == 0:  # FindCoordinator
        yield from [message.key] if message.key else message.coordinator_keys
    for field in list_fields(type(message)):
        if kind(field) == "group":
            for element in getattr(message, field.name) or ():
                yield element if isinstance(element, str) else element.group_id


@cache
def names_transactions(api_key: int) -> bool:
    """Whether requests of an API can name transactional ids."""
    message_class = request_type(api_key).message_class
    names = message_class.__annotations__
    return (
        any(each in names for each in _TRANSACTIONAL_IDS)
        or "key_type" in names
        or any(kind(field) == "transaction" for field in list_fields(message_class))
    )


def transactional_ids(message: Any) -> Iterator[str]:
    """The transactional ids that a request names."""
    for name in _TRANSACTIONAL_IDS:
        transactional_id = getattr(message, name, None)
        if transactional_id:
            yield transactional_id
    if getattr(message, "key_type", None) == 1:  # FindCoordinator
        yield from [message.key] if message.key else message.coordinator_keys
    for field in list_fields(type(message)):
        if kind(field) == "transaction":
            for element in getattr(message, field.name) or ():
                yield element if isinstance(element, str) else element.transactional_id
