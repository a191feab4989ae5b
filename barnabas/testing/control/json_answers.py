"""An answer from JSON: what a rule over HTTP is given becomes a message of barnabas.wire.messages.

Its fields are those of the message, in snake_case, bytes as base64. Records may be base64, too (batches as they go over
the wire), or a list of records. A test says topics by name; whether a version names them or gives their ids is seen to
here, when the request comes.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import msgspec

from barnabas.testing.control.messages import NewRecord
from barnabas.testing.faults.call import FETCH
from barnabas.testing.faults.shapes import TOPIC_KEYS, list_fields, partition_of
from barnabas.testing.seeding import seed_of
from barnabas.wire.primitives import EncodeError
from barnabas.wire.record_batch import iterate_headers
from barnabas.wire.records import Record, build_batch
from barnabas.wire.registry import API_NAMES, response_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barnabas.testing.faults.call import Call

_RECORDS: Final = "Records"  # the annotation of such fields in generated messages
_NAMES: Final = tuple(key for key in TOPIC_KEYS if key != "topic_id")


def answering(api_key: int, fields: dict[str, Any]) -> Callable[[Call], Any]:
    """What answers requests of an API so. ValueError."""
    message_class = response_type(api_key).message_class
    try:
        given = msgspec.convert(fields, _twins(message_class.__module__)[message_class.__name__])
    except msgspec.ValidationError as error:
        raise ValueError(f"this is no answer of {API_NAMES[api_key]}: {error}") from None
    _message(given, message_class, 0)  # what is wrong with its records is said now

    def answer(call: Call) -> Any:
        message = _message(given, message_class, call.time_ms())
        if api_key == FETCH and call.request.session_epoch <= 0:
            _complete(call, message)
        return _named(call, message)

    return answer


# -- the shape of its JSON


@cache
def _twins(module_name: str) -> dict[str, Any]:
    """For each struct of a module of messages one that JSON can be read into: any field may be missing, none be unknown."""
    module = import_module(module_name)
    found: dict[str, Any] = {}
    for name, each in vars(module).items():
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__ == module_name:
            known = {**found, _RECORDS: bytes | list[NewRecord] | None}
            hints = get_type_hints(each, localns=known)
            found[name] = msgspec.defstruct(
                name,
                [
                    (field, hints[field] | msgspec.UnsetType, msgspec.UNSET)
                    for field in each.__struct_fields__
                ],
                forbid_unknown_fields=True,
            )
    return found


def _message(given: Any, message_class: Any, now_ms: int) -> Any:
    """The message that a twin stands for."""
    module = import_module(message_class.__module__)
    values: dict[str, Any] = {}
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if value is msgspec.UNSET:
            continue
        if message_class.__annotations__[name] == _RECORDS:
            value = _batch(value, now_ms) if isinstance(value, list) else value
        elif isinstance(value, list):
            value = [
                _message(each, getattr(module, type(each).__name__), now_ms)
                if isinstance(each, msgspec.Struct)
                else each
                for each in value
            ]
        elif isinstance(value, msgspec.Struct):
            value = _message(value, getattr(module, type(value).__name__), now_ms)
        values[name] = value
    if values.get("records") and "high_watermark" in message_class.__annotations__:
        for _, header in iterate_headers(values["records"]):
            values["high_watermark"] = max(header.next_offset, values.get("high_watermark", 0))
    return message_class(**values)


def _batch(records: list[NewRecord], now_ms: int) -> bytes:
    """Records without an offset have the one behind the record before; the first has 0."""
    built: list[Record] = []
    for each in records:
        seed = seed_of(each.seed())
        least = built[-1].offset + 1 if built else 0
        offset = least if each.offset is None else each.offset
        if offset < least:
            raise ValueError(f"offsets ascend: {offset} comes after {least - 1}")
        timestamp = now_ms if each.timestamp is None else each.timestamp
        built.append(Record(offset, timestamp, seed.key, seed.value, seed.headers))
    return build_batch(built, base_offset=built[0].offset) if built else b""


# -- what depends on the request


def _complete(call: Call, answer: Any) -> None:
    """The answer to a fetch that begins a session, or has none, names all partitions of the request: those that the test
    does not name have nothing new."""
    from barnabas.wire.messages.fetch import FetchableTopicResponse, PartitionData

    told = {
        (call.name_of(each.topic or each.topic_id), partition.partition_index)
        for each in answer.responses
        for partition in each.partitions
    }
    for asked in call.request.topics:
        name = call.name_of(asked.topic or asked.topic_id)
        missing = [each for each in asked.partitions if (name, partition_of(each)) not in told]
        if missing:
            answer.responses.append(
                FetchableTopicResponse(
                    topic=asked.topic,
                    topic_id=asked.topic_id,
                    partitions=[
                        PartitionData(
                            partition_index=each.partition, high_watermark=each.fetch_offset, records=b""
                        )
                        for each in missing
                    ],
                )
            )


def _named(call: Call, answer: Any) -> Any:
    """With the topics' names and ids, or those of them that this version has."""
    topics = list(_topics(answer))
    known = []
    for topic, key in topics:
        name, topic_id = getattr(topic, key), topic.topic_id
        known.append(
            (name or call.name_of(topic_id) or "", topic_id if any(topic_id) else call.id_of(name or ""))
        )
    for has_name, has_id in ((True, True), (False, True), (True, False)) if topics else ():
        for (topic, key), (name, topic_id) in zip(topics, known, strict=True):
            setattr(topic, key, name if has_name else "")
            topic.topic_id = topic_id if has_id else bytes(16)
        try:
            call.encode(answer)
        except EncodeError:
            continue
        break
    return answer


def _topics(message: Any) -> Iterator[tuple[Any, str]]:
    """What has both a topic's name and its id, and the field of the name."""
    for field in list_fields(type(message)):
        for element in (getattr(message, field.name) or ()) if field.is_struct else ():
            names = type(element).__annotations__
            key = next((each for each in _NAMES if each in names), None)
            if key is not None and "topic_id" in names:
                yield element, key
            yield from _topics(element)
