"""Characters and their classes in RE2 patterns, looked up in the time of one bisection."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

DIGIT: Final = frozenset("0123456789")
_LOWER: Final = frozenset("abcdefghijklmnopqrstuvwxyz")
_UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
HEX: Final = DIGIT | frozenset("abcdefABCDEF")
WORD: Final = _LOWER | _UPPER | DIGIT | {"_"}
_GRAPHIC: Final = frozenset(map(chr, range(0x21, 0x7F)))
_PERL: Final = {"d": DIGIT, "s": frozenset("\t\n\f\r "), "w": WORD}
_POSIX: Final = {
    "alnum": _LOWER | _UPPER | DIGIT,
    "alpha": _LOWER | _UPPER,
    "ascii": frozenset(map(chr, range(0x80))),
    "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, [*range(0x20), 0x7F])),
    "digit": DIGIT,
    "graph": _GRAPHIC,
    "lower": _LOWER,
    "print": _GRAPHIC | {" "},
    "punct": _GRAPHIC - _LOWER - _UPPER - DIGIT,
    "space": frozenset("\t\n\v\f\r "),
    "upper": _UPPER,
    "word": WORD,
    "xdigit": HEX,
}
_SUBCATEGORIES: Final = (
    *("Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No"),
    *("Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"),
)
CATEGORIES: Final = {  # with those that each consists of
    name: frozenset(each for each in _SUBCATEGORIES if each.startswith(name))
    for name in (*_SUBCATEGORIES, *"CLMNPSZ")
}
# Characters that are one but for their case, where more than two are.
_CASE_ORBITS: Final = {
    each: orbit
    for orbit in ("kK\u212a", "sS\u017f", "åÅ\u212b", "ßẞ", "µΜμ", "σςΣ", "βϐΒ", "θϑΘϴ", "φϕΦ", "πϖΠ")
    + ("κϰΚ", "ρϱΡ", "εϵΕ", "ιΙ\u0345\u1fbe", "ωΩ\u2126", "ṡẛṠ", "ı", "İ")  # noqa: RUF001 - alike on purpose
    for each in orbit
}


def case_variants(char: str) -> frozenset[str]:
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


class Item(NamedTuple):
    """Part of a class: code points and general categories, or all characters but those."""

    ranges: _Ranges = ()
    categories: frozenset[str] = frozenset()
    is_negated: bool = False


def item_of(chars: Iterable[str]) -> Item:
    return Item(_merged((ord(each), ord(each)) for each in chars))


PERL_ITEMS: Final = {name: item_of(chars) for name, chars in _PERL.items()}
POSIX_ITEMS: Final = {name: item_of(chars) for name, chars in _POSIX.items()}
ANY_ITEM: Final = Item(((0, 0x10FFFF),))


class _CharSet:
    """Characters that are looked up in the time of one bisection, however many ranges there are."""

    __slots__ = ("_bounds", "_categories")

    def __init__(self, items: Iterable[Item]) -> None:
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


class CharClass:
    """The characters that an instruction takes: those of any item, or all others. Equal to itself only, so that copies of an
    instruction are known by it."""

    __slots__ = ("_excluded", "_included", "_is_folded", "_is_negated", "size")

    def __init__(self, items: Iterable[Item], *, is_folded: bool = False, is_negated: bool = False) -> None:
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


ANY_CHAR: Final = CharClass([ANY_ITEM])
ANY_CHAR_IN_LINE: Final = CharClass([item_of("\n")], is_negated=True)
