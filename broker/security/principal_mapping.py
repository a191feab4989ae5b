"""ssl.principal.mapping.rules (KIP-371): from a certificate's distinguished name to the name of a principal.

The patterns are compiled by Python's `re`. What only Java's have, such as classes of Unicode properties, is an error at the start, so
that no rule means something else than in Kafka. The name is matched as a whole, and the replacement follows
Java's `String.replaceAll`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from barnabas.controller.config.validators import ConfigError

_NAME: Final = "ssl.principal.mapping.rules"
_PART: Final = r"((?:\\.|[^\\/])*)"
_RULE: Final = rf"\s*(?:(?P<default>DEFAULT)|RULE:{_PART}/{_PART}/([LU]?))\s*(?:,|$)"

_Rule = Callable[[str], str | None]


class PrincipalMapper:
    """Applies the rules; the first that matches counts."""

    def __init__(self, rules: str) -> None:
        """ConfigError for rules that can't be used."""
        self._rules = _parse(rules)

    def name_of(self, distinguished_name: str) -> str | None:
        """The name of the principal; None when no rule matches."""
        for rule in self._rules:
            name = rule(distinguished_name)
            if name is not None:
                return name
        return None


def _default(name: str) -> str:
    return name


def _parse(text: str) -> list[_Rule]:
    if not text.strip():
        return [_default]
    rules: list[_Rule] = []
    at = 0
    while at < len(text):
        match = re.compile(_RULE).match(text, at)
        if match is None:
            raise ConfigError.invalid(_NAME, text, f"Invalid rule: `{text[at:].strip()}`")
        at = match.end()
        rules.append(_default if match["default"] else _rule(text, match[2], match[3], match[4]))
    return rules


def _rule(text: str, pattern: str, replacement: str, case: str) -> _Rule:
    try:
        # Java's spelling of named groups; other differences are errors here
        compiled = re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", pattern.replace("\\/", "/")))
    except re.error as error:
        raise ConfigError.invalid(
            _NAME, text, f"the pattern {pattern} is no regular expression: {error}"
        ) from None
    parts = _template(replacement.replace("\\/", "/"), compiled.groups)

    def expand(match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)

    def apply(name: str) -> str | None:
        if compiled.fullmatch(name) is None:
            return None
        found = compiled.sub(expand, name)
        return found.lower() if case == "L" else found.upper() if case == "U" else found

    return apply


def _template(replacement: str, groups: int) -> list[str | int]:
    """Texts and numbers of groups. `$n` takes as many digits as name a group; beyond the groups it is text."""
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        character = replacement[at]
        at += 1
        if character == "\\" and at < len(replacement):
            parts.append(replacement[at])
            at += 1
        elif character == "$" and at < len(replacement) and replacement[at] in "0123456789":
            number = int(replacement[at])
            if number > groups:
                parts.append("$")
                continue
            at += 1
            while at < len(replacement) and replacement[at] in "0123456789":
                longer = number * 10 + int(replacement[at])
                if longer > groups:
                    break
                number = longer
                at += 1
            parts.append(number)
        else:
            parts.append(character)
    return parts
