"""Answers with an error, built for any API from the shape of its messages (shapes.py).

Three ways: an answer from nothing but the request (`failed`), a request without what shall fail (`without`), whose
answer the failures are added to (`merged`), and a real answer with some of it replaced (`overwritten`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.testing.faults.shapes import (
    GROUP_KEYS,
    OTHER_KEYS,
    PARTITION_KEYS,
    TOPIC_KEYS,
    TRANSACTION_KEYS,
    Level,
    ListField,
    kind,
    levels,
    list_fields,
    partition_of,
    targets,
    topic_of,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import EncodeError
from barnabas.wire.registry import response_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.testing.faults.shapes import Topic

    Matches = Callable[[Topic | None, int | None], bool]

# Errors of one partition, topic or member, where the answer could also fail as a whole.
SINGLE_ERRORS: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
# APIs whose answer fails as a whole with few errors only: by key.
WHOLE_ERRORS: Final = {
    1: {"FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH", "FETCH_SESSION_TOPIC_ID_ERROR"},
    3: {"REBOOTSTRAP_REQUIRED"},
    24: {"CLUSTER_AUTHORIZATION_FAILED"},
}
# APIs that change nothing, or whose requests may name nothing and mean everything: the broker answers them, and what it
# says is overwritten.
OVERWRITTEN: Final = frozenset((1, 2, 3, 9, 15, 23, 32, 35, 46, 55, 69, 75, 89))

_NAMING: Final = ("topic", "partition", "resource")  # kinds of lists whose elements a rule may be about
_COPIED: Final = frozenset((*TOPIC_KEYS, *PARTITION_KEYS, *GROUP_KEYS, *TRANSACTION_KEYS, *OTHER_KEYS))


class NoSuchError(ValueError):
    """This API's answer, in this version, has no place for the error."""


def has_field(api_key: int, version: int, name: str, value: Any) -> bool:
    """Whether a field of the answer exists in this version; `value` is any that is not the default."""
    answer = response_type(api_key)
    try:
        data = b"".join(answer.encode(version, answer.message_class(**{name: value})))  # type: ignore[arg-type]
    except EncodeError:
        return False
    return bool(getattr(answer.decode(version, data)[0], name))


def depth_of(
    api_key: int, version: int, request: Any, error: ErrorCode, *, single: bool, whole: bool = False
) -> int:
    """How deep the error goes: 0 for the answer as a whole, 1 for the elements of its list, 2 for those within them.
    `single`: one partition or topic is meant; `whole`: all of it. NoSuchError where there is no place for it."""
    root = levels(api_key)
    possible = [0] if root.error is not None and has_field(api_key, version, root.error, -1) else []
    for inner in root.inner:
        if has_field(api_key, version, inner.name, [inner.element()]):
            possible += _depths(inner, request, 1)
    if whole:
        possible = [each for each in possible if each == 0]
    if not possible:
        raise NoSuchError(
            f"API {api_key} version {version} has no place for {error.name} in its answer{' as a whole' if whole else ''}"
        )
    known = WHOLE_ERRORS.get(api_key)
    is_single = single or (error in SINGLE_ERRORS if known is None else error.name not in known)
    return max(possible) if is_single else min(possible)


def _depths(level: Level, asked: Any, depth: int) -> list[int]:
    """The depths from this list on that a request reaches."""
    found = []
    if level.kind is None and not level.asked and level.error is not None:  # in the broker's own answer alone
        found.append(depth)
    for field in level.asked:
        elements = field.elements(asked)
        if elements or elements is None:  # null: all there are
            found += [depth] if level.error is not None else []
            for inner in level.inner if field.is_struct else ():
                found += _depths(inner, elements[0] if elements else None, depth + 1)
    return found


# -- from the request alone


def failed(
    api_key: int, request: Any, error: ErrorCode, depth: int, matches: Matches, message: str | None
) -> Any:
    """An answer in which what matches has failed, and nothing else stands."""
    root = levels(api_key)
    answer = root.element()
    if depth == 0:
        return _fail(answer, root, error, message)
    _fill(answer, root, request, (None, None), _Failing(error, depth, matches, message), 1)
    return answer


class _Failing(msgspec.Struct, frozen=True):
    error: ErrorCode
    depth: int
    matches: Any
    message: str | None
    keeps_errors: bool = False  # that the broker has answered


def _fill(
    answer: Any, level: Level, asked: Any, at: tuple[Topic | None, int | None], failing: _Failing, depth: int
) -> bool:
    """Mirror the lists of the request into the answer; False when nothing of it matches."""
    anything = False
    for inner in level.inner:
        elements = []
        for field in inner.asked:
            for each in field.elements(asked) or ():
                element, place = _mirror(inner, each), _place(inner.kind, each, at)
                if depth == failing.depth:
                    if not failing.matches(*place):
                        continue
                    _fail(element, inner, failing.error, failing.message)
                elif not _fill(element, inner, each, place, failing, depth + 1):
                    continue
                elements.append(element)
        if elements:
            anything = True
            setattr(answer, inner.name, elements)
    return anything


