"""Every way to log in, at a real nats-server; nats-py does the same, so that a server that lets everybody in is noticed."""

from __future__ import annotations

import builtins
import logging
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.client.connection_settings import Secret, parse_server
from barnabas.nats.client.errors import AUTHORIZATION, SETTINGS, Cause, NatsSettingsError, cause_of
from barnabas.nats.client.handshake import decode_seed, login_advice, public_key
from barnabas.nats.tests.client_world import ClientWorld, flushed, into, outcome, settings
from barnabas.nats.tests.nats_identities import Operator, public, seed, user_seed
from compat_tests.harness.eventually import eventually_async, stays_async

USERS = """
authorization { users: [
  { user: ours, password: "s3cret/%@" }
  { user: bound, password: pw, permissions: { publish: ["may.>", "_INBOX.>"], subscribe: ["may.>", "_INBOX.>"] } }
] }
"""


async def silent(_error: Exception) -> None:
    """For nats-py, which would print."""


async def nats_py_is_let_in(url: str, **options: Any) -> bool:
    try:
        connection = await nats.connect(url, allow_reconnect=False, error_cb=silent, **options)
    except (nats.errors.Error, OSError):
        return False
    await connection.close()
    return True


async def are_let_in(world: ClientWorld, url: str, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether our client is, with nats-py of the same opinion."""
    client, events = world.client(url, **ours)
    await eventually_async(lambda: client.is_connected or events.failures)
    let_in = client.is_connected
    if let_in:
        assert await outcome(client.flush) == (None,)
    else:
        assert events.failures[0].kind == AUTHORIZATION, events.failures
    client.stop()
    assert await nats_py_is_let_in(url, **theirs) == let_in
    return let_in


@pytest.mark.sockets
@pytest.mark.every_nats_server
def test_user_and_password(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        url = nats_server(config=USERS).url
        password = "s3cret/%@"
        right = {"user": "ours", "password": Secret(password)}
        assert await are_let_in(world, url, right, {"user": "ours", "password": password})
        wrong = {"user": "ours", "password": Secret("else")}
        assert not await are_let_in(world, url, wrong, {"user": "ours", "password": "else"})
        assert not await are_let_in(world, url, {}, {})
        # in the address, which goes before the settings
        with_user = url.replace("//", "//ours:s3cret%2F%25%40@")
        assert await are_let_in(world, with_user, wrong, {"user": "ours", "password": password})

    world.run(work())


@pytest.mark.sockets
@pytest.mark.every_nats_server
def test_token(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        url = nats_server(config='authorization { token: "t0ken" }\n').url
        assert await are_let_in(world, url, {"token": Secret("t0ken")}, {"token": "t0ken"})
        assert not await are_let_in(world, url, {"token": Secret("other")}, {"token": "other"})
        assert await are_let_in(world, url.replace("//", "//t0ken@"), {}, {"token": "t0ken"})

    world.run(work())


@pytest.mark.sockets
@pytest.mark.every_nats_server
def test_nkey(world: ClientWorld, nats_server: Any, tmp_path: Path) -> None:
    async def work() -> None:
        known, stranger = user_seed(), user_seed()
        url = nats_server(config=f"authorization {{ users: [ {{ nkey: {public(known)} }} ] }}\n").url
        for name, text, let_in in (("known", known, True), ("stranger", stranger, False)):
            file = tmp_path / name
            file.write_bytes(b"# my key\n\n" + text + b"\n")
            plain = tmp_path / f"{name}-plain"
            plain.write_bytes(text)
            result = await are_let_in(world, url, {"nkey_seed_file": str(file)}, {"nkeys_seed": str(plain)})
            assert result == let_in

    world.run(work())


@pytest.mark.sockets
@pytest.mark.every_nats_server
def test_credentials(world: ClientWorld, nats_server: Any, tmp_path: Path) -> None:
    async def work() -> None:
        operator, other = Operator(), Operator()
        url = nats_server(config=operator.server_config).url
        for name, text, let_in in (
            ("ours", operator.credentials(), True),
            ("foreign", other.credentials(), False),
            (
                "crossed",
                operator.credentials().split("\n\n", 1)[0] + other.credentials().split("\n\n", 1)[1],
                False,
            ),
        ):
            file = tmp_path / name
            file.write_text(text)
            options = {"credentials_file": str(file)}
            assert await are_let_in(world, url, options, {"user_credentials": str(file)}) == let_in, name

    world.run(work())


@pytest.mark.sockets
def test_expired_credentials_are_replaced_while_running(
    world: ClientWorld, nats_server: Any, tmp_path: Path
) -> None:
    async def work() -> None:
        operator = Operator()
        file = tmp_path / "user.creds"
        file.write_text(operator.credentials(expires_in_s=1))
        url = nats_server(config=operator.server_config).url
        client, events = await world.connected(url, credentials_file=str(file))
        await eventually_async(lambda: events.causes)
        assert events.causes[0].kind == AUTHORIZATION
        await eventually_async(lambda: events.failures)
        assert {cause.kind for cause in events.failures} == {AUTHORIZATION}
        file.write_text(operator.credentials())
        await eventually_async(lambda: client.is_connected)

    world.run(work())


@pytest.mark.sockets
def test_files_that_cannot_be_used(
    world: ClientWorld, nats_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failure(url: str, **options: Any) -> Cause:
        client, events = world.client(url, **options)
        await eventually_async(lambda: events.failures)
        client.stop()
        return events.failures[0]

    async def work() -> None:
        key = user_seed()
        url = nats_server(config=f"authorization {{ users: [ {{ nkey: {public(key)} }} ] }}\n").url
        file = tmp_path / "file"
        for text, words in (
            (None, "can't be read"),
            (b"", "must begin with SU"),
            (b"\xff\xfe", "not text"),
            (seed(nkeys.PREFIX_BYTE_ACCOUNT), "not the seed of a user"),
            # The last of 58 characters has two bits that mean nothing: E, not B, is another byte than A.
            (key[:-1] + (b"A" if key[-1:] != b"A" else b"E"), "wrong checksum"),
            (key[:-8], "bytes"),
            (b"no seed!", "not base32"),
        ):
            file.unlink(missing_ok=True)
            if text is not None:
                file.write_bytes(text)
            cause = await failure(url, nkey_seed_file=str(file))
            assert cause.kind == SETTINGS
            assert "nats.nkey.seed.file" in cause.detail
            assert words in cause.detail or (text == b"" and "bytes" in cause.detail), cause
        file.write_bytes(key)
        cause = await failure(url, credentials_file=str(file))
        assert "nats.credentials.file" in cause.detail
        assert "NATS USER JWT" in cause.detail
        cause = await failure(nats_server().url, nkey_seed_file=str(file))
        assert "asks for no signature" in cause.detail

        import_module = builtins.__import__

        def without_nacl(name: str, *arguments: Any) -> Any:
            if name.startswith("nacl"):
                raise ImportError(name)
            return import_module(name, *arguments)

        monkeypatch.setattr(builtins, "__import__", without_nacl)
        cause = await failure(url, nkey_seed_file=str(file))
        assert "pip install 'barnabas[nkeys]'" in cause.detail

    world.run(work())


@given(st.binary(min_size=32, max_size=32))
def test_seeds_are_read_as_nkeys_reads_them(raw: bytes) -> None:
    text = bytes(nkeys.encode_seed(raw, nkeys.PREFIX_BYTE_USER))
    assert decode_seed(text.decode()) == raw
    assert public_key(raw) == public(text)


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda raw: raw.hex().upper()))
def test_invalid_seeds(text: str) -> None:
    with pytest.raises(NatsSettingsError) as refused:
        decode_seed(text)
    assert len(text) < 8 or text not in str(refused.value)


@pytest.mark.sockets
@pytest.mark.every_nats_server
def test_subjects_without_permission_are_reported(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        url = nats_server(config=USERS).url
        client, events = await world.connected(url, user="bound", password=Secret("pw"))
        got: list[Any] = []
        client.subscribe("may.x", into(got))
        refused = client.subscribe("not.x", into(got))
        shared = client.subscribe("not.y", into(got), queue="group")
        await flushed(client)
        await eventually_async(lambda: len(events.refusals) == 2)
        assert "Permissions Violation" in refused.refused
        assert "Permissions Violation" in shared.refused
        client.publish(b"not.x", b"")
        client.publish(b"may.x", b"x")
        await eventually_async(lambda: len(events.refusals) == 3 and got)
        assert 'Publish to "not.x"' in events.refusals[2]
        assert events.causes == []
        assert client.is_connected

    world.run(work())


@pytest.mark.sockets
def test_secrets_are_never_shown(
    world: ClientWorld, nats_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = ("hunter2", "t0psecret", "inaddress")

    async def work() -> None:
        url = nats_server(config=USERS).url
        file = tmp_path / "seed"
        key = user_seed().decode()
        file.write_text(f"{key[:-2]}")
        nkey, nkey_events = world.client(url, nkey_seed_file=str(file))
        client, events = world.client(
            url.replace("//", "//me:inaddress@"),
            user="u",
            password=Secret("hunter2"),
            token=Secret("t0psecret"),
        )
        await eventually_async(lambda: events.failures and nkey_events.failures)
        shown = [repr(client.settings), str(client.settings), str(client.last_cause), caplog.text]
        shown += [str(nkey.last_cause), str(client.settings.servers[0]), repr(Secret("hunter2"))]
        for text in shown:
            assert not any(secret in text for secret in (*secrets, key[:-2]))

    with caplog.at_level(logging.DEBUG):
        world.run(work())


@pytest.mark.parametrize(
    "text",
    [
        "http://h:1",
        "nats://",
        "nats://h:0",
        "nats://h:99999",
        "nats://h:x",
        "nats://h/x",
        "nats://me:hunter2@h:x",
        "",
    ],
)
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(NatsSettingsError, match="nats://") as refused:
        parse_server(text)
    assert "hunter2" not in str(refused.value)


def test_addresses() -> None:
    assert str(parse_server("h")) == "h:4222"
    assert str(parse_server(" nats://h:1/ ")) == "h:1"
    assert str(parse_server("[::1]:5")) == "[::1]:5"
    assert parse_server("tls://h").tls
    assert not parse_server("h:1").tls
    with_user = parse_server("nats://a%40b:p%3Aw@h")
    assert (with_user.user, with_user.password.value, with_user.token.value) == ("a@b", "p:w", "")
    with_token = parse_server("nats://tok@h")
    assert (with_token.user, with_token.token.value) == ("", "tok")


def test_what_an_error_means_for_the_connection() -> None:
    for text in (
        'Permissions Violation for Publish to "a"',
        'Permissions Violation for Subscription to "slow consumer"',
        "Invalid Subject",
        "Maximum Subscriptions Exceeded",
    ):
        assert cause_of(text) is None
    for text in (
        "Authorization Violation",
        "Authentication Timeout",
        "User Authentication Expired",
        "User Authentication Revoked",
        "Account Authentication Expired",
    ):
        cause = cause_of(text)
        assert cause is not None
        assert cause.kind == AUTHORIZATION
    assert cause_of("Slow Consumer") == Cause("slow consumer", "Slow Consumer")
    assert cause_of("Stale Connection") is not None
    assert cause_of("Maximum Payload Violation") == Cause("refused", "Maximum Payload Violation")
    assert cause_of("maximum connections exceeded") == Cause("refused", "maximum connections exceeded")


@pytest.mark.parametrize(
    ("options", "url", "advice"),
    [
        ({}, "h", "no credentials are set: set nats.user and nats.password, nats.token"),
        ({"user": "u", "password": Secret("p")}, "h", "check nats.user=u and nats.password"),
        ({"user": "u", "name": "east"}, "nats://a:b@h", "before the @ in nats.connection.east.servers"),
        ({"user": "u"}, "nats://token@h", "before the @ in nats.servers"),
        ({"token": Secret("t")}, "h", "check nats.token"),
        ({"nkey_seed_file": "/f", "user": "u"}, "h", "check nats.nkey.seed.file=/f"),
        ({"credentials_file": "/f"}, "h", "check nats.credentials.file=/f"),
    ],
)
def test_a_rejected_login_names_the_settings_to_check(options: dict[str, Any], url: str, advice: str) -> None:
    found = settings(url, **options)
    assert advice in login_advice(found, found.servers[0])


@pytest.mark.sockets
def test_wrong_passwords_are_tried_with_pauses(
    world: ClientWorld, nats_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        url = nats_server(config=USERS).url
        _, events = world.client(url, user="ours", password=Secret("wrong"), name="east")
        await stays_async(lambda: len(events.failures) <= 8, 1)
        await eventually_async(lambda: len(events.failures) >= 2)
        where = url.partition("//")[2]
        [said] = [record.getMessage() for record in caplog.records if "Violation" in record.getMessage()]
        assert (
            f"authorization: {where}: Authorization Violation; check nats.connection.east.user=ours" in said
        )

    world.run(work())
