"""`barnabas format`: what --add-scram takes, and that the users are there when the node starts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from barnabas.broker.tests.one_node import OneNode
from barnabas.cli import main
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.operations.scram import SHA_256, SHA_512, credential_record
from barnabas.format_storage import parse_user
from compat_tests.virtual.runtime import VirtualRuntime


def expected(name: str, password: bytes, mechanism: int, salt: bytes, iterations: int) -> object:
    digest = {SHA_256: "sha256", SHA_512: "sha512"}[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password, salt, iterations)
    return credential_record(name, mechanism, salt, salted, iterations)


@pytest.mark.parametrize(
    ("text", "mechanism", "name", "password", "iterations"),
    [
        ("SCRAM-SHA-256=[name=admin,password=p]", SHA_256, "admin", b"p", 4096),
        ("SCRAM-SHA-512=[ password=p=q , name=a b ]", SHA_512, "a b", b"p=q", 4096),
        ('SCRAM-SHA-256=[name="x",iterations=8192,password="y z"]', SHA_256, "x", b"y z", 8192),
    ],
)
def test_users_with_a_password(
    text: str, mechanism: int, name: str, password: bytes, iterations: int
) -> None:
    record = parse_user(text, VirtualRuntime())
    assert record.salt.isalnum()
    assert 0 < int(record.salt, 36) < 1 << 130
    assert record == expected(name, password, mechanism, record.salt, iterations)


def test_users_with_a_salt() -> None:
    text = 'SCRAM-SHA-256=[name=admin,salt="c2FsdA==",password=p]'
    assert parse_user(text, VirtualRuntime()) == expected("admin", b"p", SHA_256, b"salt", 4096)
    text = 'SCRAM-SHA-256=[name=admin,salt="c2FsdA==",saltedpassword="c2FsdGVk"]'
    record = parse_user(text, VirtualRuntime())
    assert record == credential_record("admin", SHA_256, b"salt", b"salted", 4096)


@pytest.mark.parametrize(
    "text",
    [
        "SCRAM-SHA-256",
        "SCRAM-SHA-1=[name=a,password=hunter2]",
        "SCRAM-SHA-256=name=a,password=hunter2",
        "SCRAM-SHA-256=[password=hunter2]",
        "SCRAM-SHA-256=[name=,password=hunter2]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,password=hunter2,saltedpassword=aaaa,salt=aaaa]",
        "SCRAM-SHA-256=[name=a,saltedpassword=hunter2]",
        "SCRAM-SHA-256=[name=a,saltedpassword=hunter2!,salt=aaaa]",
        "SCRAM-SHA-256=[name=a,password=hunter2,iterations=4095]",
        "SCRAM-SHA-256=[name=a,password=hunter2,iterations=16385]",
        "SCRAM-SHA-256=[name=a,password=hunter2,iterations=many]",
        "SCRAM-SHA-256=[name=a,name=b,password=hunter2]",
        "SCRAM-SHA-256=[name=a,secret=hunter2]",
        'SCRAM-SHA-256=[name=a,password="hunter2]',
    ],
)
def test_what_is_refused_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_user(text, VirtualRuntime())
    assert "hunter2" not in str(refused.value)


def test_a_formatted_node_has_its_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["format", "--set", f"log.dirs={tmp_path}", "-t", "j3Yd0UjwS2e2zx27nxTmTQ"]
    user = ["--add-scram", "SCRAM-SHA-256=[name=admin,password=hunter2]"]
    assert main([*arguments, *user]) == 0
    assert main([*arguments, *user]) == 1
    printed = capsys.readouterr()
    assert "for cluster j3Yd0UjwS2e2zx27nxTmTQ, SCRAM credentials: 1" in printed.out
    assert "has the metadata of a cluster already" in printed.err
    assert "hunter2" not in printed.out + printed.err
    node = OneNode(f"log.dirs={tmp_path}")
    assert list(node.node.services.controller.image.scram_credentials) == [("admin", SHA_256)]
    assert node.node.cluster_id == "j3Yd0UjwS2e2zx27nxTmTQ"
    node.node.stop()
