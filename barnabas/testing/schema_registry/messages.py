"""What goes over HTTP: each struct is a JSON object with these fields, in camel case. Unknown fields are ignored, as the clients
ask, unless they would change what the registry does.
"""

from __future__ import annotations

from typing import Any

import msgspec

from barnabas.testing.schema_registry.formats import AVRO
from barnabas.testing.schema_registry.store import Reference, StoredSchema, Version


class ErrorMessage(msgspec.Struct):
    """Why a request to the schema registry did not succeed. Codes are Confluent's."""

    error_code: int
    message: str


class SchemaString(msgspec.Struct, rename="camel", omit_defaults=True):
    """A schema by its id. `schemaType` is left out for AVRO. `subject` and `version`: where it was asked for with a subject."""

    schema: str
    schema_type: str | None = None
    references: list[Reference] = []
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    guid: str = ""
    subject: str | None = None
    version: int | None = None
    max_id: int | None = None

    @classmethod
    def of(cls, stored: StoredSchema) -> SchemaString:
        return cls(
            schema=stored.parsed.text,
            schema_type=_type(stored),
            references=list(stored.references),
            metadata=stored.metadata,
            rule_set=stored.rule_set,
            guid=stored.guid,
        )


class SubjectSchema(msgspec.Struct, rename="camel", omit_defaults=True):
    """A version of a subject. `deleted`: softly."""

    subject: str
    version: int
    id: int
    guid: str
    schema: str
    schema_type: str | None = None
    references: list[Reference] = []
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    deleted: bool = False

    @classmethod
    def of(cls, found: Version) -> SubjectSchema:
        stored = found.schema
        return cls(
            subject=found.subject,
            version=found.number,
            id=stored.id,
            guid=stored.guid,
            schema=stored.parsed.text,
            schema_type=_type(stored),
            references=list(stored.references),
            metadata=stored.metadata,
            rule_set=stored.rule_set,
            deleted=found.is_deleted,
        )


def _type(stored: StoredSchema) -> str | None:
    return None if stored.parsed.type == AVRO else stored.parsed.type


class SubjectVersion(msgspec.Struct):
    """A version of a subject, without its schema."""

    subject: str
    version: int


class Registered(msgspec.Struct):
    """The id of a schema that is registered now, or was already."""

    id: int
    version: int
    guid: str


class Compatible(msgspec.Struct, omit_defaults=True):
    """`messages`: with verbose=true."""

    is_compatible: bool
    messages: list[str] | None = None


class LevelRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A compatibility level to set, and whether schemas are normalized where a request does not say so. Other settings of Confluent's
    registry are refused."""

    compatibility: str | None = None
    normalize: bool | None = None


class Level(msgspec.Struct, rename="camel", omit_defaults=True):
    """The compatibility level."""

    compatibility_level: str
    normalize: bool | None = None


class Mode(msgspec.Struct):
    """READWRITE, READONLY or IMPORT."""

    mode: str = ""


class Page(msgspec.Struct):
    """A part of a list; a negative limit is none."""

    offset: int = 0
    limit: int = -1


class SubjectsQuery(Page, rename="camel"):
    """Which subjects."""

    subject_prefix: str = ""
    deleted: bool = False
    deleted_only: bool = False
    latest_only: bool = False


class DeletedQuery(Page, rename="camel"):
    """Whether those that are softly deleted count."""

    deleted: bool = False
    deleted_only: bool = False


class SchemaQuery(msgspec.Struct, rename="camel"):
    """`format=serialized`: a Protobuf schema as a FileDescriptorProto; other formats are ignored."""

    subject: str | None = None
    format: str = ""
    fetch_max_id: bool = False
    deleted: bool = False


class DraftQuery(msgspec.Struct):
    """How a schema is read."""

    normalize: bool = False
    deleted: bool = False
    verbose: bool = False


class PermanentQuery(msgspec.Struct):
    """`permanent`: what is softly deleted already goes for good."""

    permanent: bool = False


class DefaultQuery(msgspec.Struct, rename="camel"):
    """`defaultToGlobal`: what counts for the subject; otherwise what it has itself."""

    default_to_global: bool = False


class ForceQuery(msgspec.Struct):
    """`force`: IMPORT although there are schemas."""

    force: bool = False
