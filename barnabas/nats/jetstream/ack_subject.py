"""Reply subjects of JetStream's deliveries: acknowledgements go there, and they contain the delivery's numbers.

    $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp ns>.<pending>
    $JS.ACK.<domain>.<account hash>.<stream>.<consumer>.<delivered>.<...the same five...>[.<more>]

In the second form the domain is _ when there is none. Names of streams and consumers have no dots.
Source: ADR-15; nats-server 2.12 and later use the second form if they are configured so.
"""

from __future__ import annotations

from typing import Final

import msgspec

PREFIX: Final = b"$JS.ACK."
ACK: Final = b"+ACK"
IN_PROGRESS: Final = b"+WPI"
NAK: Final = b"-NAK"
TERM: Final = b"+TERM"

NUMBERS: Final = 5  # of a delivery
FIRST_DELIVERY: Final = b"1"  # the first number, of a message that was not delivered before
NUMBER_DIGITS_MAX: Final = 20  # of 64 bits
_SHORT: Final = 9
_LONG: Final = 11


class Delivery(msgspec.Struct, gc=False):
    """One delivery of one message."""

    stream: str
    consumer: str
    delivered: int  # count of deliveries, this one included
    stream_sequence: int
    consumer_sequence: int
    timestamp_ns: int  # when it was stored, since the epoch
    pending: int  # messages of the stream that this consumer has not delivered


def parse_ack_subject(reply: bytes) -> Delivery | None:
    """The delivery of a reply subject; None when it is not one of JetStream's."""
    tokens = reply.split(b".")
    count = len(tokens)
    if not reply.startswith(PREFIX) or (count != _SHORT and count < _LONG):
        return None
    start = 2 if count == _SHORT else 4
    try:
        numbers = [
            int(token)
            for token in tokens[start + 2 : start + 2 + NUMBERS]
            if token.isdigit() and len(token) <= NUMBER_DIGITS_MAX
        ]
        if len(numbers) != NUMBERS:
            return None
        return Delivery(tokens[start].decode(), tokens[start + 1].decode(), *numbers)
    except ValueError:  # not UTF-8
        return None


def is_position(token: bytes) -> bool:
    """Whether it is a sequence or time of at most 19 digits, which fits into a log's header and the API's numbers."""
    return token.isdigit() and len(token) < NUMBER_DIGITS_MAX


def numbers_start(reply: bytes) -> int:
    """Where the five numbers begin in a reply subject that `parse_ack_subject` takes. All messages of a consumer have the
    same bytes before."""
    skip = 4 if reply.count(b".") == _SHORT - 1 else 6
    position = 0
    for _ in range(skip):
        position = reply.index(b".", position) + 1
    return position
