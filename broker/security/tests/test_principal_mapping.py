"""ssl.principal.mapping.rules."""

from __future__ import annotations

import pytest

from barnabas.broker.security.principal_mapping import PrincipalMapper
from barnabas.controller.config.validators import ConfigError

NAME = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "mapped"),
    [
        ("DEFAULT", NAME, NAME),
        ("", NAME, NAME),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", NAME, "Duke"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", NAME, "duke"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/U", NAME, "DUKE"),
        (r"RULE:^CN=(.*?),OU=Other.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U ,DEFAULT", NAME, "DUKE@SERVICEUSERS"),
        (r"RULE:^CN=(.*?),OU=Other.*$/$1/L, DEFAULT", NAME, NAME),
        (r"RULE:^CN=(.*?),OU=Other.*$/$1/L", NAME, None),
        ("RULE:CN=Duke/x/", NAME, None),  # the whole name must match
        (r"RULE:CN=(\w+),.*/a\/b$1/", NAME, "a/bDuke"),
        (r"RULE:CN=a\/b/$0 $7/", "CN=a/b", "CN=a/b $7"),  # beyond the groups it is text
        (r"RULE:CN=(a)(b)?.*/$12-$2/", "CN=a", "a2-"),
        (r"RULE:CN=(?<user>\w+).*/$1/", NAME, "Duke"),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,RULE:x/y/", NAME, "duke"),
    ],
)  # fmt: skip
def test_rules(rules: str, name: str, mapped: str | None) -> None:
    assert PrincipalMapper(rules).name_of(name) == mapped


@pytest.mark.parametrize(
    "rules", ["default", "DEFAULT,", "RULE:a", "RULE:(/b/", "RULE:a/b/X", "RULE:a/b/,zap", "x,DEFAULT"]
)
def test_wrong_rules_stop_the_start(rules: str) -> None:
    if rules == "DEFAULT,":  # nothing follows the comma
        assert PrincipalMapper(rules).name_of("CN=a") == "CN=a"
        return
    with pytest.raises(
        ConfigError, match=r"Invalid value .* for configuration ssl\.principal\.mapping\.rules"
    ):
        PrincipalMapper(rules)
