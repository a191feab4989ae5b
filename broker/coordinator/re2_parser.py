"""Parser of RE2 patterns, which compiles a pattern while it reads it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias

from barnabas.broker.coordinator.re2_characters import (
    ANY_CHAR,
    ANY_CHAR_IN_LINE,
    ANY_ITEM,
    CATEGORIES,
    DIGIT,
    HEX,
    PERL_ITEMS,
    POSIX_ITEMS,
    WORD,
    CharClass,
    Item,
    case_variants,
    item_of,
)

PATTERN_MAX: Final = 4096  # characters; its classes have fewer items in all
PROGRAM_MAX: Final = 4096  # instructions; a repetition copies those of its operand
NESTING_MAX: Final = 1000  # groups in groups
REPEAT_MAX: Final = 1000  # RE2's limit of the counts in {n,m}

_OCTAL: Final = frozenset("01234567")

_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

# What is known of a position in the text. An instruction may ask for some of them.
BEGIN_TEXT: Final = 1
BEGIN_LINE: Final = 2
END_TEXT: Final = 4
END_LINE: Final = 8
WORD_BOUNDARY: Final = 16
NO_WORD_BOUNDARY: Final = 32


class PatternError(ValueError):
    """The pattern is not one of RE2, or too large."""


class Instruction(NamedTuple):
    """Takes a character of `test`; or, where `test` is None, goes to all `targets` (relative) if the position has all
    of `conditions`."""

    test: CharClass | None
    targets: tuple[int, ...] = (1,)
    conditions: int = 0


Code: TypeAlias = list[Instruction]


class _Group:
    """An open parenthesis: its alternatives so far, and the parts of the present one."""

    __slots__ = ("alternatives", "flags", "parts")

    def __init__(self, flags: frozenset[str]) -> None:
        self.flags = flags  # outside, where they hold again behind it
        self.alternatives: list[Code] = []
        self.parts: list[Code] = []


class Parser:
    """Compiles a pattern while it reads it. Jumps are relative, so that code can be copied and joined as it is."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_MAX:
            raise PatternError("the pattern is too long")
        self._pattern = pattern
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._groups = [_Group(self._flags)]
        self._names: set[str] = set()
        self._literals: dict[frozenset[str], CharClass] = {}

    def parse(self) -> Generator[None, None, Code]:
        follows_repetition = False
        while self._at < len(self._pattern):
            follows_repetition = self._repetition(may_follow=not follows_repetition)
            if not follows_repetition:
                self._token()
            yield
        if len(self._groups) > 1:
            raise PatternError("missing closing )")
        return self._joined(self._groups[0])

    # -- tokens

    def _token(self) -> None:
        char = self._next()
        parts = self._groups[-1].parts
        if char == "(":
            self._open()
        elif char == ")":
            self._close()
        elif char == "|":
            self._end_alternative(self._groups[-1])
        elif char == "[":
            parts.append([Instruction(self._class())])
        elif char == ".":
            parts.append([Instruction(ANY_CHAR if "s" in self._flags else ANY_CHAR_IN_LINE)])
        elif char == "^":
            parts.append([_condition(BEGIN_LINE if "m" in self._flags else BEGIN_TEXT)])
        elif char == "$":
            parts.append([_condition(END_LINE if "m" in self._flags else END_TEXT)])
        elif char == "\\":
            self._backslash()
        else:
            self._literal(char)

    def _next(self, missing: str = "trailing backslash at end of expression") -> str:
        """The next character; without one the error is that something is `missing`."""
        if self._at >= len(self._pattern):
            raise PatternError(missing)
        self._at += 1
        return self._pattern[self._at - 1]

    def _is_next(self, text: str) -> bool:
        """Whether the pattern goes on with the text, which is then read."""
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _literal(self, char: str) -> None:
        chars = case_variants(char) if "i" in self._flags else frozenset(char)
        found = self._literals.get(chars)
        if found is None:
            found = self._literals[chars] = CharClass([item_of(chars)])
        self._groups[-1].parts.append([Instruction(found)])

    def _backslash(self) -> None:
        parts = self._groups[-1].parts
        if self._is_next("Q"):
            end = self._pattern.find("\\E", self._at)
            quoted = self._pattern[self._at :] if end < 0 else self._pattern[self._at : end]
            self._at += len(quoted) + (2 if end >= 0 else 0)
            for char in quoted:
                self._literal(char)
        elif self._is_next("A"):
            parts.append([_condition(BEGIN_TEXT)])
        elif self._is_next("z"):
            parts.append([_condition(END_TEXT)])
        elif self._is_next("b"):
            parts.append([_condition(WORD_BOUNDARY)])
        elif self._is_next("B"):
            parts.append([_condition(NO_WORD_BOUNDARY)])
        else:
            self._at -= 1
            item = self._class_escape()
            if item is None:
                self._at += 1
                self._literal(self._escape())
            else:
                parts.append([Instruction(CharClass([item], is_folded="i" in self._flags))])

    def _escape(self) -> str:
        """The character that an escape stands for; behind its backslash."""
        char = self._next()
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char in _OCTAL:
            digits = char
            while len(digits) < 3 and self._pattern[self._at : self._at + 1] in _OCTAL:
                digits += self._next()
            if char != "0" and len(digits) == 1:
                raise PatternError("invalid escape sequence")
            return chr(int(digits, 8))
        if char == "x":
            return self._hexadecimal()
        if char.isascii() and char.isalnum():
            raise PatternError("invalid escape sequence")
        return char

    def _hexadecimal(self) -> str:
        if self._is_next("{"):
            end = self._pattern.find("}", self._at)
            digits = self._pattern[self._at : end] if end > 0 else ""
            self._at = end + 1
        else:
            digits = self._pattern[self._at : self._at + 2]
            self._at += 2
            if len(digits) < 2:
                digits = ""
        if not digits or not HEX.issuperset(digits) or int(digits, 16) > 0x10FFFF:
            raise PatternError("invalid escape sequence")
        return chr(int(digits, 16))

    # -- groups

    def _open(self) -> None:
        if not self._is_next("?"):
            self._groups.append(_Group(self._flags))
        elif self._is_next("P<") or self._is_next("<"):
            self._name()
        else:
            self._read_flags()
        if len(self._groups) > NESTING_MAX:
            raise PatternError("groups are nested too deeply")

    def _name(self) -> None:
        end = self._pattern.find(">", self._at)
        name = self._pattern[self._at : end] if end >= 0 else ""
        if not name or not WORD.issuperset(name):
            raise PatternError("invalid named capture")
        if name in self._names:
            raise PatternError("duplicate capture group name")
        self._names.add(name)
        self._at = end + 1
        self._groups.append(_Group(self._flags))

    def _read_flags(self) -> None:
        """Read flags: of a group, such as i-s: or up to the end of the present one, such as i)."""
        before = self._flags
        flags = set(before)
        is_negative = has_flag = False
        while True:
            char = self._next("invalid or unsupported Perl syntax")
            if char in "imsU":
                (flags.discard if is_negative else flags.add)(char)
                has_flag = True
            elif char == "-" and not is_negative:
                is_negative, has_flag = True, False
            elif char in ":)" and (has_flag or not is_negative):
                self._flags = frozenset(flags)
                if char == ":":
                    self._groups.append(_Group(before))
                return
            else:
                raise PatternError("invalid or unsupported Perl syntax")

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise PatternError("regexp/syntax: internal error")
        group = self._groups.pop()
        self._flags = group.flags
        self._groups[-1].parts.append(self._joined(group))

    def _end_alternative(self, group: _Group) -> None:
        group.alternatives.append(_sequence(group.parts))
        group.parts = []

    def _joined(self, group: _Group) -> Code:
        self._end_alternative(group)
        codes = group.alternatives
        if len(codes) == 1:
            return codes[0]
        _check_size(sum(len(each) + 1 for each in codes) + 1)
        targets = []
        joined: Code = [_condition(0)]  # replaced below
        size = sum(len(each) + 1 for each in codes) + 1
        for code in codes:
            targets.append(len(joined))
            joined += code
            joined.append(Instruction(None, (size - len(joined),)))
        joined[0] = Instruction(None, tuple(targets))
        return joined

    # -- repetitions

    def _repetition(self, *, may_follow: bool) -> bool:
        """Read a repetition, if there is one. `may_follow`: the last token was none, as none of a repetition is allowed."""
        char = self._pattern[self._at]
        if char in "*+?":
            self._at += 1
            low, high = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[char]
        elif char == "{":
            counts = self._counts()
            if counts is None:
                self._literal(self._next())
                return True  # as RE2/J has it: the brace can't be repeated
            low, high = counts
        else:
            return False
        self._is_next("?")  # of a lazy one, which matches the same texts
        parts = self._groups[-1].parts
        if not may_follow:
            raise PatternError("invalid nested repetition operator")
        if not parts:
            raise PatternError("missing argument to repetition operator")
        parts[-1] = _repeated(parts[-1], low, high)
        return True

    def _counts(self) -> tuple[int, int] | None:
        """(n, m) of {n}, {n,} (-1) or {n,m}; None if the brace is a literal."""
        end = self._pattern.find("}", self._at)
        if end < 0:
            return None
        low_text, comma, high_text = self._pattern[self._at + 1 : end].partition(",")
        low = _count(low_text)
        if not comma:
            high = low
        elif not high_text:
            high = -1
        else:
            high = _count(high_text)
        if low is None or high is None:
            return None
        self._at = end + 1
        if low > REPEAT_MAX or high > REPEAT_MAX or 0 <= high < low:
            raise PatternError("invalid repeat count")
        return low, high

    # -- classes

    def _class_escape(self) -> Item | None:
        r"""Read \d, \pL or the like, if there is one."""
        if self._pattern[self._at] != "\\" or self._at + 1 >= len(self._pattern):
            return None
        char = self._pattern[self._at + 1]
        if char in "pP":
            self._at += 2
            return self._category(is_negated=char == "P")
        if char.lower() not in PERL_ITEMS:
            return None
        self._at += 2
        return PERL_ITEMS[char.lower()]._replace(is_negated=char.isupper())

    def _category(self, *, is_negated: bool) -> Item:
        name = self._next("invalid character class range")
        if name == "{":
            end = self._pattern.find("}", self._at)
            if end < 0:
                raise PatternError("invalid character class range")
            name = self._pattern[self._at : end]
            self._at = end + 1
        if name.startswith("^"):
            name, is_negated = name[1:], not is_negated
        if name == "Any":
            return ANY_ITEM._replace(is_negated=is_negated)
        if name not in CATEGORIES:
            raise PatternError("invalid character class range")
        return Item(categories=CATEGORIES[name], is_negated=is_negated)

    def _class(self) -> CharClass:
        is_negated = self._is_next("^")
        items: list[Item] = []
        is_first = True
        while is_first or self._pattern[self._at : self._at + 1] != "]":
            is_first = False
            found = self._posix_class() or self._peeked_class_escape()
            if found is None:
                low = high = self._class_char()
                if (
                    self._pattern.startswith("-", self._at)
                    and self._pattern[self._at + 1 : self._at + 2] != "]"
                ):
                    self._at += 1
                    high = self._class_char()
                if high < low:
                    raise PatternError("invalid character class range")
                found = Item(((ord(low), ord(high)),))
            items.append(found)
        self._at += 1
        return CharClass(items, is_folded="i" in self._flags, is_negated=is_negated)

    def _peeked_class_escape(self) -> Item | None:
        return self._class_escape() if self._at < len(self._pattern) else None

    def _class_char(self) -> str:
        char = self._next("missing closing ]")
        return self._escape() if char == "\\" else char

    def _posix_class(self) -> Item | None:
        end = self._pattern.find(":]", self._at + 1)  # "[:]" is a class without a name
        if not self._pattern.startswith("[:", self._at) or end < 0:
            return None
        name = self._pattern[self._at + 2 : end]
        self._at = end + 2
        is_negated = name.startswith("^")
        item = POSIX_ITEMS.get(name[is_negated:])
        if item is None:
            raise PatternError("invalid character class range")
        return item._replace(is_negated=is_negated)


def _condition(conditions: int) -> Instruction:
    return Instruction(None, (1,), conditions)


def _sequence(parts: list[Code]) -> Code:
    _check_size(sum(map(len, parts)))
    return parts[0] if len(parts) == 1 else [instruction for part in parts for instruction in part]


def _repeated(code: Code, low: int, high: int) -> Code:
    """`high`: -1 is without end."""
    optional = [Instruction(None, (1, len(code) + 1)), *code]
    if high >= 0:
        _check_size(low * len(code) + (high - low) * len(optional))
        return code * low + optional * (high - low)
    _check_size(low * len(code) + len(code) + 2)
    endless = [
        Instruction(None, (1, len(code) + 2)),
        *code,
        Instruction(None, (-len(code) - 1,)),
    ]
    return code * low + endless


def _check_size(size: int) -> None:
    if size > PROGRAM_MAX:
        raise PatternError("the pattern is too large")


def _count(text: str) -> int | None:
    """A count without leading zeros; None if it is none."""
    if not text or not DIGIT.issuperset(text) or (len(text) > 1 and text[0] == "0"):
        return None
    return int(text) if len(text) <= 8 else REPEAT_MAX + 1
