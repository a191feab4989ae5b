"""Reads `sasl.jaas.config`, the login module of a mechanism and its options, and files of such entries.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" user_admin="secret";

The grammar is that of JAAS as Kafka reads it, by Java's StreamTokenizer: words, strings in single or double quotes with C
escapes, `//`, `/* */` and `/` comments. An unquoted number is no value. The errors are Kafka's and quote keys, never values.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
# Others are Java classes, some of which run code of the configuration's choice (CVE-2023-25194, CVE-2025-27819).
KNOWN_MODULES: Final = (PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE)
_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL: Final = "01234567"


class JaasError(Exception):
    """The text is no JAAS configuration, or not one of a single known module. The message holds no value."""


class LoginModule(msgspec.Struct, frozen=True):
    """One entry. The options hold secrets, so they are not shown."""

    name: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name}, [hidden])"


def parse_login_module(text: str) -> LoginModule:
    """The one login module in the text. JaasError."""
    modules = _parse(text)
    if len(modules) != 1:
        raise JaasError(f"JAAS config property contains {len(modules)} login modules, should be 1 module")
    name = modules[0].name
    if name not in KNOWN_MODULES:
        raise JaasError(f"{name[:200]} is not allowed: the login modules are {', '.join(KNOWN_MODULES)}")
    return modules[0]


def parse_jaas_file(text: str) -> dict[str, list[LoginModule]]:
    """The sections of a file, such as `KafkaServer { MODULE required user_admin="secret"; };`, by name. JaasError."""
    tokens = _Tokens(text)
    sections: dict[str, list[LoginModule]] = {}
    while (name := tokens.next()) is not None:
        begin = tokens.next()
        if name.word is None or begin is None or begin.character != "{":
            raise JaasError("a section does not begin with its name and {")
        modules = sections.setdefault(name.word, [])
        while (token := tokens.next()) is not None and token.character != "}":
            modules.append(_parse_entry(token, tokens))
        end = tokens.next()
        if token is None or end is None or end.character != ";":
            raise JaasError(f"section {name.word[:200]} does not end with }};")
    return sections


def _parse(text: str) -> list[LoginModule]:
    tokens = _Tokens(text)
    modules: list[LoginModule] = []
    while (token := tokens.next()) is not None:
        modules.append(_parse_entry(token, tokens))
    if not modules:
        raise JaasError("Login module not specified in JAAS config")
    return modules


def _parse_entry(first: _Token, tokens: _Tokens) -> LoginModule:
    flag = tokens.next()
    if flag is None or flag.word is None:
        raise JaasError("Login module control flag is not available in the JAAS config")
    if flag.word.upper() not in _FLAGS:
        raise JaasError(f"Invalid login module control flag '{flag.word[:200]}' in JAAS config")
    options: dict[str, str] = {}
    while (key := tokens.next()) is not None and key.character != ";":
        equals = tokens.next()
        value = tokens.next() if equals is not None and equals.character == "=" else None
        if value is None or value.word is None:
            shown = "null" if key.word is None else key.word[:200]
            raise JaasError(f"Value not specified for key '{shown}' in JAAS config")
        if key.word is not None:
            options[key.word] = value.word
    if key is None:
        raise JaasError("JAAS config entry not terminated by semi-colon")
    return LoginModule(first.word or "null", options)


class _Token(NamedTuple):
    """A word or a string; or a character that is neither. A number is None for both."""

    word: str | None
    character: str | None


class _Tokens:
    """StreamTokenizer with `-`, `_` and `$` as word characters, as Kafka sets it up."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def next(self) -> _Token | None:
        """None at the end."""
        text = self._text
        while self._position < len(text):
            character = text[self._position]
            if character <= " ":
                self._position += 1
            elif character == "/":
                self._skip_comment()
            elif character in "\"'":
                return _Token(self._string(character), None)
            elif character in "0123456789.-":
                return self._number(character)
            elif _begins_word(character):
                start = self._position
                while self._position < len(text) and _is_in_word(text[self._position]):
                    self._position += 1
                return _Token(text[start : self._position], None)
            else:
                self._position += 1
                return _Token(None, character)
        return None

    def _skip_comment(self) -> None:
        if self._text.startswith("/*", self._position):
            end = self._text.find("*/", self._position + 2)
            self._position = len(self._text) if end < 0 else end + 2
            return
        while self._position < len(self._text) and self._text[self._position] not in "\r\n":
            self._position += 1

    def _number(self, first: str) -> _Token:
        text = self._text
        self._position += 1
        if first == "-" and text[self._position : self._position + 1] not in tuple("0123456789."):
            return _Token(None, "-")
        has_point = first == "."
        while self._position < len(text) and (
            text[self._position] in "0123456789" or (text[self._position] == "." and not has_point)
        ):
            has_point = has_point or text[self._position] == "."
            self._position += 1
        return _Token(None, None)

    def _string(self, quote: str) -> str:
        """A string ends at its quote, or with the line."""
        text = self._text
        out: list[str] = []
        self._position += 1
        while self._position < len(text) and (character := text[self._position]) not in (quote, "\n", "\r"):
            self._position += 1
            if character != "\\" or self._position == len(text):
                out.append(character)
                continue
            escaped = text[self._position]
            if escaped in _OCTAL:
                longest = 3 if escaped <= "3" else 2
                end = self._position
                while end < len(text) and end - self._position < longest and text[end] in _OCTAL:
                    end += 1
                out.append(chr(int(text[self._position : end], 8)))
                self._position = end
            else:
                out.append(_ESCAPES.get(escaped, escaped))
                self._position += 1
        if text[self._position : self._position + 1] == quote:
            self._position += 1
        return "".join(out)


def _begins_word(character: str) -> bool:
    return (character.isascii() and (character.isalpha() or character in "_$")) or character >= "\xa0"


def _is_in_word(character: str) -> bool:
    return _begins_word(character) or character in "0123456789.-"