def _mirror(level: Level, asked: Any) -> Any:
    """An element of the answer that names what an element of the request names."""
    element = level.element()
    names = level.element.__annotations__
    if not isinstance(asked, msgspec.Struct):
        name = next(each for each in names if each in _COPIED and type(getattr(element, each)) is type(asked))
        setattr(element, name, asked)
        return element
    for name in asked.__annotations__:
        if name in _COPIED and name in names:
            setattr(element, name, getattr(asked, name))
    for keys, value in ((TOPIC_KEYS[:-1], topic_of(asked)), (PARTITION_KEYS, partition_of(asked))):
        name = next((each for each in keys if each in names), "")
        if name and value is not None and not isinstance(value, bytes) and not getattr(element, name):
            setattr(element, name, value)
    return element


def _place(
    its_kind: str | None, asked: Any, at: tuple[Topic | None, int | None]
) -> tuple[Topic | None, int | None]:
    if its_kind == "topic":
        return topic_of(asked), None
    if its_kind == "partition":
        return at[0], partition_of(asked)
    if its_kind == "resource" and asked.resource_type == 2:
        return asked.resource_name, None
    return at


# What Kafka says in these fields of what has failed, where it is not the schema's default.
_OF_FAILURES: Final[dict[str, Any]] = {
    "base_offset": -1,
    "committed_offset": -1,
    "end_offset": -1,
    "generation_id": -1,
    "high_watermark": -1,
    "leader_epoch": -1,
    "leader_id": -1,
    "low_watermark": -1,
    "node_id": -1,
    "offset": -1,
    "port": -1,
    "producer_epoch": -1,
    "producer_id": -1,
    "records": b"",
    "timestamp": -1,
}


def _fail(element: Any, level: Level, error: ErrorCode, message: str | None) -> Any:
    assert level.error is not None
    for name in level.element.__annotations__:
        if name in _OF_FAILURES:
            setattr(element, name, _OF_FAILURES[name])
    setattr(element, level.error, int(error))
    if message is not None and "error_message" in level.element.__annotations__:
        element.error_message = message
    return element


# -- around what the broker does


def without(request: Any, matches: Matches) -> Any | None:
    """The request without what matches; None when nothing is left of its topics."""
    left, had, has = _without(request, None, matches)
    return left if has or not had else None


def _without(message: Any, topic: Topic | None, matches: Matches) -> tuple[Any, bool, bool]:
    """The message, whether it named a topic or partition, and whether it still does."""
    changed: dict[str, Any] = {}
    had = has = False
    for field in list_fields(type(message)):
        elements = getattr(message, field.name)
        if elements and (field.is_struct or kind(field) in _NAMING):
            kept = []
            for element in elements:
                left, its_had, its_has = _left(field, element, topic, matches)
                kept += [] if left is None else [left]
                had, has = had or its_had, has or its_has
            changed[field.name] = kept
    return (msgspec.structs.replace(message, **changed) if had else message), had, has


def _left(
    field: ListField, element: Any, topic: Topic | None, matches: Matches
) -> tuple[Any | None, bool, bool]:
    """As `_without`, of an element of a list; None when nothing is left of it."""
    its_kind = kind(field)
    place = _place(its_kind, element, (topic, None))
    if field.is_struct:
        element, had, has = _without(element, place[0], matches)
        if had:
            return (element if has else None), True, has
    if its_kind not in _NAMING:
        return element, False, False
    return (None, True, False) if matches(*place) else (element, True, True)


def merged(api_key: int, answer: Any, failures: Any) -> Any:
    """The broker's answer with the failed elements added to it."""
    _merge(answer, failures, levels(api_key))
    return answer


def _merge(into: Any, failures: Any, level: Level) -> None:
    for inner in level.inner:
        added = getattr(failures, inner.name)
        if not added:
            continue
        present = list(getattr(into, inner.name) or ())
        for element in added:
            same = next((each for each in present if _name(each) == _name(element)), None)
            if same is None:
                present.append(element)
            else:  # what is there already has been overwritten
                _merge(same, element, inner)
        setattr(into, inner.name, present)


def _name(element: Any) -> tuple[Any, ...]:
    return tuple(getattr(element, key, None) for key in sorted(_COPIED))


def overwritten(
    api_key: int, answer: Any, error: ErrorCode, depth: int, matches: Matches, message: str | None
) -> Any:
    """The broker's answer with the error in what matches. Elements that have failed by themselves keep their own error: they
    have not been done."""
    root = levels(api_key)
    keeps_errors = api_key not in OVERWRITTEN
    if depth:
        _overwrite(answer, root, (None, None), _Failing(error, depth, matches, message, keeps_errors), 1)
        return answer
    assert root.error is not None
    has_failed = keeps_errors and getattr(answer, root.error)
    return answer if has_failed else _fail(root.element(), root, error, message)


def _overwrite(
    answer: Any, level: Level, at: tuple[Topic | None, int | None], failing: _Failing, depth: int
) -> None:
    for inner in level.inner:
        elements = getattr(answer, inner.name) or []
        for number, element in enumerate(elements):
            place = _place(inner.kind, element, at)
            if depth < failing.depth:
                _overwrite(element, inner, place, failing, depth + 1)
            elif (
                inner.error is not None
                and _means(inner, element, place, failing)
                and not (failing.keeps_errors and getattr(element, inner.error))
            ):
                elements[number] = _fail(_mirror(inner, element), inner, failing.error, failing.message)


def _means(level: Level, element: Any, at: tuple[Topic | None, int | None], failing: _Failing) -> bool:
    """Whether an element matches; one that its request has not asked for does by what lies in it (a log directory)."""
    if failing.matches(*at) or level.asked or level.kind is not None:
        return bool(failing.matches(*at))
    return any(failing.matches(topic, partition) for topic, partition in targets(element))
