"""The authorizer, against the rules as the documentation of Kafka says them, read one by one."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.config.authorizer import AUDIT_LOGGER, AuthorizerConfig
from barnabas.broker.security import authorizer as authorizer_module
from barnabas.broker.security.authorizer import (
    ALL_OPERATIONS,
    DENIED_PER_SECOND_MAX,
    Authorizer,
    java_address,
)
from barnabas.broker.security.caller import Caller, Principal, own_caller
from barnabas.controller.metadata.acls import Acl, Operation, PatternType, Permission, ResourceType
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage
from barnabas.wire.messages.metadata_records import RemoveAccessControlEntryRecord, TopicRecord

PRODUCE = 0
NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", "hardcode", "hard"])
PRINCIPALS = st.sampled_from(["User:alice", "User:bob", "User:*", "Group:alice"])
HOSTS = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
OPERATIONS = st.sampled_from([each for each in Operation if each != Operation.ANY])
KINDS = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
ACLS = st.builds(
    Acl,
    KINDS,
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
clock = [0.0]
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def caller_of(principal: str, host: str = "10.0.0.1") -> Caller:
    kind, _, name = principal.partition(":")
    return Caller(Principal(kind, name), "PLAINTEXT", host)


def image_with(acls: list[Acl], *topics: str) -> MetadataImage:
    image = MetadataImage()
    for number, acl in enumerate(acls):
        image.replay(acl.record(number.to_bytes(16, "big")), MetadataDelta())
    for number, name in enumerate(topics, 1):
        image.replay(TopicRecord(name=name, topic_id=number.to_bytes(16, "big")), MetadataDelta())
    return image


def authorizer_of(image: MetadataImage, *super_users: str, allow_everyone: bool = False) -> Authorizer:
    return Authorizer(
        AuthorizerConfig(frozenset(super_users), allow_everyone), lambda: image, lambda: clock[0]
    )


def applies(acl: Acl, kind: ResourceType, name: str) -> bool:
    if acl.resource_type != kind:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def obvious(
    acls: list[Acl], principal: str, host: str, operation: Operation, kind: ResourceType, name: str
) -> bool | None:
    """None: no ACL applies to the resource."""
    resource = [acl for acl in acls if applies(acl, kind, name)]
    mine = [acl for acl in resource if acl.principal in (principal, "User:*") and acl.host in ("*", host)]
    denies = [acl for acl in mine if acl.permission == Permission.DENY]
    allows = [acl for acl in mine if acl.permission == Permission.ALLOW]
    if any(acl.operation in (operation, Operation.ALL) for acl in denies):
        return False
    enough = {operation, Operation.ALL} | IMPLIED.get(operation, set())
    if any(acl.operation in enough for acl in allows):
        return True
    return False if resource else None


def obvious_any(acls: list[Acl], principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
    mine = [
        acl
        for acl in acls
        if acl.resource_type == kind
        and acl.principal in (principal, "User:*")
        and acl.host in ("*", host)
        and acl.operation in (operation, Operation.ALL)
    ]
    denies = [acl for acl in mine if acl.permission == Permission.DENY]
    if any(acl.pattern_type == PatternType.LITERAL and acl.name == "*" for acl in denies):
        return False
    for acl in mine:
        if acl.permission == Permission.DENY:
            continue
        if acl.pattern_type == PatternType.LITERAL and acl.name == "*":
            return True
        if acl.pattern_type == PatternType.LITERAL and any(
            deny.pattern_type == PatternType.LITERAL and deny.name == acl.name for deny in denies
        ):
            continue
        if any(
            deny.pattern_type == PatternType.PREFIXED and acl.name.startswith(deny.name) for deny in denies
        ):
            continue
        return True
    return False


@given(
    st.lists(ACLS, max_size=8),
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    KINDS,
    NAMES,
    st.booleans(),
    st.sets(st.integers(0, 7)),
)
def test_decisions_are_those_of_the_rules(
    acls: list[Acl],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    allow_everyone: bool,
    removed: set[int],
) -> None:
    image = image_with(acls, "a", "b")
    for number in removed:
        if number < len(acls):
            record = RemoveAccessControlEntryRecord(number.to_bytes(16, "big"))
            image.replay(record, MetadataDelta())
    left = [acl for number, acl in enumerate(acls) if number not in removed]
    authorizer = authorizer_of(image, "User:root", allow_everyone=allow_everyone)
    caller = caller_of(principal, host)
    expected = obvious(left, principal, host, operation, kind, name)
    allowed = allow_everyone if expected is None else expected
    for _ in range(2):  # the second time what was remembered
        assert authorizer.allows(caller, PRODUCE, operation, kind, name) == allowed
    assert authorizer.allows(caller_of("User:root"), PRODUCE, operation, kind, name)
    assert authorizer.allows(own_caller(1), PRODUCE, operation, kind, name)
    hardcode = obvious(left, principal, host, operation, kind, "hardcode")
    on_any = obvious_any(left, principal, host, operation, kind)
    by_name = allow_everyone if hardcode is None else hardcode
    assert authorizer.allows_any(caller, operation, kind) == (by_name or on_any)


def test_allowed_topics_are_remembered_until_the_acls_change() -> None:
    image = image_with(
        [
            Acl(
                ResourceType.TOPIC,
                "a",
                PatternType.PREFIXED,
                "User:bob",
                "*",
                Operation.WRITE,
                Permission.ALLOW,
            )
        ],
        "a1",
    )
    authorizer, bob = authorizer_of(image), caller_of("User:bob")
    assert not authorizer.has_granted(bob, Operation.WRITE, "a1")
    for name in ("a1", "a2"):
        assert authorizer.allows(bob, PRODUCE, Operation.WRITE, ResourceType.TOPIC, name)
    assert authorizer.has_granted(bob, Operation.WRITE, "a1")
    assert not authorizer.has_granted(bob, Operation.WRITE, "a2")  # it does not exist
    assert not authorizer.has_granted(bob, Operation.READ, "a1")
    assert not authorizer.has_granted(caller_of("User:bob", "10.0.0.2"), Operation.WRITE, "a1")
    image.replay(RemoveAccessControlEntryRecord(bytes(16)), MetadataDelta())
    authorizer.acls_changed()
    assert not authorizer.has_granted(bob, Operation.WRITE, "a1")
    assert not authorizer.allows(bob, PRODUCE, Operation.WRITE, ResourceType.TOPIC, "a1")


def test_authorized_operations_are_bits_of_kafkas_codes() -> None:
    assert [
        ALL_OPERATIONS[kind] for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
    ] == [
        3576,
        3400,
        8096,
    ]
    image = image_with(
        [Acl(ResourceType.TOPIC, "a", PatternType.LITERAL, "User:bob", "*", Operation.READ, Permission.ALLOW)]
    )
    bits = authorizer_of(image, "User:root").operations
    assert (
        bits(caller_of("User:bob"), ResourceType.TOPIC, "a") == 1 << Operation.READ | 1 << Operation.DESCRIBE
    )
    assert bits(caller_of("User:eve"), ResourceType.TOPIC, "a") == 0
    assert bits(caller_of("User:root"), ResourceType.TOPIC, "a") == 3576


@pytest.mark.parametrize(
    ("address", "java"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("no:address", "no:address"),
    ],
)
def test_addresses_are_written_as_java_writes_them(address: str, java: str) -> None:
    assert java_address(address) == java


def test_decisions_are_logged_in_kafkas_words(caplog: pytest.LogCaptureFixture) -> None:
    image = image_with(
        [
            Acl(
                ResourceType.TOPIC,
                "t",
                PatternType.LITERAL,
                "User:bob",
                "*",
                Operation.READ,
                Permission.ALLOW,
            )
        ],
        "t",
    )
    authorizer, bob = authorizer_of(image, "User:root"), caller_of("User:bob", "127.0.0.1")
    with caplog.at_level(logging.INFO, AUDIT_LOGGER):
        authorizer.allows(bob, 0, Operation.WRITE, ResourceType.TOPIC, "t", count=2)
        authorizer.allows(bob, 1, Operation.READ, ResourceType.TOPIC, "t")
        authorizer.allows(bob, 3, Operation.DESCRIBE, ResourceType.TOPIC, "u", silent=True)
    assert [record.getMessage() for record in caplog.records] == [
        "Principal = User:bob is Denied operation = WRITE from host = 127.0.0.1 on resource = Topic:LITERAL:t for "
        "request = Produce with resourceRefCount = 2 based on rule DefaultDeny"
    ]
    caplog.clear()
    with caplog.at_level(logging.DEBUG, AUDIT_LOGGER):
        for _ in range(2):  # although it is remembered
            assert not authorizer.has_granted(bob, Operation.READ, "t")
            authorizer.allows(bob, 1, Operation.READ, ResourceType.TOPIC, "t")
        authorizer.allows(
            caller_of("User:root"), 3, Operation.DESCRIBE, ResourceType.TOPIC, "x\n" + "y" * 1000
        )
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:2] == 2 * [
        "Principal = User:bob is Allowed operation = READ from host = 127.0.0.1 on resource = Topic:LITERAL:t for "
        "request = Fetch with resourceRefCount = 1 based on rule MatchingAcl(acl=StandardAcl[resourceType=TOPIC, "
        "resourceName=t, patternType=LITERAL, principal=User:bob, host=*, operation=READ, permissionType=ALLOW])"
    ]
    assert "\n" not in messages[2]
    assert len(messages[2]) < 600
    assert messages[2].endswith("based on rule SuperUser")


def test_a_flood_of_denied_decisions_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    authorizer, bob = authorizer_of(image_with([])), caller_of("User:bob")
    with caplog.at_level(logging.INFO, AUDIT_LOGGER):
        for second in (7.0, 7.9, 8.0):
            clock[0] = second
            for number in range(150):
                authorizer.allows(bob, 3, Operation.DESCRIBE, ResourceType.TOPIC, f"t{number}")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == DENIED_PER_SECOND_MAX + 1 + 150
    assert messages[DENIED_PER_SECOND_MAX] == "100 more were Denied, which are not logged"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_module, "GRANTS_MAX", 3)
    image = image_with([], "a", "b", "c", "d")
    authorizer, root = authorizer_of(image, "User:root"), caller_of("User:root")
    for name in ("a", "b", "c"):
        assert authorizer.allows(root, 0, Operation.WRITE, ResourceType.TOPIC, name)
    assert authorizer.has_granted(root, Operation.WRITE, "a")
    assert authorizer.allows(root, 0, Operation.WRITE, ResourceType.TOPIC, "d")
    assert authorizer.has_granted(root, Operation.WRITE, "d")
    assert not authorizer.has_granted(root, Operation.WRITE, "a")


def test_super_users_alone_are_allowed_before_the_acls_are_loaded() -> None:
    acl = Acl(ResourceType.TOPIC, "*", PatternType.LITERAL, "User:*", "*", Operation.ALL, Permission.ALLOW)
    image, loaded = image_with([acl], "t"), [False]
    config = AuthorizerConfig(frozenset({"User:root"}), allow_everyone_if_no_acl_found=True)
    authorizer = Authorizer(config, lambda: image, lambda: 0.0, lambda: loaded[0])
    bob, root = caller_of("User:bob"), caller_of("User:root")

    def allowed(caller: Caller) -> list[bool]:
        return [
            authorizer.allows(caller, 0, Operation.WRITE, ResourceType.TOPIC, "t"),
            authorizer.allows_any(caller, Operation.WRITE, ResourceType.TOPIC),
            authorizer.operations(caller, ResourceType.TOPIC, "t") != 0,
        ]

    assert allowed(bob) == [False] * 3
    assert allowed(root) == [True] * 3
    loaded[0] = True
    assert allowed(bob) == [True] * 3


def test_decisions_are_counted() -> None:
    write = Acl(
        ResourceType.TOPIC, "a", PatternType.LITERAL, "User:bob", "*", Operation.WRITE, Permission.ALLOW
    )
    authorizer, bob = authorizer_of(image_with([write], "a")), caller_of("User:bob")
    for name in ("a", "a", "b"):
        authorizer.allows(bob, PRODUCE, Operation.WRITE, ResourceType.TOPIC, name)
    assert (authorizer.allowed, authorizer.denied) == (2, 1)
    authorizer.allows_any(bob, Operation.WRITE, ResourceType.TOPIC)
    authorizer.allows_any(bob, Operation.READ, ResourceType.TOPIC)
    assert (authorizer.allowed, authorizer.denied) == (3, 2)
    authorizer.operations(bob, ResourceType.TOPIC, "a")  # WRITE and DESCRIBE, of 8
    assert (authorizer.allowed, authorizer.denied) == (5, 8)
    authorizer.allows(own_caller(1), PRODUCE, Operation.WRITE, ResourceType.TOPIC, "a")
    assert (authorizer.allowed, authorizer.denied) == (5, 8)
