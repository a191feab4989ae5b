"""Errors of the metadata log."""

from __future__ import annotations


class MetadataError(Exception):
    """The metadata on disk can't be used. The text names the file, the place in it and what to do."""


class NotController(MetadataError):
    """This node's controller does not decide, or has ceased to before the change was committed. Whether changes in
    flight then are committed by its successor is not known here."""
