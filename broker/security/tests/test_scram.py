"""SASL SCRAM: RFC 7677's example, a client written from RFC 5802, and what must fail."""

from __future__ import annotations

import base64
import hashlib
import hmac
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.caller import Principal
from barnabas.broker.security.delegation_tokens import DelegationTokens
from barnabas.broker.security.sasl import Identity, SaslFailure, ThreadNeeded
from barnabas.broker.security.scram import ScramCredentials, ScramServer, ScramUsers
from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.operations.delegation_tokens import TokenLifetimes
from barnabas.controller.operations.scram import HASHES, SHA_256, credential_record, salted_password
from barnabas.wire.messages.metadata_records import DelegationTokenRecord

ALICE = Identity(Principal("User", "alice"))


class World(NamedTuple):
    image: MetadataImage
    mechanism: int
    credentials: ScramCredentials

    def add(self, name: str, password: bytes, iterations: int = 4096, salt: bytes = b"salt") -> None:
        salted = salted_password(password, self.mechanism, salt, iterations)
        record = credential_record(name, self.mechanism, salt, salted, iterations)
        self.image.scram_credentials[name, self.mechanism] = record


def make(mechanism: int = SHA_256) -> World:
    image = MetadataImage()
    counter = iter(range(1000))

    def random_bytes(count: int) -> bytes:
        return hashlib.sha512(b"%d" % next(counter)).digest()[:count]

    tokens = DelegationTokens("secret", TokenLifetimes(1, 1))
    users = ScramUsers(mechanism, lambda: image, lambda: tokens, random_bytes)
    world = World(image, mechanism, ScramCredentials(mechanism, random_bytes, users.of_user, users.of_token))
    world.add("alice", b"alice-secret")
    return world


class Client:
    """RFC 5802's client; `header`, `nonce` and so on may be wrong."""

    def __init__(
        self, world: World, user: str, password: bytes, extensions: str = "", header: str = "n,,"
    ) -> None:
        self.server = ScramServer(world.credentials)
        self.digest = HASHES[world.mechanism]
        self.password = password
        self.header = header
        name = user.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={name},r=c1ient-n0nce{extensions}".encode()
        first = header.encode() + self.bare
        try:
            self.server_first = self.server.evaluate(first)
        except ThreadNeeded as needed:
            needed.work()
            self.server_first = self.server.evaluate(first)
        self.fields = dict(part.split(b"=", 1) for part in self.server_first.split(b","))

    def final(self, nonce: bytes | None = None, binding: bytes | None = None, spoil: int = 0) -> bytes:
        """The server's last message, verified."""
        salt, iterations = base64.b64decode(self.fields[b"s"]), int(self.fields[b"i"])
        salted = hashlib.pbkdf2_hmac(self.digest, self.password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self.digest)
        stored_key = hashlib.new(self.digest, client_key).digest()
        binding = base64.b64encode(self.header.encode()) if binding is None else binding
        without_proof = b"c=" + binding + b",r=" + (self.fields[b"r"] if nonce is None else nonce)
        message = b",".join((self.bare, self.server_first, without_proof))
        signature = hmac.digest(stored_key, message, self.digest)
        proof = bytes(a ^ b ^ spoil for a, b in zip(client_key, signature, strict=True))
        answer = self.server.evaluate(without_proof + b",p=" + base64.b64encode(proof))
        server_key = hmac.digest(salted, b"Server Key", self.digest)
        assert answer == b"v=" + base64.b64encode(hmac.digest(server_key, message, self.digest))
        return answer

    @property
    def identity(self) -> Identity | None:
        return self.server.identity


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_user_with_its_password(mechanism: int) -> None:
    client = Client(make(mechanism), "alice", b"alice-secret")
    assert client.fields[b"r"].startswith(b"c1ient-n0nce")
    assert client.fields[b"i"] == b"4096"
    assert client.identity is None
    client.final()
    assert client.identity == ALICE


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    world = make()
    world.add("user", b"pencil", salt=salt)
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    world.credentials.random_bytes = lambda _: b"x" * 18
    server = ScramServer(world.credentials)
    first = server.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert (
        first
        == b"r=rOprNGfwEbeRWgbNEkqO" + base64.b64encode(b"x" * 18) + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    # The server chooses its nonce, so the rest of the example is put into its state.
    server._server_first = f"r=rOprNGfwEbeRWgbNEkqO{nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    server._nonce = f"rOprNGfwEbeRWgbNEkqO{nonce}".encode()
    last = server.evaluate(
        f"c=biws,r=rOprNGfwEbeRWgbNEkqO{nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("name", ["a,b=c", "=2C", "=3D=2C", "gr\xfcn"])
def test_names_are_escaped(name: str) -> None:
    world = make()
    world.add(name, b"secret")
    client = Client(world, name, b"secret")
    client.final()
    assert client.identity == Identity(Principal("User", name))


def test_the_server_s_nonce_is_new_each_time() -> None:
    world = make()
    first, second = (Client(world, "alice", b"alice-secret") for _ in range(2))
    assert first.fields[b"r"] != second.fields[b"r"]


@pytest.mark.parametrize("user", ["alice", "unknown"])
def test_wrong_passwords_and_unknown_users_fail_alike(user: str) -> None:
    world = make()
    client = Client(world, user, b"wrong")
    assert client.fields[b"i"] == b"4096"
    with pytest.raises(SaslFailure) as failed:
        client.final()
    assert failed.value.text is None
    assert client.identity is None
    assert Client(world, user, b"wrong").fields[b"s"] == client.fields[b"s"], (
        "the salt of a name stays the same"
    )


def test_the_salt_of_an_unknown_user_looks_like_that_of_kafka_s_tools() -> None:
    """Which write numbers of 130 bits in base 36."""
    salt = base64.b64decode(Client(make(), "unknown", b"wrong").fields[b"s"])
    assert 0 < int(salt, 36) < 1 << 130


@pytest.mark.parametrize(
    "first",
    [
        b"n,,n=%b" % (b"a" * 500_000),
        b"n,,n=%b" % (b"=2C" * 160_000),
        b"n,a=%b,n=%b" % (b"a" * 250_000, b"a" * 250_000),
        b"n,,n=a,r=x%b" % (b",a=b" * 125_000),
    ],
)
def test_a_message_as_long_as_a_frame_costs_no_step_for_each_character(first: bytes) -> None:
    """Anyone may send it before the authentication. A pattern with a step for each took 0.2 s and more."""
    server = ScramServer(make().credentials)
    began_s = getrusage(RUSAGE_SELF).ru_utime
    with pytest.raises(SaslFailure):
        server.evaluate(first)
    assert getrusage(RUSAGE_SELF).ru_utime - began_s < 0.03


def test_a_credential_with_few_iterations_fails() -> None:
    world = make()
    world.add("weak", b"secret", iterations=4095)
    with pytest.raises(SaslFailure):
        Client(world, "weak", b"secret").final()


@pytest.mark.parametrize(
    "wrong",
    [
        {"spoil": 1},
        {"nonce": b"c1ient-n0nce"},
        {"nonce": b"other"},
        {"binding": b"eSws"},  # y,,
        {"binding": b"biw="},
    ],
)
def test_final_messages_that_fail(wrong: dict[str, bytes]) -> None:
    client = Client(make(), "alice", b"alice-secret")
    with pytest.raises(SaslFailure):
        client.final(**wrong)  # type: ignore[arg-type]
    assert client.identity is None
    with pytest.raises(SaslFailure):
        client.final()  # no second attempt


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"y,,n=alice,r=x",
        b"p=tls-unique,,n=alice,r=x",
        b"n,,n=al=ice,r=x",
        b"n,,n=,r=x",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a b",
        b"n,,n=alice",
        b"n,,n=alice,r=x,0=1",
        b"n,,n=alice,r=x\n",
        b"n,,n=al\x00ice,r=x",
        b"n,,n=\xff,r=x",
        b"n,a=\xff,n=alice,r=x",
    ],
)
def test_first_messages_that_fail(first: bytes) -> None:
    with pytest.raises(SaslFailure) as failed:
        ScramServer(make().credentials).evaluate(first)
    assert failed.value.text is None


