"""TLS stores that are renewed while the broker runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.certificates import alternative_names, subject_name
from barnabas.broker.security.listener_tls import FILES_CHECK_S, TlsListeners
from barnabas.controller.config.validators import ConfigError
from compat_tests.harness.certificates import Authority, Certificate
from compat_tests.virtual.runtime import VirtualRuntime

AUTHORITY = Authority()
BROKER = AUTHORITY.sign("broker", ["localhost"])


class World:
    """A broker with the listener SSL, where brokers connect to each other too."""

    def __init__(self, directory: Path, **properties: str) -> None:
        self.runtime = VirtualRuntime()
        self.keystore = BROKER.write(directory / "broker.pem")
        self.truststore = AUTHORITY.write_anchors(directory / "ca.pem")
        self.directory = directory
        given = {
            "listeners": "SSL://127.0.0.1:9093",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.truststore),
            **{name.replace("_", "."): text for name, text in properties.items()},
        }
        self.config = BrokerConfig.from_properties(given)
        self.listeners = TlsListeners(self.runtime, self.config, "SSL")
        found = self.listeners.get("SSL")
        assert found is not None
        self.tls = found

    @property
    def names(self) -> tuple[str, set[str]]:
        """The subject and the alternative names that clients are shown."""
        (identity,) = self.tls._present.contexts.stores.identities
        return subject_name(identity.chain[0]), set(alternative_names(identity.chain[0]))

    def set(self, **stored: str) -> BaseException | None:
        """AlterConfigs of this broker with `listener.name.ssl.` before each name: the error."""
        full = {f"listener.name.ssl.{name.replace('_', '.')}": text for name, text in stored.items()}
        answers: list[BaseException | None] = []
        self.listeners.check({**self.config.stored_node, **full}, set(full), answers.append)
        self.runtime.run_until_idle()
        (error,) = answers
        if error is None:
            self.config.apply_dynamic({}, {**self.config.stored_node, **full})
            self.listeners.reload()
            self.runtime.run_until_idle()
        return error

    def write(self, certificate: Certificate, name: str = "new.pem") -> str:
        return str(certificate.write(self.directory / name))


def test_another_key_store_is_used_from_now_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.tls.server
    renewed = AUTHORITY.sign("broker", ["localhost", "example.com"])
    assert world.set(ssl_keystore_location=world.write(renewed)) is None
    assert world.tls.server is not before
    assert world.names == ("CN=broker", {"DNS:localhost", "DNS:example.com"})


def test_inline_keys_may_be_set(tmp_path: Path) -> None:
    given = {
        "ssl_keystore_location": "", "ssl_keystore_key": BROKER.key_pem(), "ssl_keystore_certificate_chain": BROKER.pem
    }  # fmt: skip
    world = World(tmp_path, **given)
    renewed = AUTHORITY.sign("broker", ["localhost", "a.b"])
    changed = {"ssl_keystore_key": renewed.key_pem(), "ssl_keystore_certificate_chain": renewed.pem}
    assert world.set(**changed) is None
    assert world.names == ("CN=broker", {"DNS:localhost", "DNS:a.b"})


def test_an_unchanged_value_takes_up_a_renewed_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    AUTHORITY.sign("broker", ["localhost", "example.com"]).write(world.keystore)
    assert world.names[1] == {"DNS:localhost"}
    assert world.set(ssl_keystore_location=str(world.keystore)) is None
    assert world.names[1] == {"DNS:localhost", "DNS:example.com"}


def test_a_renewed_file_is_noticed_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.listeners.start()
    before = world.tls.server
    world.runtime.advance(FILES_CHECK_S * 2)
    assert world.tls.server is before  # nothing has changed
    AUTHORITY.sign("broker", ["localhost", "example.com"]).write(world.keystore)
    world.runtime.advance(FILES_CHECK_S)
    assert world.names[1] == {"DNS:localhost", "DNS:example.com"}
    world.listeners.stop()


def test_a_renewed_file_that_does_not_fit_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.listeners.start()
    world.keystore.write_text("-----BEGIN half a file")
    world.runtime.advance(FILES_CHECK_S)
    assert "listener SSL keeps its TLS stores; the new ones can't be used" in caplog.text
    assert world.names == ("CN=broker", {"DNS:localhost"})
    AUTHORITY.sign("broker", ["localhost", "b"]).write(world.keystore)
    world.runtime.advance(FILES_CHECK_S)
    assert world.names[1] == {"DNS:localhost", "DNS:b"}


@pytest.mark.parametrize(
    ("certificate", "message"),
    [
        (
            AUTHORITY.sign("other", ["localhost"]),
            r"Keystore DistinguishedName does not match:  existing=\{alias=kafka, DN=CN=broker\}, new=\{alias=kafka, DN=CN=other\}",
        ),
        (AUTHORITY.sign("broker", ["b"]), r"Keystore SubjectAltNames do not match:  existing=\{alias=kafka, SAN=\['DNS:localhost'\]\}"),
        (Authority("stranger").sign("broker", ["localhost"]), "A client SSLEngine created with the provided settings"),
    ],
)  # fmt: skip
def test_stores_that_do_not_fit_are_refused(certificate: Certificate, message: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    error = world.set(ssl_keystore_location=world.write(certificate))
    assert isinstance(error, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise error
    assert world.names == ("CN=broker", {"DNS:localhost"})


def test_other_names_where_they_are_allowed(tmp_path: Path) -> None:
    world = World(tmp_path, ssl_allow_dn_changes="true", ssl_allow_san_changes="true")
    assert world.set(ssl_keystore_location=world.write(AUTHORITY.sign("other", ["b"]))) is None
    assert world.names == ("CN=other", {"DNS:b"})


def test_names_may_differ_in_case(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.set(ssl_keystore_location=world.write(AUTHORITY.sign("Broker", ["localhost"]))) is None


def test_another_authority_must_accept_the_present_certificate(tmp_path: Path) -> None:
    world = World(tmp_path)
    other = Authority("other")
    error = world.set(ssl_truststore_location=str(other.write_anchors(tmp_path / "other.pem")))
    assert "A client SSLEngine created" in str(error)
    both = tmp_path / "both.pem"
    both.write_text(AUTHORITY.pem + other.pem)
    assert world.set(ssl_truststore_location=str(both)) is None


def test_stores_cannot_be_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert "Cannot remove the SSL truststore" in str(world.set(ssl_truststore_location=""))
    assert "Cannot remove the SSL keystore" in str(world.set(ssl_keystore_location=""))


def test_what_a_running_broker_cannot_change_has_no_effect(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.tls.server
    assert world.set(ssl_client_auth="required") is None
    assert world.tls.server is before


def test_changes_of_other_listeners_and_configs_read_no_store(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.keystore.unlink()
    answers: list[BaseException | None] = []
    stored = {"listener.name.other.ssl.keystore.location": "/x", "num.io.threads": "3"}
    world.listeners.check(stored, set(stored), answers.append)
    assert answers == [None]
