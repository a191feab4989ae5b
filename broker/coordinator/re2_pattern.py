r"""RE2 patterns, which Kafka uses where a client sends a regular expression (KIP-1152); here without backtracking as well.

A pattern is compiled into a nondeterministic automaton, and a text is matched character by character against the set of
states that it can be in: the time is bounded by the length of the text times the size of the program, for every pattern. Python's
`re` would take exponential time for some.

The syntax is RE2/J's, with its errors, but: Unicode scripts such as \p{Greek} are errors (general categories such as \p{Lu} are
known), and so are patterns that are larger than the limits below.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Generator, Iterable
from typing import Final, NamedTuple, TypeAlias

PATTERN_MAX: Final = 4096  # characters; its classes have fewer items in all
PROGRAM_MAX: Final = 4096  # instructions; a repetition copies those of its operand
NESTING_MAX: Final = 1000  # groups in groups
REPEAT_MAX: Final = 1000  # RE2's limit of the counts in {n,m}
CACHE_MAX: Final = 50_000  # states in remembered steps
# Instructions, and items of classes, between two yields of `matches`; one character may take it further, by a whole program.
WORK_MAX: Final = 1000

# What is known of a position in the text. An instruction may ask for some of them.
_BEGIN_TEXT: Final = 1
_BEGIN_LINE: Final = 2
_END_TEXT: Final = 4
_END_LINE: Final = 8
_WORD_BOUNDARY: Final = 16
_NO_WORD_BOUNDARY: Final = 32


class PatternError(ValueError):
    """The pattern is not one of RE2, or too large."""


_DIGIT: Final = frozenset("0123456789")
_LOWER: Final = frozenset("abcdefghijklmnopqrstuvwxyz")
_UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WORD: Final = _LOWER | _UPPER | _DIGIT | {"_"}
_GRAPHIC: Final = frozenset(map(chr, range(0x21, 0x7F)))
_OCTAL: Final = frozenset("01234567")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_PERL: Final = {"d": _DIGIT, "s": frozenset("\t\n\f\r "), "w": _WORD}
_POSIX: Final = {
    "alnum": _LOWER | _UPPER | _DIGIT,
    "alpha": _LOWER | _UPPER,
    "ascii": frozenset(map(chr, range(0x80))),
    "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, [*range(0x20), 0x7F])),
    "digit": _DIGIT,
    "graph": _GRAPHIC,
    "lower": _LOWER,
    "print": _GRAPHIC | {" "},
    "punct": _GRAPHIC - _LOWER - _UPPER - _DIGIT,
    "space": frozenset("\t\n\v\f\r "),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _HEX,
}
_SUBCATEGORIES: Final = (
    *("Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No"),
    *("Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"),
)
_CATEGORIES: Final = {  # with those that each consists of
    name: frozenset(each for each in _SUBCATEGORIES if each.startswith(name))
    for name in (*_SUBCATEGORIES, *"CLMNPSZ")
}
_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
# Characters that are one but for their case, where more than two are.
_CASE_ORBITS: Final = {
    each: orbit
    for orbit in ("kK\u212a", "sS\u017f", "åÅ\u212b", "ßẞ", "µΜμ", "σςΣ", "βϐΒ", "θϑΘϴ", "φϕΦ", "πϖΠ")
    + ("κϰΚ", "ρϱΡ", "εϵΕ", "ιΙ\u0345\u1fbe", "ωΩ\u2126", "ṡẛṠ", "ı", "İ")  # noqa: RUF001 - alike on purpose
    for each in orbit
}


def _case_variants(char: str) -> frozenset[str]:
    """The character in both cases, as (?i) takes it."""
    orbit = _CASE_ORBITS.get(char)
    if orbit is not None:
        return frozenset(orbit)
    return frozenset(each for each in (char, char.lower(), char.upper(), char.title()) if len(each) == 1)


_Ranges: TypeAlias = tuple[tuple[int, int], ...]  # code points: the first and the last of each


def _merged(ranges: Iterable[tuple[int, int]]) -> _Ranges:
    """The same code points, in as few ranges as possible, in their order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(merged)


class _Item(NamedTuple):
    """Part of a class: code points and general categories, or all characters but those."""

    ranges: _Ranges = ()
    categories: frozenset[str] = frozenset()
    is_negated: bool = False


def _item(chars: Iterable[str]) -> _Item:
    return _Item(_merged((ord(each), ord(each)) for each in chars))


_PERL_ITEMS: Final = {name: _item(chars) for name, chars in _PERL.items()}
_POSIX_ITEMS: Final = {name: _item(chars) for name, chars in _POSIX.items()}
_ANY_ITEM: Final = _Item(((0, 0x10FFFF),))


