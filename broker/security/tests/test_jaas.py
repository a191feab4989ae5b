"""The grammar of sasl.jaas.config, with what Kafka 4.3.1 says to the same texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasError,
    parse_jaas_file,
    parse_login_module,
)
from barnabas.broker.security.sasl_config import login_module
from barnabas.controller.config.validators import ConfigError


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ('username="a" password="b"', {"username": "a", "password": "b"}),
        ("username='a' password=b-c_d$e.f9", {"username": "a", "password": "b-c_d$e.f9"}),
        (r'a="\"\\\n\101\7z\400\q"', {"a": '"\\\nA\x07z 0q'}),
        (
            "a = \"b\" // more\n c='d' /* e=f\n */ g=h / a comment of one slash\n",
            {"a": "b", "c": "d", "g": "h"},
        ),
        ('a="x" a="y"', {"a": "y"}),
        ('a="ends with the line\nb=c', {"a": "ends with the line", "b": "c"}),
        ('user_grün="pässwörd"', {"user_grün": "pässwörd"}),
        ("", {}),
    ],
)
def test_options(options: str, found: dict[str, str]) -> None:
    module = parse_login_module(f"{PLAIN_MODULE} required {options};")
    assert (module.name, module.options) == (PLAIN_MODULE, found)


@pytest.mark.parametrize("flag", ["required", "REQUISITE", "Sufficient", "optional"])
@pytest.mark.parametrize("name", [PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE])
def test_flags_and_modules(name: str, flag: str) -> None:
    assert parse_login_module(f" {name}\n{flag} ; ").name == name


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "Login module not specified in JAAS config"),
        (" // nothing", "Login module not specified in JAAS config"),
        (PLAIN_MODULE, "Login module control flag is not available in the JAAS config"),
        (f"{PLAIN_MODULE} a=b;", "Invalid login module control flag 'a' in JAAS config"),
        (f'{PLAIN_MODULE} required a="b"', "JAAS config entry not terminated by semi-colon"),
        (f"{PLAIN_MODULE} required a=;", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN_MODULE} required a=1;", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN_MODULE} required a b;", "Value not specified for key 'a' in JAAS config"),
        (f"{PLAIN_MODULE} required =b;", "Value not specified for key 'null' in JAAS config"),
        (
            f"{PLAIN_MODULE} required; {SCRAM_MODULE} required;",
            "JAAS config property contains 2 login modules, should be 1 module",
        ),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(JaasError) as raised:
        parse_login_module(text)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    "name",
    ["com.sun.security.auth.module.JndiLoginModule", "com.sun.security.auth.module.LdapLoginModule", "x.Y"],
)
def test_other_modules_are_refused(name: str) -> None:
    with pytest.raises(JaasError, match=f"^{name} is not allowed"):
        parse_login_module(f'{name} required user.provider.url="ldap://attacker";')


def test_secrets_are_not_shown() -> None:
    module = parse_login_module(f'{PLAIN_MODULE} required password="hunter2";')
    assert "hunter2" not in repr(module)
    for broken in ('password="hunter2"', 'password="hunter2" x;', '"hunter2" "hunter2" 1'):
        with pytest.raises(JaasError) as raised:
            parse_login_module(f"{PLAIN_MODULE} required {broken}")
        assert "password" not in str(raised.value)


FILE = f"""
// as in many container images
KafkaServer {{
    {SCRAM_MODULE} required username="admin" password="s";
    {PLAIN_MODULE} required user_alice="first";
    {PLAIN_MODULE} required user_alice="second" user_bob="b";
}};
sasl_ssl.KafkaServer {{ {PLAIN_MODULE} required user_carol="c"; }};
KafkaClient {{}};
"""


def test_a_file_has_sections_of_several_modules() -> None:
    sections = parse_jaas_file(FILE)
    assert {name: [module.name for module in modules] for name, modules in sections.items()} == {
        "KafkaServer": [SCRAM_MODULE, PLAIN_MODULE, PLAIN_MODULE],
        "sasl_ssl.KafkaServer": [PLAIN_MODULE],
        "KafkaClient": [],
    }


@pytest.mark.parametrize(
    "text",
    ["KafkaServer", "KafkaServer {", "KafkaServer { };{", "KafkaServer { a required; }", "{ };", "KafkaServer { a=b; };"],
)  # fmt: skip
def test_a_file_that_is_none(text: str) -> None:
    with pytest.raises(JaasError):
        parse_jaas_file(text)


def test_a_listener_takes_its_section_of_the_file_that_kafka_opts_names(tmp_path: Path) -> None:
    (tmp_path / "jaas.conf").write_text(FILE)
    config = BrokerConfig.load(
        None,
        {"KAFKA_OPTS": f"-Xmx1g -Djava.security.auth.login.config={tmp_path}/jaas.conf"},
        [
            "listeners=SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms=PLAIN",
            "listener.name.own.plain.sasl.jaas.config=" + PLAIN_MODULE + " required user_dave=d;",
        ],
    )
    found = {
        name: login_module(config, name, "PLAIN").options for name in ("SASL_SSL", "SASL_PLAINTEXT", "OWN")
    }
    assert found == {
        "SASL_SSL": {"user_carol": "c"},
        "SASL_PLAINTEXT": {"user_alice": "first", "user_bob": "b"},
        "OWN": {"user_dave": "d"},
    }
    assert login_module(config, "SASL_PLAINTEXT", "SCRAM-SHA-256").options["username"] == "admin"
    config.jaas_file = tmp_path / "none"
    with pytest.raises(ConfigError, match=r"java\.security\.auth\.login\.config"):
        login_module(config, "SASL_SSL", "PLAIN")
