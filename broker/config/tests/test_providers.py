"""Values from config providers: files, directories, variables; and who may name a provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.describe import broker_entries
from barnabas.broker.config.providers import ConfigProviders
from barnabas.controller.config.validators import ConfigError

PACKAGE = "org.apache.kafka.common.config.provider."
FILE = {"config.providers": "file", "config.providers.file.class": f"{PACKAGE}FileConfigProvider"}
DIRECTORY = {"config.providers": "dir", "config.providers.dir.class": f"{PACKAGE}DirectoryConfigProvider"}
PASSWORD = "listener.name.plaintext.ssl.keystore.password"
JAAS = "listener.name.plaintext.plain.sasl.jaas.config"
ENV = {"config.providers": "env", "config.providers.env.class": f"{PACKAGE}EnvVarConfigProvider"}


def resolved(text: str, given: dict[str, str], **environ: str) -> str:
    return ConfigProviders(given, environ).resolve({"name": text})["name"]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    file = tmp_path / "secrets.properties"
    file.write_text("a=one\nb = two\\u0020and\nref=${file:x:y}\nurl=http://h:1/\n")
    return file


def test_references_anywhere_in_a_value(secrets: Path) -> None:
    assert resolved(f"x${{file:{secrets}:a}}-${{file:{secrets}:b}}y", FILE) == "xone-two andy"
    assert resolved(f"${{file:{secrets}:url}}", FILE) == "http://h:1/"


def test_what_is_replaced_is_not_searched_again(secrets: Path) -> None:
    assert resolved(f"${{file:{secrets}:ref}}", FILE) == "${file:x:y}"


@pytest.mark.parametrize(
    "text", ["${file:a}", "${other:/x:a}", "${file::a}", "${nothing}", "${", "${file:", "$a}", "${a ${b}", ""]
)
def test_what_is_no_reference_stays(text: str) -> None:
    assert resolved(text, FILE) == text


def test_an_unknown_key_stays_and_a_missing_file_is_an_error(secrets: Path) -> None:
    assert resolved(f"${{file:{secrets}:c}}", FILE) == f"${{file:{secrets}:c}}"
    with pytest.raises(ConfigError, match="Could not read properties from file /nowhere/at/all"):
        resolved("${file:/nowhere/at/all:c}", FILE)


def test_a_file_outside_of_the_allowed_paths_is_not_read(secrets: Path, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "in").write_text("a=inside\n")
    (tmp_path / "allowed-too").write_text("a=beside\n")
    given = {**FILE, "config.providers.file.param.allowed.paths": str(allowed)}
    assert resolved(f"${{file:{allowed}/in:a}}", given) == "inside"
    for path in (str(secrets), f"{allowed}/../secrets.properties", str(tmp_path / "allowed-too")):
        assert resolved(f"${{file:{path}:a}}", given) == f"${{file:{path}:a}}"
    with pytest.raises(ConfigError, match="not absolute"):
        resolved("", {**FILE, "config.providers.file.param.allowed.paths": "here"})


def test_a_directory_has_a_file_for_each_key(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "inner").mkdir()
    assert resolved(f"${{dir:{tmp_path}:password}}", DIRECTORY) == "secret\n", "nothing is trimmed"
    for key in ("absent", "inner", "../x", ""):
        assert resolved(f"${{dir:{tmp_path}:{key}}}", DIRECTORY) == f"${{dir:{tmp_path}:{key}}}"


def test_variables_that_are_allowed() -> None:
    assert resolved("${env:A}${env:B}", ENV, A="1") == "1${env:B}"
    given = {**ENV, "config.providers.env.param.allowlist.pattern": "OK_.*"}
    assert resolved("${env:OK_A}${env:NOT_OK_A}", given, OK_A="1", NOT_OK_A="2") == "1${env:NOT_OK_A}"
    with pytest.raises(ConfigError, match="Path is not supported"):
        resolved("${env:/x:A}", ENV, A="1")


def test_a_provider_of_another_class_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"no com\.example\.Vault"):
        ConfigProviders({"config.providers": "v", "config.providers.v.class": "com.example.Vault"}, {})


def test_the_brokers_own_properties(secrets: Path) -> None:
    secrets.write_text("id=7\npassword=hidden\n")
    config = BrokerConfig.from_properties(
        {
            **FILE,
            "node.id": f"${{file:{secrets}:id}}",
            "listener.name.x.ssl.keystore.password": f"${{file:{secrets}:password}}",
        }
    )
    assert config.node_id == 7
    assert config.given["listener.name.x.ssl.keystore.password"] == "hidden"
    assert "hidden" not in str(config.notes)


def test_dynamic_values_refer_to_providers_of_the_static_file_only(
    secrets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets.write_text("password=hidden\n")
    dynamic = {
        PASSWORD: f"${{file:{secrets}:password}}",
        JAAS: f"${{file:{secrets}:password}}",
        "listener.name.other.ssl.key.password": "${file:/nowhere:password}",
        **{name: text for name, text in ENV.items() if name not in FILE},
    }
    with_provider = BrokerConfig.from_properties(FILE)
    with_provider.apply_dynamic({}, dynamic)
    found = with_provider.resolved_stored(with_provider.stored_node)
    assert found[PASSWORD] == found[JAAS] == "hidden"
    assert "hidden" not in str(broker_entries(with_provider))
    assert with_provider.stored_node[PASSWORD].startswith("${"), "the reference is stored"
    assert "hidden" not in caplog.text
    without = BrokerConfig.from_properties()
    without.apply_dynamic({**FILE, **ENV, "config.providers": "file,env"}, dynamic)
    assert without.resolved_stored(without.stored_node)[PASSWORD] == dynamic[PASSWORD]


def test_a_dynamic_value_that_is_shown_is_not_resolved(secrets: Path) -> None:
    """Not in DescribeConfigs, nor in the error of a store that can't be read: a client with the right to alter configs has none to
    read the node's files and variables."""
    secrets.write_text("password=hidden\nthreads=3\n")
    config = BrokerConfig.from_properties(FILE)
    reference = f"${{file:{secrets}:password}}"
    location = "listener.name.plaintext.ssl.keystore.location"
    config.apply_dynamic(
        {"metric.reporters": reference},
        {location: reference, "log.cleaner.threads": f"${{file:{secrets}:threads}}"},
    )
    assert config.log_cleaner_threads == 1
    assert config.resolved_stored(config.stored_node)[location] == reference
    shown = {entry.name: entry for entry in broker_entries(config)}
    assert shown["metric.reporters"].value == reference
    assert "hidden" not in str(shown)