class _CharSet:
    """Characters that are looked up in the time of one bisection, however many ranges there are."""

    __slots__ = ("_bounds", "_categories")

    def __init__(self, items: Iterable[_Item]) -> None:
        ranges: list[tuple[int, int]] = []
        categories: set[str] = set()
        for item in items:
            ranges += item.ranges
            categories |= item.categories
        # The first of each range and the first behind it: an odd number of them precedes a member.
        self._bounds = [bound for low, high in _merged(ranges) for bound in (low, high + 1)]
        self._categories = categories

    def has_any(self, chars: Iterable[str]) -> bool:
        bounds, categories = self._bounds, self._categories
        for char in chars:
            if bisect_right(bounds, ord(char)) & 1:
                return True
            if categories and unicodedata.category(char) in categories:
                return True
        return False


class _CharClass:
    """The characters that an instruction takes: those of any item, or all others. Equal to itself only, so that copies of an
    instruction are known by it."""

    __slots__ = ("_excluded", "_included", "_is_folded", "_is_negated", "size")

    def __init__(self, items: Iterable[_Item], *, is_folded: bool = False, is_negated: bool = False) -> None:
        distinct = dict.fromkeys(items)
        self.size = len(distinct)
        self._included = _CharSet(each for each in distinct if not each.is_negated)
        # Few: only named items can be negated.
        self._excluded = [_CharSet((each,)) for each in distinct if each.is_negated]
        self._is_folded = is_folded
        self._is_negated = is_negated

    def takes(self, char: str, variants: frozenset[str]) -> bool:
        """`variants`: the character in both cases."""
        chars: Iterable[str] = variants if self._is_folded else char
        found = self._included.has_any(chars) or not all(each.has_any(chars) for each in self._excluded)
        return found is not self._is_negated


_ANY_CHAR: Final = _CharClass([_ANY_ITEM])
_ANY_CHAR_IN_LINE: Final = _CharClass([_item("\n")], is_negated=True)


class _Instruction(NamedTuple):
    """Takes a character of `test`; or, where `test` is None, goes to all `targets` (relative) if the position has all
    of `conditions`."""

    test: _CharClass | None
    targets: tuple[int, ...] = (1,)
    conditions: int = 0


_Code: TypeAlias = list[_Instruction]


class Pattern:
    """A compiled pattern, of `compile`."""

    def __init__(self, code: _Code) -> None:
        self._code = code
        classes = {each.test for each in self._code if each.test is not None}
        self._step_work = len(self._code) + sum(each.size for each in classes)
        # Equal sets are one object, so that a lookup does not compare them.
        self._sets: dict[frozenset[int], frozenset[int]] = {}
        self._cached: dict[tuple[frozenset[int], int, str], frozenset[int]] = {}
        self._cached_states = 0

    @classmethod
    def compile(cls, pattern: str) -> Generator[None, None, Pattern]:
        """Yields after each bounded part of the work. PatternError if the pattern is not valid."""
        return cls((yield from _Parser(pattern).parse()))

    def matches(self, text: str) -> Generator[None, None, bool]:
        """Whether the pattern matches all of the text. Yields after each bounded part of the work."""
        states = self._interned(frozenset((0,)))
        before = ""
        work = 0
        for char in text:
            key = states, _conditions(before, char), char
            found = self._cached.get(key)
            if found is None:
                found = self._step(key)
                work += self._step_work
            states = found
            if not states:
                return False
            before = char
            work += 1
            if work > WORK_MAX:
                work = 0
                yield
        return len(self._code) in self._closure(states, _conditions(before, ""))

    def _step(self, key: tuple[frozenset[int], int, str]) -> frozenset[int]:
        states, conditions, char = key
        code, end = self._code, len(self._code)
        variants = _case_variants(char)
        taken: dict[_CharClass, bool] = {}  # a repetition has many copies of one class
        following = []
        for state in self._closure(states, conditions):
            test = code[state].test if state < end else None
            if test is None:
                continue
            if test not in taken:
                taken[test] = test.takes(char, variants)
            if taken[test]:
                following.append(state + 1)
        self._cached_states += len(states) + len(following) + 1
        if self._cached_states > CACHE_MAX:
            self._cached.clear()
            self._sets.clear()
            self._cached_states = len(states) + len(following) + 1
        found = self._interned(frozenset(following))
        self._cached[self._interned(states), conditions, char] = found
        return found

    def _interned(self, states: frozenset[int]) -> frozenset[int]:
        return self._sets.setdefault(states, states)

    def _closure(self, states: Iterable[int], conditions: int) -> set[int]:
        """All states that can be reached without a character."""
        code, end = self._code, len(self._code)
        reached = set(states)
        waiting = list(reached)
        while waiting:
            state = waiting.pop()
            if state == end:
                continue
            test, targets, wanted = code[state]
            if test is None and wanted & conditions == wanted:
                for target in targets:
                    if state + target not in reached:
                        reached.add(state + target)
                        waiting.append(state + target)
        return reached