def test_the_authorization_id_is_the_user() -> None:
    client = Client(make(), "alice", b"alice-secret", header="n,a=alice,")
    client.final()
    assert client.identity == ALICE
    with pytest.raises(SaslFailure, match=r"^Authentication failed: Client requested an authorization id"):
        Client(make(), "alice", b"alice-secret", header="n,a=admin,")


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_answered_or_fail(first: bytes, final: bytes) -> None:
    server = ScramServer(make().credentials)
    for token in (first, b"n,,n=alice,r=x", final):
        try:
            server.evaluate(token)
        except SaslFailure:
            pass
    assert server.identity is None


def test_a_delegation_token_stands_for_its_owner() -> None:
    world = make()
    world.image.delegation_tokens["id"] = DelegationTokenRecord(
        owner="User:bob", requester="User:bob", expiration_timestamp=1234, token_id="id"
    )
    password = base64.b64encode(hmac.digest(b"secret", b"id", "sha512"))
    client = Client(world, "id", password, extensions=",tokenauth=true")
    client.final()
    assert client.identity == Identity(Principal("User", "bob"), 1234, is_token=True)
    for user, extensions in (("id", ""), ("other", ",tokenauth=true"), ("alice", ",tokenauth=true")):
        with pytest.raises(SaslFailure):
            Client(world, user, password, extensions=extensions).final()
    del world.image.delegation_tokens["id"]
    with pytest.raises(SaslFailure):
        Client(world, "id", password, extensions=",tokenauth=true").final()


def test_a_thread_derives_the_keys_of_a_token_once() -> None:
    world = make()
    world.image.delegation_tokens["id"] = DelegationTokenRecord(owner="User:bob", token_id="id")
    first = b"n,,n=id,r=nonce,tokenauth=true"
    servers = [ScramServer(world.credentials) for _ in range(2)]
    works = []
    for server in servers:
        with pytest.raises(ThreadNeeded) as needed:
            server.evaluate(first)
        works.append(needed.value.work)
    for work in works:
        work()
    salts = {server.evaluate(first).split(b",")[1] for server in servers}
    assert len(salts) == 1
    assert ScramServer(world.credentials).evaluate(first).split(b",")[1] in salts


def test_keys_are_not_shown() -> None:
    credential = make().credentials.of_user("alice")
    assert credential is not None
    assert repr(credential.stored_key) not in repr(credential)
