"""SCRAM credentials (KIP-554): from requests and the image to UserScramCredentialRecords and answers.

Each user succeeds or fails by itself. The checks and their texts are those of Kafka 4.3.1 (ScramControlManager, ScramImage).
A record holds no password: its keys are derived from one, and can't be used to log in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_user_scram_credentials import ScramCredentialDeletion
from barnabas.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResult,
)
from barnabas.wire.messages.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

SHA_256: Final = 1
SHA_512: Final = 2
HASHES: Final = {SHA_256: "sha256", SHA_512: "sha512"}  # by the mechanism's number
MECHANISM_NAMES: Final = {"SCRAM-SHA-256": SHA_256, "SCRAM-SHA-512": SHA_512}
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
CREDENTIALS_MAX: Final = 10_000  # of a request
SALT_RANDOM_BYTES: Final = 17
_SALT_BITS: Final = 130
_SALT_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"

ScramResults = dict[str, ApiError | None]  # by user; None: the change has succeeded


def credential_record(
    name: str, mechanism: int, salt: bytes, salted_password: bytes, iterations: int
) -> UserScramCredentialRecord:
    """The record of a salted password (RFC 5802). `mechanism`: of HASHES."""
    import hashlib  # late: a broker without users needs neither
    import hmac

    digest = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=salt,
        stored_key=hashlib.new(digest, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", digest),
        iterations=iterations,
    )


def salted_password(password: bytes, mechanism: int, salt: bytes, iterations: int) -> bytes:
    """2 ms of computing at 4096 iterations."""
    import hashlib

    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)


def salt_of(random: bytes) -> bytes:
    """A salt as Kafka's tools write it: a number of 130 bits in base 36. `random`: SALT_RANDOM_BYTES of them or more."""
    number = int.from_bytes(random, "big") % (1 << _SALT_BITS)
    digits = bytearray()
    while number or not digits:
        number, digit = divmod(number, len(_SALT_DIGITS))
        digits.append(_SALT_DIGITS[digit])
    return bytes(reversed(digits))


def alter_credentials(
    image: MetadataImage,
    deletions: Sequence[ScramCredentialDeletion],
    upsertions: Sequence[UserScramCredentialRecord],
) -> Decision[ScramResults]:
    """All records are one group. A user that is named twice is altered not at all."""
    results: ScramResults = {}
    records: list[tuple[str, msgspec.Struct]] = []
    for deletion in deletions:
        _note(results, deletion.name, _deletion_error(image, deletion))
        removal = RemoveUserScramCredentialRecord(name=deletion.name, mechanism=deletion.mechanism)
        records.append((deletion.name, removal))
    for record in upsertions:
        _note(results, record.name, _upsertion_error(record))
        records.append((record.name, record))
    return Decision([record for name, record in records if results[name] is None], results)


def describe_credential(image: MetadataImage, name: str) -> DescribeUserScramCredentialsResult:
    """Of one user."""
    found = [image.scram_credentials.get((name, mechanism)) for mechanism in HASHES]
    infos = [CredentialInfo(each.mechanism, each.iterations) for each in found if each is not None]
    if not infos:
        return DescribeUserScramCredentialsResult(
            user=name,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {name}",
        )
    return DescribeUserScramCredentialsResult(user=name, credential_infos=infos)


def _note(results: ScramResults, name: str, error: ApiError | None) -> None:
    if name not in results:
        results[name] = error
    elif results[name] is None:
        results[name] = ApiError(
            ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
        )


def _name_error(name: str, mechanism: int) -> ApiError | None:
    if not name:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in HASHES:
        return ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return None


def _deletion_error(image: MetadataImage, deletion: ScramCredentialDeletion) -> ApiError | None:
    error = _name_error(deletion.name, deletion.mechanism)
    if error is None and (deletion.name, deletion.mechanism) not in image.scram_credentials:
        return ApiError(
            ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        )
    return error


def _upsertion_error(record: UserScramCredentialRecord) -> ApiError | None:
    error = _name_error(record.name, record.mechanism)
    if error is None and record.iterations < ITERATIONS_MIN:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if error is None and record.iterations > ITERATIONS_MAX:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return error
