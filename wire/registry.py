"""Finds the message types of an API. Importing this is cheap: a module of messages loads on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from barnabas.wire.message_type import MessageType
from barnabas.wire.messages.index import APIS

__all__ = ["API_NAMES", "MessageType", "flexible_since", "request_type", "response_type"]

API_NAMES: dict[int, str] = {key: entry[0] for key, entry in APIS.items()}

_loaded: dict[int, tuple[MessageType[Any], MessageType[Any]]] = {}


def request_type(api_key: int) -> MessageType[Any]:
    """The request of an API. Raises KeyError for an unknown key."""
    return (_loaded.get(api_key) or _load(api_key))[0]


def response_type(api_key: int) -> MessageType[Any]:
    """The response of an API. Raises KeyError for an unknown key."""
    return (_loaded.get(api_key) or _load(api_key))[1]


def flexible_since(api_key: int) -> int | None:
    """The first flexible version of an API, None when it has none. Loads nothing."""
    return APIS[api_key][4]


def _load(api_key: int) -> tuple[MessageType[Any], MessageType[Any]]:
    module = import_module(f"barnabas.wire.messages.{APIS[api_key][1]}")
    constant = APIS[api_key][1].upper()
    pair = (getattr(module, f"{constant}_REQUEST"), getattr(module, f"{constant}_RESPONSE"))
    _loaded[api_key] = pair
    return pair
