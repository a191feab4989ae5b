"""What the registry holds, and the rules by which it changes: subjects with versions, schemas by id, levels and modes.

An id belongs to a schema and not to a subject. A schema keeps its id until no version of any subject has it any more, and the number
is not given out again; a test that ends takes its subjects along, but not the schemas, because clients remember ids.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from barnabas.testing.schema_registry import compatibility, errors
from barnabas.testing.schema_registry.formats import AVRO, Parsed, as_value, parse

SCHEMA_CHARACTERS_MAX: Final = 1_000_000
ALL_CHARACTERS_MAX: Final = 100_000_000
SCHEMAS_MAX: Final = 10_000
VERSIONS_MAX: Final = 100_000
REFERENCES_MAX: Final = 1_000
SETTINGS_MAX: Final = 10_000  # subjects with a level or a mode
UNUSED_MAX: Final = 1_000  # schemas that are left of tests which have ended
LATEST: Final = -1

READWRITE: Final = "READWRITE"
READONLY: Final = "READONLY"
IMPORT: Final = "IMPORT"
MODES: Final = (READWRITE, READONLY, IMPORT)


_Number: TypeAlias = Annotated[int, msgspec.Meta(lt=1 << 31)]  # records have ids of four bytes


class Reference(msgspec.Struct, frozen=True):
    """A schema that another one uses: `name` is the name of an Avro type, the path of an import, or a $ref."""

    name: str
    subject: str
    version: int


class Draft(msgspec.Struct, rename="camel"):
    """A schema as a client sends it. `id` and `version` are for IMPORT mode; `metadata` and `rule_set` are kept as they are."""

    schema: str | None = None
    schema_type: str | None = None  # AVRO
    references: list[Reference] | None = None
    id: _Number | None = None
    version: _Number | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None


class StoredSchema(msgspec.Struct, frozen=True, eq=False):
    """A schema with its id. `key` is its identity: of two with the same key there is one."""

    id: int
    parsed: Parsed
    references: tuple[Reference, ...]
    metadata: dict[str, Any] | None
    rule_set: dict[str, Any] | None
    key: str

    @property
    def guid(self) -> str:
        """A UUID that is the same in every registry."""
        return str(uuid.UUID(bytes=hashlib.sha256(self.key.encode()).digest()[:16]))


class Version(msgspec.Struct, frozen=True):
    """A version of a subject."""

    subject: str
    number: int
    schema: StoredSchema
    is_deleted: bool = False  # softly: it can still be asked for


class Settings(msgspec.Struct, frozen=True):
    """Of a subject, or of all; None where it is not set."""

    level: str | None = None
    normalize: bool | None = None
    mode: str | None = None


class State(msgspec.Struct):
    """Everything that the registry holds. Only the dicts change."""

    subjects: dict[str, dict[int, Version]] = {}
    settings: dict[str, Settings] = {}
    common: Settings = Settings()
    schemas: dict[int, StoredSchema] = {}
    ids: dict[str, int] = {}  # by key
    next_id: int = 1

    def copy(self) -> State:
        return State(
            {subject: dict(versions) for subject, versions in self.subjects.items()},
            dict(self.settings),
            self.common,
            dict(self.schemas),
            dict(self.ids),
            self.next_id,
        )


class Store:
    """Changes the state and answers questions about it. Methods raise RegistryError."""

    def __init__(self) -> None:
        self.state = State()

    # -- schemas

    def draft(self, draft: Draft, subject: str, *, normalize: bool) -> StoredSchema:
        """A schema that is not stored yet, and has no id."""
        text, references = draft.schema or "", draft.references or []
        if len(text) > SCHEMA_CHARACTERS_MAX or len(references) > REFERENCES_MAX:
            raise errors.schema_too_large()
        normalize = normalize or bool(self._setting(subject, "normalize"))
        if normalize:
            references = sorted(references, key=lambda each: (each.name, each.subject, each.version))
        referred = [self._referred(each) for each in references]
        parsed = parse(
            draft.schema_type or AVRO, text, [each.schema.parsed for each in referred], normalize=normalize
        )
        references = [
            Reference(each.name, version.subject, version.number)
            for each, version in zip(references, referred, strict=True)
        ]
        parts = [parsed.type, parsed.identity, as_value(draft.metadata), as_value(draft.rule_set)]
        parts += [f"{each.name}\0{each.subject}\0{each.version}" for each in references]
        return StoredSchema(0, parsed, tuple(references), draft.metadata, draft.rule_set, "\0".join(parts))

    def _referred(self, reference: Reference) -> Version:
        try:
            return self.version(reference.subject, reference.version, deleted=True)
        except errors.RegistryError:
            raise errors.InvalidSchema(
                f"No schema reference found for subject {reference.subject!r} and version {reference.version}"
            ) from None

    def schema(self, schema_id: int) -> StoredSchema:
        found = self.state.schemas.get(schema_id)
        if found is None:
            raise errors.schema_not_found(schema_id)
        return found

    def schema_of_guid(self, guid: str) -> StoredSchema:
        for each in self.state.schemas.values():
            if each.guid == guid:
                return each
        raise errors.schema_not_found(guid)

    def versions_of(self, schema_id: int, *, deleted: bool) -> list[Version]:
        """The versions that are a schema."""
        self.schema(schema_id)
        return [
            each
            for each in self._all_versions()
            if each.schema.id == schema_id and (deleted or not each.is_deleted)
        ]

    def referenced_by(self, subject: str, number: int) -> list[int]:
        """Ids of the schemas that refer to a version."""
        return sorted(
            {
                each.schema.id
                for each in self._all_versions()
                if not each.is_deleted
                and any(
                    (other.subject, other.version) == (subject, number) for other in each.schema.references
                )
            }
        )

    def _all_versions(self) -> Iterator[Version]:
        for versions in self.state.subjects.values():
            yield from versions.values()

    # -- subjects and versions

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Names; with `deleted` also of those that have no other versions."""
        return sorted(name for name in self.state.subjects if self._has(name, deleted=deleted))

    def _has(self, subject: str, *, deleted: bool) -> bool:
        versions = self.state.subjects.get(subject, {})
        return any(deleted or not each.is_deleted for each in versions.values())

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """From the first to the last."""
        if not self._has(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        return self._existing(subject, deleted=deleted)

    def _existing(self, subject: str, *, deleted: bool = False) -> list[Version]:
        versions = self.state.subjects.get(subject, {})
        return [versions[each] for each in sorted(versions) if deleted or not versions[each].is_deleted]

    def _latest(self, subject: str) -> Version | None:
        existing = self._existing(subject)
        return existing[-1] if existing else None

    def version(self, subject: str, number: int, *, deleted: bool = False) -> Version:
        if number == LATEST:
            found = self._latest(subject)
        else:
            found = self.state.subjects.get(subject, {}).get(number)
        if found is None or (found.is_deleted and not deleted):
            if not self._has(subject, deleted=deleted):
                raise errors.subject_not_found(subject)
            raise errors.version_not_found(number)
        return found

    def look_up(self, subject: str, draft: Draft, *, normalize: bool, deleted: bool) -> Version:
        """The version of a subject that is this schema."""
        if not self._has(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        found = self._find(subject, self.draft(draft, subject, normalize=normalize), deleted=deleted)
        if found is None:
            raise errors.schema_not_found()
        return found

    def _find(self, subject: str, schema: StoredSchema, *, deleted: bool = False) -> Version | None:
        """A schema without references is also the one with references that says the same."""
        existing = self._existing(subject, deleted=deleted)
        for each in reversed(existing):
            if each.schema.key == schema.key:
                return each
        avro = schema.parsed.avro
        if avro is not None and not schema.references:
            for each in reversed(existing):
                other = each.schema.parsed.avro
                if other is not None and each.schema.references and other.resolved() == avro.resolved():
                    return each
        return None

    # -- registering

    def register(self, subject: str, draft: Draft, *, normalize: bool) -> Version:
        """A version that is this schema: the one there is, or a new one."""
        check_subject(subject)
        schema = self.draft(draft, subject, normalize=normalize)
        wanted_id = -1 if draft.id is None else draft.id
        existing = self._find(subject, schema)
        if (
            existing is not None
            and (wanted_id < 0 or wanted_id == existing.schema.id)
            and draft.version in (None, 0, -1, existing.number)
        ):
            return existing
        self._check_may_register(subject, draft)
        if self.mode(subject) != IMPORT:
            self._check_compatible(subject, schema)
        self._check_room(schema)
        stored = self._with_id(schema, wanted_id)
        versions = self.state.subjects.setdefault(subject, {})
        wanted = draft.version or 0
        number = wanted if wanted > 0 else max(versions, default=0) + 1
        new = versions[number] = Version(subject, number, stored)
        for each in tuple(versions.values()):
            if each.is_deleted and each.number < number and each.schema.key == stored.key:
                del versions[each.number]
        return new

    def _check_may_register(self, subject: str, draft: Draft) -> None:
        self._check_writable(subject)
        is_import = self.mode(subject) == IMPORT
        has_id = draft.id is not None and draft.id >= 0
        if (has_id or (draft.version or 0) > 0) and not is_import:
            raise errors.not_permitted(f"Subject {subject} is not in import mode")
        if is_import and not has_id:
            raise errors.not_permitted(f"Subject {subject} is not in read-write mode")

    def _check_writable(self, subject: str | None) -> None:
        if self.mode(subject) == READONLY:
            raise errors.not_permitted(f"Subject {subject or 'null'} is in read-only mode")

    def _check_compatible(self, subject: str, schema: StoredSchema) -> None:
        """Schemas of a type that has no check are let in; docs/schema-registry.md says so."""
        earlier = [(each.number, each.schema.parsed) for each in self._existing(subject)]
        try:
            messages = compatibility.check(self.level(subject), schema.parsed, earlier)
        except compatibility.NotChecked:
            return
        if messages:
            raise errors.incompatible(subject, messages)

    def _check_room(self, schema: StoredSchema) -> None:
        schemas = self.state.schemas
        if schema.key not in self.state.ids:
            if len(schemas) >= SCHEMAS_MAX:
                raise errors.store_is_full(f"{SCHEMAS_MAX} schemas")
            size = sum(len(each.key) for each in schemas.values()) + len(schema.key)
            if size > ALL_CHARACTERS_MAX:
                raise errors.store_is_full(f"{ALL_CHARACTERS_MAX} characters")
        if sum(map(len, self.state.subjects.values())) >= VERSIONS_MAX:
            raise errors.store_is_full(f"{VERSIONS_MAX} versions")

    def _with_id(self, schema: StoredSchema, wanted: int) -> StoredSchema:
        """The stored one with this key; a wanted id is one of IMPORT mode."""
        state = self.state
        known = state.ids.get(schema.key) if wanted < 0 else wanted
        found = state.schemas.get(known) if known is not None else None
        if found is not None:
            if found.key != schema.key:
                raise errors.not_permitted(f"Overwrite new schema with id {wanted} is not permitted.")
            return found
        new_id = state.next_id if wanted < 0 else wanted
        stored = msgspec.structs.replace(schema, id=new_id)
        state.schemas[new_id] = stored
        state.ids.setdefault(stored.key, new_id)
        state.next_id = max(state.next_id, new_id + 1)
        return stored

    def check_compatibility(
        self, subject: str, number: int | None, draft: Draft, *, normalize: bool
    ) -> list[str]:
        """Why it could not be registered behind a version of a subject, or behind all of them that its level counts (None)."""
        schema = self.draft(draft, subject, normalize=normalize)
        if number is None:
            versions = self._existing(subject)
        elif number == LATEST:
            versions = self._existing(subject)[-1:]
        else:
            versions = [self.version(subject, number)]
        earlier = [(each.number, each.schema.parsed) for each in versions]
        try:
            return compatibility.check(self.level(subject), schema.parsed, earlier)
        except compatibility.NotChecked:
            raise errors.not_checked(schema.parsed.type) from None

    # -- deleting

    def delete_version(self, subject: str, number: int, *, permanent: bool) -> Version:
        version = self.version(subject, number, deleted=True)
        if version.is_deleted and not permanent:
            raise errors.version_soft_deleted(subject, version.number)
        self._check_writable(subject)
        self._check_unreferenced([version])
        if permanent and not version.is_deleted:
            raise errors.version_not_soft_deleted(subject, version.number)
        self._delete(subject, [version], permanent=permanent)
        return version

    def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """The numbers of the versions that are deleted."""
        versions = self.versions(subject, deleted=True)
        if not permanent:
            versions = [each for each in versions if not each.is_deleted]
            if not versions:
                raise errors.subject_soft_deleted(subject)
        self._check_writable(subject)
        self._check_unreferenced(versions)
        if permanent and any(not each.is_deleted for each in versions):
            raise errors.subject_not_soft_deleted(subject)
        self._delete(subject, versions, permanent=permanent)
        return [each.number for each in versions]

    def _check_unreferenced(self, versions: list[Version]) -> None:
        referenced = {
            (other.subject, other.version)
            for each in self._all_versions()
            if not each.is_deleted
            for other in each.schema.references
        }
        for each in versions:
            if (each.subject, each.number) in referenced:
                raise errors.reference_exists(each.subject, each.number)

    def _delete(self, subject: str, versions: list[Version], *, permanent: bool) -> None:
        """A subject without versions loses its level and its mode; a schema without versions its id."""
        left = self.state.subjects[subject]
        for each in versions:
            if permanent:
                del left[each.number]
            else:
                left[each.number] = msgspec.structs.replace(each, is_deleted=True)
        if not left:
            del self.state.subjects[subject]
        if not self._has(subject, deleted=False):
            self.state.settings.pop(subject, None)
        used = {each.schema.id for each in self._all_versions()} if permanent else set()
        for schema in {each.schema.id: each.schema for each in versions}.values() if permanent else ():
            if schema.id not in used:
                self._forget(schema)

    def _forget(self, schema: StoredSchema) -> None:
        del self.state.schemas[schema.id]
        if self.state.ids.get(schema.key) == schema.id:
            del self.state.ids[schema.key]

    # -- levels and modes

    def settings(self, subject: str | None) -> Settings:
        """Those that a subject has itself; None: those of all."""
        return self.state.common if subject is None else self.state.settings.get(subject, Settings())

    def _setting(self, subject: str | None, name: str) -> Any:
        """Of the subject, else of all."""
        own = getattr(self.settings(subject), name)
        return getattr(self.state.common, name) if own is None else own

    def level(self, subject: str | None) -> str:
        """The one in force."""
        return str(self._setting(subject, "level") or compatibility.BACKWARD)

    def mode(self, subject: str | None) -> str:
        """The one in force."""
        return str(self._setting(subject, "mode") or READWRITE)

    def change(self, subject: str | None, **changes: Any) -> None:
        """Set `level`, `normalize` or `mode`; None unsets it."""
        settings = msgspec.structs.replace(self.settings(subject), **changes)
        if subject is None:
            self.state.common = settings
        elif settings == Settings():
            self.state.settings.pop(subject, None)
        else:
            check_subject(subject)
            if subject not in self.state.settings and len(self.state.settings) >= SETTINGS_MAX:
                raise errors.store_is_full(f"settings of {SETTINGS_MAX} subjects")
            self.state.settings[subject] = settings

    def set_level(self, subject: str | None, level: str | None, normalize: bool | None) -> None:
        if (level is None and normalize is None) or (level is not None and level not in compatibility.LEVELS):
            raise errors.invalid_level()
        self._check_writable(subject)
        given = {"level": level, "normalize": normalize}
        self.change(subject, **{name: value for name, value in given.items() if value is not None})

    def set_mode(self, subject: str | None, mode: str, *, force: bool) -> None:
        """IMPORT is for subjects without schemas, unless `force`."""
        if mode not in MODES:
            raise errors.invalid_mode()
        is_occupied = self.subjects() if subject is None else self._has(subject, deleted=False)
        if mode == IMPORT and self.mode(subject) != IMPORT and not force and is_occupied:
            raise errors.not_permitted("Cannot import since found existing subjects")
        self.change(subject, mode=mode)

    # -- as a whole

    def restore_subjects(self, before: State, kept: tuple[str, ...]) -> None:
        """Have the subjects and settings of an earlier state again, but for those subjects that begin with one of `kept`. Schemas
        keep their ids, as long as those that no subject has are not too many."""
        now = self.state

        def merged(then: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
            old = {name: value for name, value in then.items() if not name.startswith(kept)}
            return old | {name: value for name, value in current.items() if kept and name.startswith(kept)}

        earlier = before.copy()
        now.subjects = merged(earlier.subjects, now.subjects)
        now.settings = merged(earlier.settings, now.settings)
        now.common = before.common
        now.schemas = {**earlier.schemas, **now.schemas}
        now.ids = {**earlier.ids, **now.ids}
        used = {each.schema.id for each in self._all_versions()}
        unused = sorted(each for each in now.schemas if each not in used)
        for each in unused[:-UNUSED_MAX]:
            self._forget(now.schemas[each])


def check_subject(subject: str) -> None:
    """RegistryError for a name with control characters, or none."""
    if not subject.strip() or any(ord(each) < 32 or 127 <= ord(each) < 160 for each in subject):
        raise errors.invalid_subject(subject)
