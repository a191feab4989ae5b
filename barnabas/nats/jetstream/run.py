"""One consumer that is pulled from, from its making to its end: its inbox, its pulls, and how its messages are known.

Messages go to the carrier's sink directly. It compares their reply subjects with `prefix`, which is the same for all
messages of the consumer, and gives everything else to `other`: the first message, from which the prefix is learned, and
what the server says about pulls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.reconnect import FailureLog
from barnabas.nats.jetstream.ack_subject import numbers_start, parse_ack_subject
from barnabas.nats.jetstream.pull import Puller, PullLimits

if TYPE_CHECKING:
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.protocol import Sink
    from barnabas.nats.jetstream.api import JetStreamApi
    from barnabas.runtime.interface import Runtime

_NO_PREFIX: Final = b"\0"  # no reply subject begins with it


class Run:
    """See the module. `numbers_start`: behind the prefix, where the five numbers of a reply subject begin."""

    __slots__ = (
        "_consumer",
        "_strange",
        "_stream",
        "_subscription",
        "_take",
        "numbers_start",
        "prefix",
        "puller",
    )

    def __init__(
        self,
        runtime: Runtime,
        client: NatsClient,
        api: JetStreamApi,
        stream: str,
        consumer: str,
        budget_bytes: int,
        limits: PullLimits,
        take: Sink,
        failed: Callable[[str], object],
    ) -> None:
        """`take` gets the messages from now on; nothing is asked for before `puller.refill`. `failed(why)`: this
        consumer brings nothing any more."""
        self.prefix = _NO_PREFIX
        self.numbers_start = 0
        self._stream = stream
        self._consumer = consumer
        self._strange = FailureLog(f"stream {stream}, consumer {consumer}", runtime)
        self._take = take
        inbox = client.new_inbox()
        self._subscription = client.subscribe(inbox.decode(), take)
        subject = api.next_subject(stream, consumer)
        self.puller = Puller(runtime, client, subject, inbox, budget_bytes, limits, failed)

    def other(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        """The first message, or what is none."""
        if not reply:
            self.puller.status(header_block)
            return
        delivery = parse_ack_subject(reply)
        if delivery is None or delivery.stream != self._stream or delivery.consumer != self._consumer:
            self._strange.write(f"a message that is not the consumer's came: {reply[:200]!r}", "message")
            return
        self.numbers_start = numbers_start(reply)
        self.prefix = reply[: self.numbers_start]
        self._take(subject, reply, header_block, payload)

    def stop(self) -> None:
        """Nothing is asked for and nothing comes any more."""
        self.puller.stop()
        self._subscription.unsubscribe()
