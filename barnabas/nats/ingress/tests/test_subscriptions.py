"""Changed patterns against a slow model of a server: a subscription that has a subject keeps it, and no other gets it."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.binding.subjects import Filter, matches
from barnabas.nats.ingress.subscriptions import changed_subscriptions

_TOKENS = st.sampled_from(["a", "b", "*"])
_PATTERNS = st.lists(
    st.builds(
        lambda tokens, rest: ".".join([*tokens, *rest]),
        st.lists(_TOKENS, max_size=3),
        st.sampled_from([["a"], ["*"], [">"]]),
    ),
    min_size=1,
    max_size=4,
)
SUBJECTS = [".".join(tokens).encode() for length in (1, 2, 3, 4) for tokens in product("ab", repeat=length)]


def takers(subscriptions: list[tuple[str, Filter | None]], subject: bytes) -> list[str]:
    return [
        pattern
        for pattern, is_taken in subscriptions
        if matches(pattern, subject) and (is_taken is None or is_taken(subject))
    ]


@given(st.lists(st.tuples(_PATTERNS, st.lists(st.sampled_from(["a.>", "b", "*.a"]), max_size=2)), min_size=1))
def test_subscriptions_change(changes: list[tuple[list[str], list[str]]]) -> None:
    before: dict[bytes, list[str]] = {}
    current: list[str] = []
    for patterns, excludes in changes:
        subscriptions = changed_subscriptions(current, patterns, excludes)
        current = [pattern for pattern, _ in subscriptions]
        assert len(set(current)) == len(current)
        now = {}
        for subject in SUBJECTS:
            is_wanted = any(matches(each, subject) for each in patterns) and not any(
                matches(each, subject) for each in excludes
            )
            found = takers(subscriptions, subject)
            assert len(found) == is_wanted, (subject, found)
            if found and before.get(subject):
                assert found == before[subject]
            now[subject] = found
        before = now
