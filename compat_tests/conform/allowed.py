"""The intended differences from Apache Kafka, each with its reason.

(transcript.py replaces values that always differ - cluster id, ports, topic, member and producer ids, the clock - by
names; they need no entry here.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from compat_tests.conform.transcript import ABSENT, Tree

INTERNAL_ERROR = "Kafka fails internally"


class Difference(NamedTuple):
    """One leaf where the brokers disagree."""

    title: str
    version: int
    path: str
    ours: Tree
    theirs: Tree


class Allowed(NamedTuple):
    """A named kind of difference, why it is right, and how to recognise it."""

    name: str
    reason: str
    matches: Callable[[Difference], bool]


def _api_not_served(difference: Difference) -> bool:
    return difference.title.startswith("ApiVersions") and difference.ours == ABSENT


def _own_setting(difference: Difference) -> bool:
    return (
        re.search(r"[.\[](barnabas|nats)\.", difference.path) is not None and str(difference.theirs) == ABSENT
    )


def _message_where_none(difference: Difference) -> bool:
    return (
        difference.path.endswith(".error_message")
        and difference.theirs is None
        and isinstance(difference.ours, str)
        and difference.title.startswith("Produce")
    )


def _named_twice(difference: Difference) -> bool:
    return (
        difference.title.endswith(": topic_twice")
        or "the same by name and by id" in difference.path
        or (
            difference.title.endswith((": repeated_commits", ": repeated_deletes"))
            and "topic twice" in difference.path
        )
    )


def _many_at_fault(difference: Difference) -> bool:
    return (
        difference.title.endswith(": many_records_at_fault")
        and re.search(r"\.(record_errors|error_message)", difference.path) is not None
    )


def _replica_id(difference: Difference) -> bool:
    return (
        re.match(r"Fetch: of_a_(broker_that_is_no_replica|follower_)", difference.title) is not None
        or re.search(r"\[replica \d+\]", difference.path) is not None
    )


def _request_dump(difference: Difference) -> bool:
    return difference.path.endswith(".error_message") and str(difference.theirs).startswith(
        "Request Request("
    )


def _after_refused_verification(difference: Difference) -> bool:
    return difference.title.endswith(": first_sequence_after_a_refused_epoch")


def _successors_end(difference: Difference) -> bool:
    return (
        difference.title == "EndTxn: ended_in_every_state"
        and re.match(r"\[Complete(Commit|Abort): (commit|abort), lower epoch\]", difference.path) is not None
    )


def _after_altered_offsets(difference: Difference) -> bool:
    return (
        re.match(r"AlterShareGroupOffsets: alters", difference.title) is not None
        and re.search(r"\.(group|assignment|member)_epoch$", difference.path) is not None
    )


def _added_partitions(difference: Difference) -> bool:
    return (
        difference.title == "DescribeShareGroupOffsets: offsets_of_added_partitions"
        and re.search(r"\.(start_offset|lag)$", difference.path) is not None
        and (difference.ours, difference.theirs) == (0, -1)
    )


def _no_bytes_of_the_tier(difference: Difference) -> bool:
    return (
        difference.title == "Fetch: limits_below_the_local_start"
        and re.search(r"(partition|request) limit 0\]", difference.path) is not None
        and difference.theirs == []
    )


def _silence(difference: Difference) -> bool:
    return isinstance(difference.theirs, str) and difference.theirs == "<no answer>"


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        "API not served yet",
        "an API is advertised only when it is implemented and tested; docs/compatibility.md lists them",
        _api_not_served,
    ),
    Allowed(
        "a setting of this broker's own",
        "settings named barnabas.* and nats.* exist here only",
        _own_setting,
    ),
    Allowed(
        "a reason where Kafka gives none",
        "Kafka leaves the message of most refused batches empty; clients show it to people, so it is filled here",
        _message_where_none,
    ),
    Allowed(
        "one topic named twice in a request",
        "Kafka keeps one of the two or answers each for itself, as the collection has it that the API's code uses. No client sends it",
        _named_twice,
    ),
    Allowed(
        "many records at fault",
        "Kafka reads and names each of them; here 1,000 are named, and where the header alone refuses a large batch, none",
        _many_at_fault,
    ),
    Allowed(
        "a replica id",
        "on a connection that is not that of a broker it is refused with TOPIC_AUTHORIZATION_FAILED, as by Kafka with an "
        "authorizer; without one Kafka believes it",
        _replica_id,
    ),
    Allowed(
        "a dump of the request",
        "where Kafka's controller refuses a request it answers with Java's text of its request object; here with the error's own",
        _request_dump,
    ),
    Allowed(
        "a verification that was refused",
        "Kafka keeps it until producer.id.expiration.ms, and measures later sequences against it; here it is dropped, so that a "
        "client that names other producers' ids fills no memory",
        _after_refused_verification,
    ),
    Allowed(
        "the end of a fenced producer's successor",
        "EndTxn 5 with the epoch before the present one repeats an end that has raised the epoch. Where the last end has not, "
        "Kafka takes a fenced producer for its successor, and gives it the successor's epoch",
        _successors_end,
    ),
    Allowed(
        "the epoch of a share group whose offsets were altered",
        "it rises, so that leaders that still have the old position in memory are fenced. Kafka's does since KAFKA-20910, which "
        "came after 4.3.1",
        _after_altered_offsets,
    ),
    Allowed(
        "partitions added to a topic of a share group",
        "they begin with their first record: at share.auto.offset.reset the group would miss what was written before they were "
        "found. Kafka has it so since KAFKA-20742, which came after 4.3.1",
        _added_partitions,
    ),
    Allowed(
        "a limit of 0 bytes below the local log start offset",
        "Kafka answers with nothing where it would answer with the first batch of a local segment (KIP-74); here both are alike",
        _no_bytes_of_the_tier,
    ),
    Allowed(
        "Kafka never answers",
        "an exception in Kafka leaves the request without an answer and the client waiting; an error is kinder",
        _silence,
    ),
    Allowed(
        INTERNAL_ERROR,
        "Kafka meets the input with UNKNOWN_SERVER_ERROR (an uncaught exception); clients cannot rely on that",
        lambda _: False,  # recognised by the whole answer, in runner.py
    ),
)


def reason_for(difference: Difference) -> str | None:
    """The name of the allowed difference that covers this one, or None."""
    return next((entry.name for entry in ALLOWED if entry.matches(difference)), None)


def strip_indexes(path: str) -> str:
    """A path without array positions, to group differences of one kind."""
    return re.sub(r"\[\d+\]", "[]", path)
