"""Errors of metadata, and of the messages and files that carry it."""

from __future__ import annotations

from typing import Final

import msgspec

# What msgspec raises for bytes that do not hold what they should; ValueError for text that is not UTF-8.
UNREADABLE: Final = (msgspec.DecodeError, RecursionError, ValueError)


class MetadataError(Exception):
    """The metadata on disk can't be used. The text names the file, the place in it and what to do."""


class NotController(MetadataError):
    """This node's controller does not decide, or has ceased to before the change was committed. Whether changes in
    flight then are committed by its successor is not known here."""
