"""Sets of ACLs that are copies of each other, and what a copy costs."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.metadata.acls import (
    Acl,
    AclFilter,
    AclSet,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

ANY_OF_ALL = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
NAMES = ("a", "ab", "abc", "*")
PRINCIPALS = ("User:alice", "User:bob")
ACLS = st.builds(
    Acl,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from(NAMES),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(["*", "10.0.0.1"]),
    st.just(Operation.READ),
    st.just(Permission.ALLOW),
)
# Which set, and its change: an ACL with its id, an id to remove, or None for a copy
CHANGES = st.tuples(st.integers(0, 5), st.tuples(st.integers(0, 9), ACLS) | st.integers(0, 9) | st.none())


def shown(acls: AclSet) -> object:
    """All that a set answers."""
    kinds = (ResourceType.TOPIC, ResourceType.GROUP)
    return (
        sorted(acls.by_id.items()),
        sorted(acl_id for acl_id in acls.ids.values() if acls.by_id[acl_id] in acls.ids),
        [
            sorted(
                (principal, acl_id)
                for found in acls.applying_to(kind, name)
                for principal, of_principal in found.items()
                for acl_id in of_principal
            )
            for kind in kinds
            for name in NAMES
        ],
        [sorted(map(hash, acls.of_principal(kind, name))) for kind in kinds for name in PRINCIPALS],
        sorted(acls.matching(ANY_OF_ALL)),
    )


def made_of(model: dict[bytes, Acl]) -> AclSet:
    acls = AclSet()
    for acl_id, acl in model.items():
        acls.add(acl_id, acl)
    return acls


@given(st.lists(CHANGES, max_size=40))
def test_copies_are_independent_of_each_other(changes: list[tuple[int, object]]) -> None:
    sets: list[tuple[AclSet, dict[bytes, Acl]]] = [(AclSet(), {})]
    for which, change in changes:
        acls, model = sets[which % len(sets)]
        if change is None:
            sets.append((acls.copy(), model.copy()))
        elif isinstance(change, tuple):
            number, acl = change
            model.pop(acl_id := bytes([number]), None)
            if acl not in model.values():  # as the controller adds none twice
                model[acl_id] = acl
                acls.add(acl_id, acl)
            else:
                acls.remove(acl_id)
        else:
            model.pop(bytes([int(str(change))]), None)
            acls.remove(bytes([int(str(change))]))
    for acls, model in sets:
        assert shown(acls) == shown(made_of(model))


def many(count: int) -> Iterator[tuple[bytes, Acl]]:
    for number in range(count):
        name, principal = f"topic-{number // 10}", f"User:{number % 1000}"
        acl = Acl(
            ResourceType.TOPIC,
            name,
            PatternType.LITERAL + number % 2,
            principal,
            "*",
            Operation.READ,
            Permission.ALLOW,
        )
        yield number.to_bytes(16, "big"), acl


def test_a_copy_and_a_change_of_it_cost_little() -> None:
    acls = AclSet()
    began = time.process_time()
    for acl_id, acl in many(20_000):
        acls.add(acl_id, acl)
    filling_s = time.process_time() - began
    began = time.process_time()
    copy = acls.copy()
    for acl_id, _ in many(10):
        copy.remove(acl_id)
    assert time.process_time() - began < filling_s / 5
    assert (len(acls.by_id), len(copy.by_id)) == (20_000, 19_990)
