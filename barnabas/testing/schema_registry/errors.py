"""Errors of the registry, with the codes and texts of Confluent's."""

from __future__ import annotations

from typing import Final

INVALID_SCHEMA: Final = 42201


class RegistryError(Exception):
    """A request that is answered with an error. `code` is Confluent's; its first three digits are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        return int(str(self.code)[:3])


class InvalidSchema(RegistryError):
    """A text that is no schema of its type."""

    def __init__(self, reason: str) -> None:
        # It may quote the text, which may have halves of surrogate pairs.
        super().__init__(INVALID_SCHEMA, f"Invalid schema: {reason}".encode(errors="replace").decode())


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> RegistryError:
    return RegistryError(40402, f"Version {version} not found.")


def schema_not_found(which: object = "") -> RegistryError:
    return RegistryError(40403, f"Schema {which} not found" if which else "Schema not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(
        40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently"
    )


def subject_not_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(
        40406,
        f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently",
    )


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(
        40407, f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    )


def no_level(subject: str) -> RegistryError:
    return RegistryError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_mode(subject: str) -> RegistryError:
    return RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, messages: list[str]) -> RegistryError:
    return RegistryError(
        409,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
        f"details: [{', '.join(messages)}]",
    )


def invalid_version(version: str) -> RegistryError:
    return RegistryError(
        42202,
        f"The specified version '{version}' is not a valid version id. "
        'Allowed values are between [1, 2^31-1] and the string "latest"',
    )


def invalid_level() -> RegistryError:
    return RegistryError(
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
        "forward_transitive, and full_transitive",
    )


def invalid_mode() -> RegistryError:
    return RegistryError(42204, "Invalid mode. Valid values are READWRITE, READONLY, and IMPORT.")


def not_permitted(message: str) -> RegistryError:
    return RegistryError(42205, message)


def reference_exists(subject: str, version: int) -> RegistryError:
    return RegistryError(
        42206,
        "One or more references exist to the schema "
        f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}.",
    )


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(42208, f"The specified subject '{subject}' is not a valid subject.")


def schema_too_large() -> RegistryError:
    return RegistryError(42209, "Register operation failed because schema is too large")


def store_is_full(limit: str) -> RegistryError:
    return RegistryError(50001, f"Register schema operation failed: this registry holds {limit} at most")


def not_checked(schema_type: str) -> RegistryError:
    return RegistryError(501, f"This registry does not check the compatibility of {schema_type} schemas")
