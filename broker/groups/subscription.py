"""Reads the topics out of a consumer's subscription, the one part of the opaque group protocol a broker needs.

The embedded consumer protocol: version int16, then version 0's fields, which prefix every later version:
topics as int32 count of (int16 length, UTF-8) strings, user data. Source: ConsumerProtocolSubscription.json.
"""

from __future__ import annotations

import struct
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class MalformedSubscription(ValueError):
    """The bytes are no consumer subscription; the broker then knows no topics of the group."""


def subscribed_topics(subscription: bytes) -> set[str]:
    """Topic names in a serialized consumer subscription of any version."""
    try:
        version, count = struct.unpack_from(">hi", subscription, 0)
        if version < 0 or not 0 <= count <= (len(subscription) - 6) // 2:
            raise MalformedSubscription(f"version {version}, {count} topics in {len(subscription)} bytes")
        topics = set()
        pos = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", subscription, pos)
            pos += 2
            if length < 0 or pos + length > len(subscription):
                raise MalformedSubscription(f"a topic name of {length} bytes")
            topics.add(subscription[pos : pos + length].decode())
            pos += length
        return topics
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedSubscription(str(error)) from None
