"""The grammar of sasl.jaas.config, with what Kafka 4.3.1 says to the same texts."""

from __future__ import annotations

import pytest

from barnabas.broker.security.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasError,
    parse_login_module,
)


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
