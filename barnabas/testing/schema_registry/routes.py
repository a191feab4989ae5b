"""The paths of the registry, those of Confluent's behind a prefix."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from barnabas.testing.control.table import Table
from barnabas.testing.schema_registry import errors, formats
from barnabas.testing.schema_registry import messages as m
from barnabas.testing.schema_registry.store import LATEST, Draft, Store, StoredSchema

PREFIX: Final = "schema-registry"
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
REGISTRY: Final = Table(m.ErrorMessage, CONTENT_TYPE)

_ROOT: Final = f"/{PREFIX}"
_SUBJECT: Final = f"{_ROOT}/subjects/{{subject}}"
_VERSIONS: Final = f"{_SUBJECT}/versions"
_VERSION: Final = f"{_VERSIONS}/{{version}}"
_ID: Final = f"{_ROOT}/schemas/ids/{{schema_id}}"
_COMPATIBILITY: Final = f"{_ROOT}/compatibility/subjects/{{subject}}/versions"
_CONFIG: Final = f"{_ROOT}/config"
_MODE: Final = f"{_ROOT}/mode"

T = TypeVar("T")
route = REGISTRY.route


def _number(version: str) -> int:
    """A version in a path: a number from 1 on, or `latest`, which -1 means as well."""
    text = version.strip().lower()
    if text in ("latest", "-1"):
        return LATEST
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 0 < int(text) < 2**31:
        raise errors.invalid_version(version)
    return int(text)


def _id(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise errors.RegistryError(404, "HTTP 404 Not Found")
    return int(text)


def _page(found: list[T], page: m.Page) -> list[T]:
    offset = max(0, page.offset)
    return found[offset:] if page.limit < 0 else found[offset : offset + page.limit]


@route("GET", _ROOT, "That the schema registry is there.", answer=dict[str, Any])
def schema_registry(store: Store) -> dict[str, Any]:  # noqa: ARG001
    return {}


# -- subjects and versions


@route("GET", f"{_ROOT}/subjects", "The subjects.", query=m.SubjectsQuery, answer=list[str])
def list_subjects(store: Store, query: m.SubjectsQuery) -> list[str]:
    return _page(_subjects(store, query), query)


def _subjects(store: Store, query: m.SubjectsQuery) -> list[str]:
    found = store.subjects(deleted=query.deleted or query.deleted_only)
    there = set(store.subjects()) if query.deleted_only else set()
    return [each for each in found if each.startswith(query.subject_prefix) and each not in there]


@route(
    "POST",
    _SUBJECT,
    "The version of a subject that is this schema.",
    body=Draft,
    query=m.DraftQuery,
    answer=m.SubjectSchema,
)
def look_up_schema(store: Store, subject: str, body: Draft, query: m.DraftQuery) -> m.SubjectSchema:
    found = store.look_up(subject, body, normalize=query.normalize, deleted=query.deleted)
    return m.SubjectSchema.of(found)


@route("DELETE", _SUBJECT, "Delete all versions of a subject.", query=m.PermanentQuery, answer=list[int])
def delete_subject(store: Store, subject: str, query: m.PermanentQuery) -> list[int]:
    return store.delete_subject(subject, permanent=query.permanent)


@route("GET", _VERSIONS, "The versions of a subject.", query=m.DeletedQuery, answer=list[int])
def list_versions(store: Store, subject: str, query: m.DeletedQuery) -> list[int]:
    found = store.versions(subject, deleted=query.deleted or query.deleted_only)
    return _page([each.number for each in found if each.is_deleted or not query.deleted_only], query)


@route(
    "POST",
    _VERSIONS,
    "Register a schema as the next version of a subject.",
    body=Draft,
    query=m.DraftQuery,
    answer=m.Registered,
)
def register_schema(store: Store, subject: str, body: Draft, query: m.DraftQuery) -> m.Registered:
    found = store.register(subject, body, normalize=query.normalize)
    return m.Registered(found.schema.id, found.number, found.schema.guid)


@route("GET", _VERSION, "A version of a subject.", query=m.SchemaQuery, answer=m.SubjectSchema)
def schema_version(store: Store, subject: str, version: str, query: m.SchemaQuery) -> m.SubjectSchema:
    found = store.version(subject, _number(version), deleted=query.deleted)
    _check_format(found.schema, query.format)
    return m.SubjectSchema.of(found)


@route("GET", f"{_VERSION}/schema", "A version's schema, as its own text.", query=m.SchemaQuery, answer=str)
def schema_version_text(store: Store, subject: str, version: str, query: m.SchemaQuery) -> msgspec.Raw:
    found = store.version(subject, _number(version), deleted=query.deleted)
    _check_format(found.schema, query.format)
    return msgspec.Raw(found.schema.parsed.text.encode())


@route("GET", f"{_VERSION}/referencedby", "Ids of the schemas that refer to a version.", answer=list[int])
def schema_version_references(store: Store, subject: str, version: str) -> list[int]:
    found = store.version(subject, _number(version), deleted=True)
    return store.referenced_by(subject, found.number)


@route("DELETE", _VERSION, "Delete a version of a subject.", query=m.PermanentQuery, answer=int)
def delete_schema_version(store: Store, subject: str, version: str, query: m.PermanentQuery) -> int:
    return store.delete_version(subject, _number(version), permanent=query.permanent).number


# -- schemas


@route(
    "GET",
    f"{_ROOT}/schemas",
    "All versions of all subjects.",
    query=m.SubjectsQuery,
    answer=list[m.SubjectSchema],
)
def list_schemas(store: Store, query: m.SubjectsQuery) -> list[m.SubjectSchema]:
    found = []
    for subject in _subjects(store, query):
        versions = store.versions(subject, deleted=query.deleted or query.deleted_only)
        found += versions[-1:] if query.latest_only else versions
    return [m.SubjectSchema.of(each) for each in _page(found, query)]


@route("GET", f"{_ROOT}/schemas/types", "The types of schemas.", answer=list[str])
def schema_types(store: Store) -> list[str]:  # noqa: ARG001
    return list(formats.TYPES)


@route("GET", _ID, "A schema.", query=m.SchemaQuery, answer=m.SchemaString)
def schema_by_id(store: Store, schema_id: str, query: m.SchemaQuery) -> m.SchemaString:
    found = store.schema(_id(schema_id))
    _check_format(found, query.format)
    answer = m.SchemaString.of(found)
    if query.subject is not None:
        for each in store.versions_of(found.id, deleted=True):
            if each.subject == query.subject:
                answer.subject, answer.version = each.subject, each.number
    if query.fetch_max_id:
        answer.max_id = max(store.state.schemas)
    return answer


@route("GET", f"{_ID}/schema", "A schema, as its own text.", query=m.SchemaQuery, answer=str)
def schema_text_by_id(store: Store, schema_id: str, query: m.SchemaQuery) -> msgspec.Raw:
    found = store.schema(_id(schema_id))
    _check_format(found, query.format)
    return msgspec.Raw(found.parsed.text.encode())


@route("GET", f"{_ID}/subjects", "The subjects that have a schema.", query=m.DeletedQuery, answer=list[str])
def subjects_of_schema(store: Store, schema_id: str, query: m.DeletedQuery) -> list[str]:
    found = store.versions_of(_id(schema_id), deleted=query.deleted)
    return _page(sorted({each.subject for each in found}), query)


@route(
    "GET",
    f"{_ID}/versions",
    "The versions that are a schema.",
    query=m.DeletedQuery,
    answer=list[m.SubjectVersion],
)
def versions_of_schema(store: Store, schema_id: str, query: m.DeletedQuery) -> list[m.SubjectVersion]:
    found = store.versions_of(_id(schema_id), deleted=query.deleted)
    return _page([m.SubjectVersion(each.subject, each.number) for each in found], query)


@route("GET", f"{_ROOT}/schemas/guids/{{guid}}", "A schema.", query=m.SchemaQuery, answer=m.SchemaString)
def schema_by_guid(store: Store, guid: str, query: m.SchemaQuery) -> m.SchemaString:
    found = store.schema_of_guid(guid)
    _check_format(found, query.format)
    return m.SchemaString.of(found)


def _check_format(found: StoredSchema, wanted: str) -> None:
    """Refuse `serialized` of a Protobuf schema that came as a .proto file: there is no compiler here."""
    if (
        wanted == "serialized"
        and found.parsed.type == formats.PROTOBUF
        and not formats.is_descriptor(found.parsed.text)
    ):
        raise errors.RegistryError(
            501, "This schema came as a .proto file, and this registry has no compiler to serialize it"
        )


# -- compatibility


@route(
    "POST",
    f"{_COMPATIBILITY}/{{version}}",
    "Whether a schema could follow a version of a subject.",
    body=Draft,
    query=m.DraftQuery,
    answer=m.Compatible,
)
def check_version(store: Store, subject: str, version: str, body: Draft, query: m.DraftQuery) -> m.Compatible:
    found = store.check_compatibility(subject, _number(version), body, normalize=query.normalize)
    return m.Compatible(not found, found if query.verbose else None)


@route(
    "POST",
    _COMPATIBILITY,
    "Whether a schema could be the next version of a subject.",
    body=Draft,
    query=m.DraftQuery,
    answer=m.Compatible,
)
def check_subject(store: Store, subject: str, body: Draft, query: m.DraftQuery) -> m.Compatible:
    found = store.check_compatibility(subject, None, body, normalize=query.normalize)
    return m.Compatible(not found, found if query.verbose else None)


@route("GET", _CONFIG, "The compatibility level of all subjects that have none of their own.", answer=m.Level)
def level(store: Store) -> m.Level:
    return m.Level(store.level(None), store.settings(None).normalize)


@route("PUT", _CONFIG, "Set it.", body=m.LevelRequest, answer=m.LevelRequest)
def put_level(store: Store, body: m.LevelRequest) -> m.LevelRequest:
    return _put_level(store, None, body)


@route("DELETE", _CONFIG, "Set it to BACKWARD. Answered with what it was.", answer=m.Level)
def delete_level(store: Store) -> m.Level:
    before = level(store)
    store.change(None, level=None, normalize=None)
    return before


@route(
    "GET",
    f"{_CONFIG}/{{subject}}",
    "The compatibility level of a subject.",
    query=m.DefaultQuery,
    answer=m.Level,
)
def subject_level(store: Store, subject: str, query: m.DefaultQuery) -> m.Level:
    own = store.settings(subject)
    if own.level is None and not query.default_to_global:
        raise errors.no_level(subject)
    return m.Level(store.level(subject), own.normalize)


@route(
    "PUT",
    f"{_CONFIG}/{{subject}}",
    "Set the compatibility level of a subject.",
    body=m.LevelRequest,
    answer=m.LevelRequest,
)
def put_subject_level(store: Store, subject: str, body: m.LevelRequest) -> m.LevelRequest:
    return _put_level(store, subject, body)


def _put_level(store: Store, subject: str | None, body: m.LevelRequest) -> m.LevelRequest:
    wanted = body.compatibility.upper() if body.compatibility is not None else None
    store.set_level(subject, wanted, body.normalize)
    return m.LevelRequest(wanted, body.normalize)


@route("DELETE", f"{_CONFIG}/{{subject}}", "Let what counts for all count for a subject.", answer=m.Level)
def delete_subject_level(store: Store, subject: str) -> m.Level:
    before = store.settings(subject)
    if before.level is None and before.normalize is None:
        raise errors.subject_not_found(subject)
    answer = m.Level(store.level(subject), before.normalize)
    store.change(subject, level=None, normalize=None)
    return answer


# -- modes


@route("GET", _MODE, "The mode of all subjects that have none of their own.", answer=m.Mode)
def mode(store: Store) -> m.Mode:
    return m.Mode(store.mode(None))


@route("PUT", _MODE, "Set it.", body=m.Mode, query=m.ForceQuery, answer=m.Mode)
def put_mode(store: Store, body: m.Mode, query: m.ForceQuery) -> m.Mode:
    store.set_mode(None, body.mode.upper(), force=query.force)
    return m.Mode(body.mode.upper())


@route("GET", f"{_MODE}/{{subject}}", "The mode of a subject.", query=m.DefaultQuery, answer=m.Mode)
def subject_mode(store: Store, subject: str, query: m.DefaultQuery) -> m.Mode:
    if store.settings(subject).mode is None and not query.default_to_global:
        raise errors.no_mode(subject)
    return m.Mode(store.mode(subject))


@route(
    "PUT",
    f"{_MODE}/{{subject}}",
    "Set the mode of a subject.",
    body=m.Mode,
    query=m.ForceQuery,
    answer=m.Mode,
)
def put_subject_mode(store: Store, subject: str, body: m.Mode, query: m.ForceQuery) -> m.Mode:
    store.set_mode(subject, body.mode.upper(), force=query.force)
    return m.Mode(body.mode.upper())


@route("DELETE", f"{_MODE}/{{subject}}", "Let what counts for all count for a subject.", answer=m.Mode)
def delete_subject_mode(store: Store, subject: str) -> m.Mode:
    before = store.settings(subject).mode
    if before is None:
        raise errors.subject_not_found(subject)
    store.change(subject, mode=None)
    return m.Mode(before)