def _conditions(before: str, after: str) -> int:
    """Of the position between two characters; "" is the end of the text."""
    found = _WORD_BOUNDARY if (before in _WORD) != (after in _WORD) else _NO_WORD_BOUNDARY
    if not before:
        found |= _BEGIN_TEXT | _BEGIN_LINE
    elif before == "\n":
        found |= _BEGIN_LINE
    if not after:
        found |= _END_TEXT | _END_LINE
    elif after == "\n":
        found |= _END_LINE
    return found


class _Group:
    """An open parenthesis: its alternatives so far, and the parts of the present one."""

    __slots__ = ("alternatives", "flags", "parts")

    def __init__(self, flags: frozenset[str]) -> None:
        self.flags = flags  # outside, where they hold again behind it
        self.alternatives: list[_Code] = []
        self.parts: list[_Code] = []


class _Parser:
    """Compiles a pattern while it reads it. Jumps are relative, so that code can be copied and joined as it is."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_MAX:
            raise PatternError("the pattern is too long")
        self._pattern = pattern
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._groups = [_Group(self._flags)]
        self._names: set[str] = set()
        self._literals: dict[frozenset[str], _CharClass] = {}

    def parse(self) -> Generator[None, None, _Code]:
        follows_repetition = False
        while self._at < len(self._pattern):
            follows_repetition = self._repetition(may_follow=not follows_repetition)
            if not follows_repetition:
                self._token()
            yield
        if len(self._groups) > 1:
            raise PatternError("missing )")
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
            parts.append([_Instruction(self._class())])
        elif char == ".":
            parts.append([_Instruction(_ANY_CHAR if "s" in self._flags else _ANY_CHAR_IN_LINE)])
        elif char == "^":
            parts.append([_condition(_BEGIN_LINE if "m" in self._flags else _BEGIN_TEXT)])
        elif char == "$":
            parts.append([_condition(_END_LINE if "m" in self._flags else _END_TEXT)])
        elif char == "\\":
            self._backslash()
        else:
            self._literal(char)

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise PatternError("unexpected end")
        self._at += 1
        return self._pattern[self._at - 1]

    def _is_next(self, text: str) -> bool:
        """Whether the pattern goes on with the text, which is then read."""
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _literal(self, char: str) -> None:
        chars = _case_variants(char) if "i" in self._flags else frozenset(char)
        found = self._literals.get(chars)
        if found is None:
            found = self._literals[chars] = _CharClass([_item(chars)])
        self._groups[-1].parts.append([_Instruction(found)])

    def _backslash(self) -> None:
        parts = self._groups[-1].parts
        if self._is_next("Q"):
            end = self._pattern.find("\\E", self._at)
            quoted = self._pattern[self._at :] if end < 0 else self._pattern[self._at : end]
            self._at += len(quoted) + (2 if end >= 0 else 0)
            for char in quoted:
                self._literal(char)
        elif self._is_next("A"):
            parts.append([_condition(_BEGIN_TEXT)])
        elif self._is_next("z"):
            parts.append([_condition(_END_TEXT)])
        elif self._is_next("b"):
            parts.append([_condition(_WORD_BOUNDARY)])
        elif self._is_next("B"):
            parts.append([_condition(_NO_WORD_BOUNDARY)])
        else:
            self._at -= 1
            item = self._class_escape()
            if item is None:
                self._at += 1
                self._literal(self._escape())
            else:
                parts.append([_Instruction(_CharClass([item], is_folded="i" in self._flags))])

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
                raise PatternError("no back references")
            return chr(int(digits, 8))
        if char == "x":
            return self._hexadecimal()
        if char.isascii() and char.isalnum():
            raise PatternError("no such escape")
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
        if not digits or not _HEX.issuperset(digits) or int(digits, 16) > 0x10FFFF:
            raise PatternError("not a code point")
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
        if not name or not _WORD.issuperset(name) or name in self._names:
            raise PatternError("not the name of a group")
        self._names.add(name)
        self._at = end + 1
        self._groups.append(_Group(self._flags))

    def _read_flags(self) -> None:
        """Read flags: of a group, such as i-s: or up to the end of the present one, such as i)."""
        before = self._flags
        flags = set(before)
        is_negative = has_flag = False
        while True:
            char = self._next()
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
                raise PatternError("no such group")

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise PatternError("unexpected )")
        group = self._groups.pop()
        self._flags = group.flags
        self._groups[-1].parts.append(self._joined(group))

    def _end_alternative(self, group: _Group) -> None:
        group.alternatives.append(_sequence(group.parts))
        group.parts = []

    def _joined(self, group: _Group) -> _Code:
        self._end_alternative(group)
        codes = group.alternatives
        if len(codes) == 1:
            return codes[0]
        _check_size(sum(len(each) + 1 for each in codes) + 1)
        targets = []
        joined: _Code = [_condition(0)]  # replaced below
        size = sum(len(each) + 1 for each in codes) + 1
        for code in codes:
            targets.append(len(joined))
            joined += code
            joined.append(_Instruction(None, (size - len(joined),)))
        joined[0] = _Instruction(None, tuple(targets))
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
        if not may_follow or not parts:
            raise PatternError("nothing to repeat")
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
            raise PatternError("not a count of repetitions")
        return low, high

    # -- classes

    def _class_escape(self) -> _Item | None:
        r"""Read \d, \pL or the like, if there is one."""
        if self._pattern[self._at] != "\\" or self._at + 1 >= len(self._pattern):
            return None
        char = self._pattern[self._at + 1]
        if char in "pP":
            self._at += 2
            return self._category(is_negated=char == "P")
        if char.lower() not in _PERL:
            return None
        self._at += 2
        return _PERL_ITEMS[char.lower()]._replace(is_negated=char.isupper())

    def _category(self, *, is_negated: bool) -> _Item:
        name = self._next()
        if name == "{":
            end = self._pattern.find("}", self._at)
            if end < 0:
                raise PatternError("missing }")
            name = self._pattern[self._at : end]
            self._at = end + 1
        if name.startswith("^"):
            name, is_negated = name[1:], not is_negated
        if name == "Any":
            return _ANY_ITEM._replace(is_negated=is_negated)
        if name not in _CATEGORIES:
            raise PatternError("no such category")
        return _Item(categories=_CATEGORIES[name], is_negated=is_negated)

    def _class(self) -> _CharClass:
        is_negated = self._is_next("^")
        items: list[_Item] = []
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
                    raise PatternError("not a range of characters")
                found = _Item(((ord(low), ord(high)),))
            items.append(found)
        self._at += 1
        return _CharClass(items, is_folded="i" in self._flags, is_negated=is_negated)

    def _peeked_class_escape(self) -> _Item | None:
        return self._class_escape() if self._at < len(self._pattern) else None

    def _class_char(self) -> str:
        char = self._next()
        return self._escape() if char == "\\" else char

    def _posix_class(self) -> _Item | None:
        end = self._pattern.find(":]", self._at + 1)  # "[:]" is a class without a name
        if not self._pattern.startswith("[:", self._at) or end < 0:
            return None
        name = self._pattern[self._at + 2 : end]
        self._at = end + 2
        is_negated = name.startswith("^")
        item = _POSIX_ITEMS.get(name[is_negated:])
        if item is None:
            raise PatternError("no such class")
        return item._replace(is_negated=is_negated)


def _condition(conditions: int) -> _Instruction:
    return _Instruction(None, (1,), conditions)


def _sequence(parts: list[_Code]) -> _Code:
    _check_size(sum(map(len, parts)))
    return parts[0] if len(parts) == 1 else [instruction for part in parts for instruction in part]


def _repeated(code: _Code, low: int, high: int) -> _Code:
    """`high`: -1 is without end."""
    optional = [_Instruction(None, (1, len(code) + 1)), *code]
    if high >= 0:
        _check_size(low * len(code) + (high - low) * len(optional))
        return code * low + optional * (high - low)
    _check_size(low * len(code) + len(code) + 2)
    endless = [
        _Instruction(None, (1, len(code) + 2)),
        *code,
        _Instruction(None, (-len(code) - 1,)),
    ]
    return code * low + endless


def _check_size(size: int) -> None:
    if size > PROGRAM_MAX:
        raise PatternError("the pattern is too large")


def _count(text: str) -> int | None:
    """A count without leading zeros; None if it is none."""
    if not text or not _DIGIT.issuperset(text) or (len(text) > 1 and text[0] == "0"):
        return None
    return int(text) if len(text) <= 8 else REPEAT_MAX + 1
