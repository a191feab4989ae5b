"""`@pytest.mark.kafka`: the properties that it gives to a test, and marks that nothing could heed.

The nearest mark counts: of a test's parameters, of its function, of its class, of the classes that this one is derived from,
of the module. pytest's own order has the last of these before a derived class, and parameters behind their function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from _pytest.nodes import Node  # pytest exports its subclasses alone

    from barnabas.testing.security import Security

HEEDING = frozenset({"kafka_broker", "kafka_cluster"})  # fixtures that take properties from a mark
SHARING = frozenset({"kafka", "kafka_session"})  # fixtures that have the session's broker
MARK = "kafka"
SECURITY = "security"
_HEEDING = pytest.StashKey["set[Node]"]()


def marked_properties(node: pytest.Item) -> dict[str, object]:
    """What all marks around a test say. pytest.fail where one has no names."""
    properties: dict[str, object] = {}
    for each in reversed(node.listchain()):
        for mark in _marks(each):
            properties = {**_given(mark), **properties}
    return properties


def take_security(properties: dict[str, object]) -> Security | None:
    """What marks say of `security`, which is no property. pytest.fail."""
    found = properties.pop(SECURITY, None)
    if found is None:
        return None
    from barnabas.testing.security import Security

    if not isinstance(found, Security):
        pytest.fail(
            f"@pytest.mark.kafka takes security=Security(...), and not {type(found).__name__}", pytrace=False
        )
    return found


def refuse_unheeded(item: pytest.Item) -> None:
    """pytest.fail where properties are meant for a broker that this test shares with all others: by a mark of its own, or by
    one of a class or module of which no test has a broker of its own. A mark without properties is a label."""
    fixtures = _fixtures(item)
    if not fixtures & SHARING or fixtures & HEEDING:
        return
    for node in item.listchain():
        if any(map(_given, _marks(node))) and not _is_heeded(node):
            where = "" if node is item else f" on {node.name}, none of whose tests has them,"
            pytest.fail(
                f"@pytest.mark.kafka{where} needs kafka_broker (or kafka_cluster), a broker of this test alone; properties of "
                f"the session's broker stand in the ini file, as kafka_properties",
                pytrace=False,
            )


def note_heeding(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """What has been collected, before some of it is left out: the classes and modules of tests that heed a mark."""
    heeding = session.stash[_HEEDING] = {
        node for item in items if _fixtures(item) & HEEDING for node in item.listchain()
    }
    arguments = session.config.args
    if any("::" in each for each in arguments) or session.config.getoption("lf", False):
        heeding |= {node for item in items for node in item.listchain()[:-1]}  # there may be more of them


def _is_heeded(node: Node) -> bool:
    return node in node.session.stash.get(_HEEDING, ())


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def _marks(node: Node) -> Iterator[pytest.Mark]:
    """Those of a test, a class or a module itself, the nearest first."""
    marks = [mark for mark in node.own_markers if mark.name == MARK]
    of_parameters = getattr(getattr(node, "callspec", None), "marks", ())
    if of_parameters:
        marks.sort(key=lambda mark: mark not in of_parameters)
    elif isinstance(node, pytest.Class):
        bases = node.obj.__mro__
        marks.sort(key=lambda mark: next((i for i, base in enumerate(bases) if _has(base, mark)), -1))
    yield from marks


def _has(owner: type, mark: pytest.Mark) -> bool:
    """Whether a class has a mark itself."""
    own = owner.__dict__.get("pytestmark", [])
    return any(getattr(each, "mark", each) == mark for each in (own if isinstance(own, list) else [own]))


def _given(mark: pytest.Mark) -> dict[str, object]:
    """The properties that a mark says: of keywords, and of mappings for names with dots. pytest.fail."""
    given: dict[str, object] = {name.replace("_", "."): value for name, value in mark.kwargs.items()}
    for mapping in mark.args:
        given |= _mapping(mapping)
    return given


def _mapping(given: object) -> Mapping[str, object]:
    if not isinstance(given, dict):
        pytest.fail(
            f"@pytest.mark.kafka takes a mapping, such as {{'num.partitions': 3}}, and not {given!r}",
            pytrace=False,
        )
    return given
