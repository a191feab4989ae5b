"""Errors of metadata, and of the messages and files that carry it."""

from __future__ import annotations

from typing import Final

import msgspec

# Exceptions of msgspec for bytes that it can't decode; ValueError for text that is not UTF-8.
UNREADABLE: Final = (msgspec.DecodeError, RecursionError, ValueError)


class MetadataError(Exception):
    """The metadata on disk can't be used. The text names the file, the place in it and what to do."""


class NotController(MetadataError):
    """This node's controller is not active, or ceased to be before the change was committed. Its successor may still commit
    changes that were in flight."""
