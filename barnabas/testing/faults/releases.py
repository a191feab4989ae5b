"""Older releases of Kafka: the APIs that each served, and in which versions at most.

A broker that passes for one tells clients of these maxima with its own minima, and closes the connection of a client that asks for
more, as that release does; an API whose versions all came later than ours begin is not there at all. A topic that Metadata
has made is not there yet in that answer, under the error of the release. Other errors that differ within the same version of
an API are in release_errors.py.

Source: `validVersions` in clients/src/main/resources/common/message of each release's tag (ApiKeys.java before 2.1), and
the KIPs that brought the versions. ZooKeeper brokers up to 3.2, KRaft's since.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.requests.context import Outcome
from barnabas.testing.faults.release_errors import LAST_CODES, refuse_later_ways, translate
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from barnabas.wire.messages.metadata import MetadataResponseTopic
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import response_type

if TYPE_CHECKING:
    from barnabas.testing.faults.call import Call

METADATA: Final = 3
RELEASES: Final = (
    *("0.11", "1.0", "1.1", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8"),
    *("3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3"),
)
FEATURES_SINCE: Final = "4.0"  # finalized features that clients act on (transaction.version, group.version)
# What a topic is answered with that the request itself has had made: brokers made it themselves, and said that it has no
# leader yet; since they ask the controller to (KAFKA-9751), that they do not know it.
UNKNOWN_WHEN_MADE_SINCE: Final = "2.8"
RANGE_SINCE: Final = (
    "2.4"  # the answer to an ApiVersions request of an unknown version names the known ones (KIP-511)
)

# API key: the release that brought a version: the highest version it brought.
_VERSIONS: Final = """
0   0.11:3 1.0:5 2.0:6 2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13
1   0.11:5 1.0:6 1.1:7 2.0:8 2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18
2   0.11:2 2.0:3 2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10 4.2:11
3   0.11:4 1.0:5 2.0:6 2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13
8   0.11:3 2.0:4 2.1:6 2.3:7 2.4:8 3.7:9 4.2:10
9   0.11:3 2.0:4 2.1:5 2.4:6 2.5:7 3.0:8 3.7:9 4.2:10
10  0.11:1 2.0:2 2.4:3 3.0:4 3.8:5 3.9:6
11  0.11:2 2.0:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9
12  0.11:1 2.0:2 2.3:3 2.4:4
13  0.11:1 2.0:2 2.4:4 3.2:5
14  0.11:1 2.0:2 2.3:3 2.4:4 2.5:5
15  0.11:1 2.0:2 2.3:3 2.4:5 4.0:6
16  0.11:1 2.0:2 2.4:3 2.6:4 3.8:5
17  0.11:0 1.0:1
18  0.11:1 2.0:2 2.4:3 3.9:4
19  0.11:2 2.0:3 2.4:5 2.7:6 2.8:7
20  0.11:1 2.0:2 2.1:3 2.4:4 2.7:5 2.8:6
21  0.11:0 2.0:1 2.6:2
22  0.11:0 2.0:1 2.4:2 2.5:3 2.7:4 3.8:5
23  0.11:0 2.0:1 2.1:2 2.3:3 2.8:4
24  0.11:0 2.0:1 2.7:2 2.8:3 3.6:4 3.8:5
25  0.11:0 2.0:1 2.7:2 2.8:3 3.8:4
26  0.11:0 2.0:1 2.7:2 2.8:3 3.8:4 4.0:5
27  0.11:0 2.8:1 4.2:2
28  0.11:0 2.0:1 2.1:2 2.5:3 3.8:4 4.0:5
29  0.11:0 2.0:1 2.5:2 3.3:3
30  0.11:0 2.0:1 2.5:2 3.3:3
31  0.11:0 2.0:1 2.5:2 3.3:3
32  0.11:0 1.1:1 2.0:2 2.6:3 2.8:4
33  0.11:0 2.0:1 2.8:2
34  1.0:0 2.0:1 2.8:2
35  1.0:0 2.0:1 2.6:2 3.2:3 3.3:4 4.3:5
36  1.0:0 2.2:1 2.5:2
37  1.0:0 2.0:1 2.5:2 2.7:3
38  1.1:0 2.0:1 2.4:2 3.3:3
39  1.1:0 2.0:1 2.5:2
40  1.1:0 2.0:1 2.5:2
41  1.1:0 2.0:1 2.5:2 3.3:3
42  1.1:0 2.0:1 2.4:2
43  2.2:0 2.4:2
44  2.3:0 2.4:1
45  2.4:0 4.1:1
46  2.4:0
47  2.4:0
48  2.6:0 2.8:1
49  2.6:0 2.8:1
50  2.7:0
51  2.7:0
55  3.3:1 3.9:2
57  2.7:0 3.3:1 4.0:2
60  2.8:0 3.7:1 4.0:2
61  2.8:0
64  3.3:0
65  3.0:0
66  3.0:0 3.8:1 4.1:2
68  3.7:0 4.0:1
69  3.8:0 4.0:1
71  3.7:0
72  3.7:0
74  3.7:0 4.1:1
75  3.8:0
76  4.1:1
77  4.1:1
78  4.1:1 4.2:2
79  4.1:1 4.2:2
80  3.9:0 4.2:1
81  3.9:0
83  4.1:0
84  4.1:0
85  4.1:0 4.2:1
86  4.1:0
87  4.1:0 4.2:1
88  4.2:0
89  4.2:0
90  4.1:0 4.2:1
91  4.1:0
92  4.1:0
"""


def release_named(version: str) -> str:
    """The release that a version belongs to: "2.8.1" is of 2.8. ValueError where none is known."""
    name = ".".join(version.split(".")[:2])
    if name not in RELEASES or not all(part.isdigit() for part in version.split(".")):
        raise ValueError(f"there is no release {version!r} of Kafka; known are {', '.join(RELEASES)}")
    return name


def maxima(release: str) -> dict[int, int]:
    """The highest version of each API that a release serves."""
    last = RELEASES.index(release)
    found = {}
    for line in _VERSIONS.split("\n"):
        key, *steps = line.split() or [""]
        for step in steps:
            since, _, highest = step.partition(":")
            if RELEASES.index(since) <= last:
                found[int(key)] = int(highest)
    return found


class ServedVersions:
    """Lets pass what a release serves (None: this one's own), and what `limit` leaves of it."""

    def __init__(self, version: str | None = None) -> None:
        self._is_older = version is not None
        self.release = RELEASES[-1] if version is None else release_named(version)
        self._maxima = maxima(self.release)
        index = RELEASES.index(self.release)
        self._has_features = index >= RELEASES.index(FEATURES_SINCE)
        self._when_made = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if index >= RELEASES.index(UNKNOWN_WHEN_MADE_SINCE)
            else ErrorCode.LEADER_NOT_AVAILABLE
        )
        self._last_code = LAST_CODES[self.release]
        self._tells_range = index >= RELEASES.index(RANGE_SINCE)

    def limit(self, api_key: int, highest: int | None) -> None:
        """Serve versions of one API up to this one; None: not at all."""
        self._maxima[api_key] = -1 if highest is None else highest

    def __call__(self, call: Call) -> bytes | Outcome | None:
        highest = self._maxima.get(call.api_key, -1)
        if call.api_key == API_VERSIONS:
            if call.version > highest:
                return unsupported(call, highest if self._tells_range else None)
            call.as_release = self._told
            return None
        if call.version > highest:
            return Outcome.CLOSE
        if not self._is_older:
            return None
        known = call.topics_known() if call.api_key == METADATA else None
        call.as_release = partial(self._in_its_words, known)
        try:
            return refuse_later_ways(call, self.release)
        except DecodeError:
            return None  # the broker closes the connection for it

    def _in_its_words(self, known: frozenset[str] | None, answer: Any) -> bool:
        """An answer with errors that it knew. Of Metadata, `known`: the topics that there were before."""
        is_changed = known is not None and self._not_there_yet(known, answer)
        return translate(answer, self._last_code) or is_changed

    def _not_there_yet(self, known: frozenset[str], answer: Any) -> bool:
        """The answer to Metadata without the topics that it has had made. Whether there were any."""
        if all(topic.error_code or topic.name in known for topic in answer.topics):
            return False
        answer.topics = [
            MetadataResponseTopic(error_code=self._when_made, name=topic.name, is_internal=topic.is_internal)
            if topic.error_code == 0 and topic.name not in known
            else topic
            for topic in answer.topics
        ]
        return True

    def _told(self, answer: Any) -> bool:
        """What the broker says of itself, with this release's maxima."""
        answer.api_keys = [
            ApiVersion(api_key=each.api_key, min_version=each.min_version, max_version=highest)
            for each in answer.api_keys
            if (highest := min(each.max_version, self._maxima.get(each.api_key, -1))) >= each.min_version
        ]
        if not self._has_features:
            answer.supported_features = []
            answer.finalized_features = []
            answer.finalized_features_epoch = -1
        return True


def unsupported(call: Call, highest: int | None) -> bytes:
    """The answer to an ApiVersions request of a version that is not served: in version 0, whatever was asked for, with the
    highest that is served, where the release names it (KIP-511)."""
    keys = [] if highest is None else [ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=highest)]
    answer = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
    body = b"".join(response_type(API_VERSIONS).encode(0, answer))  # type: ignore[arg-type]
    head = call.correlation_id.to_bytes(4, "big", signed=True)
    return (len(head) + len(body)).to_bytes(4, "big") + head + body
