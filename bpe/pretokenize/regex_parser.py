r"""Parse a regex into sets of characters and a regex over these sets.

The parser takes only what is known to mean the same in the `regex` package, and the differences of
the two engines a regex may be written for: Hugging Face's (Oniguruma) and tiktoken's (fancy-regex).
Anything else is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import regex as engine
from numpy.typing import NDArray

from bpe.errors import PatternError, shown
from bpe.unicode_classes import WHITE_SPACE, class_table, members_of, runs_of

LONGEST = 10_000  # characters of a regex
_DEEPEST = 100  # nested groups and sets
N_CODE_POINTS = 0x110000

Set = NDArray[np.bool_]

FIRST_SET = 0xE000  # in `Node.written`, character `FIRST_SET + n` stands for one of set n


@dataclass(frozen=True)
class Node:
    """A part of a regex."""

    written: str  # as the `regex` package reads it; sets are single characters (`FIRST_SET`)
    length: int | None = 0  # in characters of text, None if that is not fixed
    size: int = 1  # in characters of the regex, its repetitions written out
    can_be_empty: bool = True  # it can match no character
    is_assertion: bool = False  # it is an anchor or a lookaround
    begins: frozenset[int] = frozenset()  # numbers of the sets that it can begin with
    ends: frozenset[int] = frozenset()  # and end with


def _in_a_row(parts: list[Node]) -> Node:
    if len(parts) == 1:
        return parts[0]
    lengths = [part.length for part in parts if part.length is not None]
    return Node(
        "".join(part.written for part in parts),
        sum(lengths) if len(lengths) == len(parts) else None,
        sum(part.size for part in parts), all(part.can_be_empty for part in parts),
        begins=frozenset().union(*(part.begins for part in _edge(parts))),
        ends=frozenset().union(*(part.ends for part in _edge(parts[::-1]))),
    )


def _edge(parts: list[Node]) -> list[Node]:
    """Return the first parts, through one that cannot be empty."""
    n_empty = next((i for i, part in enumerate(parts) if not part.can_be_empty), len(parts))
    return parts[: n_empty + 1]


def _one_of(options: list[Node]) -> Node:
    if len(options) == 1:
        return options[0]
    lengths = {option.length for option in options}
    return Node(
        "|".join(option.written for option in options),
        lengths.pop() if len(lengths) == 1 else None,
        sum(option.size for option in options), any(option.can_be_empty for option in options),
        begins=frozenset().union(*(option.begins for option in options)),
        ends=frozenset().union(*(option.ends for option in options)),
    )


_QUANTIFIERS: Final = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_LONG_NAMES: Final = {
    "letter": "L", "mark": "M", "number": "N", "punctuation": "P", "symbol": "S", "separator": "Z",
}  # fmt: skip
_FOLDS: Final = {"s": "\u017f", "k": "\u212a"}  # other characters that case-fold to a letter
# Oniguruma reads these as one character (U+00DF, U+FB00, ...) where case is ignored.
_FOLDED_TOGETHER: Final = (
    "ss", "st", "ff", "fi", "fl", "\u017ft", "\u017fs", "s\u017f", "h\u0331", "i\u0307", "\u02bcn",
    "a\u02be", "j\u030c", "t\u0308", "w\u030a", "y\u030a",
)  # fmt: skip


class Parser:
    """Parser of a regex; `sets` are the sets of characters that it names, each once."""

    def __init__(self, text: str, dialect: str) -> None:
        self.text, self.dialect = text, dialect
        self.place = self.depth = 0
        self.ignores_case = False
        self.sets: list[Set] = []
        self._numbers: dict[bytes, int] = {}

    def refuse(self, what: str, place: int | None = None) -> PatternError:
        """Return the error for something not implemented, by default at the current place."""
        at = self.place if place is None else place
        return PatternError(
            f"the split pattern {shown(self.text)} has {what} at character {at}, which is not"
            " implemented: expected sets of characters, groups, choices, repetitions, lookarounds"
            " and anchors; write it otherwise"
        )

    def parse(self) -> Node:
        """Return the whole regex, or raise `PatternError`."""
        tree = self._choice()
        if self.place < len(self.text):
            raise self.refuse("a ')' without its '('")
        return tree

    def _next(self) -> str:
        return self.text[self.place : self.place + 1]

    def _takes(self, wanted: str) -> bool:
        if self.text.startswith(wanted, self.place):
            self.place += len(wanted)
            return True
        return False

    def _scan(self, form: str) -> engine.Match[str] | None:
        """Consume the match of a regex at the current place, if there is one."""
        if found := engine.compile(form).match(self.text, self.place):
            self.place = found.end()
        return found

    def _set(self, members: Set) -> Node:
        number = self._numbers.setdefault(np.packbits(members).tobytes(), len(self.sets))
        if number == len(self.sets):
            self.sets.append(members)
            if len(self.sets) > 500:
                raise self.refuse("more than 500 sets of characters")
        here = frozenset([number])
        return Node(chr(FIRST_SET + number), 1, can_be_empty=False, begins=here, ends=here)

    def _enter(self, what: str) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.refuse(f"more than {_DEEPEST} {what} inside one another")

    def _choice(self) -> Node:
        self._enter("groups")
        options = [self._sequence()]
        while self._takes("|"):
            options.append(self._sequence())
        self.depth -= 1
        return _one_of(options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._next() not in ("", "|", ")"):
            before = self.place
            part = self._atom()
            if part is None:
                continue
            if parts and self.ignores_case and self.dialect == "huggingface":
                for first, second in _FOLDED_TOGETHER:
                    if self._has(parts[-1].ends, first) and self._has(part.begins, second):
                        raise self.refuse(f"{first + second!r} where case is ignored", before)
            parts.append(self._repeated(part))
        return _in_a_row(parts)

    def _has(self, numbers: frozenset[int], character: str) -> bool:
        """Return whether one of some sets has a character."""
        return any(self.sets[number][ord(character)] for number in numbers)

    def _repeated(self, part: Node) -> Node:
        for _ in range(4):
            at = self.place
            found = self._scan(r"[?*+]|\{(\d{0,4})(,(\d{0,4}))?\}")
            if not found:
                if self._next() == "{":
                    raise self.refuse("a '{' that begins no repetition")
                return part
            least, most = _QUANTIFIERS.get(found.group()) or self._interval(found)
            if part.is_assertion:
                raise self.refuse("a repetition of what has no length", at)
            interval = self.text[at] == "{"
            manner = ""
            if self._takes("?"):
                if interval and self.dialect == "huggingface" and most == least:
                    # Oniguruma reads `{n}?` as "n times or not at all".
                    raise self.refuse("'{n}?'", at)
                manner = "?"
            elif self._next() == "+" and not (interval and self.dialect == "huggingface"):
                self.place += 1
                manner = "+"
            part = replace(
                part,
                written=f"(?:{part.written}){{{least},{'' if most is None else most}}}{manner}",
                length=part.length * least if part.length is not None and least == most else None,
                size=part.size * max(1, least, most or 0),
                can_be_empty=part.can_be_empty or least == 0,
            )
            if part.size > LONGEST:
                raise self.refuse(f"repetitions of more than {LONGEST:,} characters", at)
            # A further quantifier repeats the repetition, as in Oniguruma's `{1,3}+`.
            if self.dialect == "tiktoken" and self._next() in ("?", "*", "+", "{"):
                raise self.refuse("a repetition of a repetition")
        raise self.refuse("more than three repetitions of one another")

    def _interval(self, found: engine.Match[str]) -> tuple[int, int | None]:
        """Return the least and the greatest number of `{n}`, `{n,}`, `{,n}` or `{n,m}`."""
        first, comma, last = found.groups()
        least = int(first or 0)
        most = (int(last) if last else None) if comma else least
        has_start = bool(first or (last and self.dialect == "huggingface"))
        if not has_start or (most is not None and most < least):
            raise self.refuse(f"{found.group()!r}", found.start())
        return least, most

    def _atom(self) -> Node | None:
        character = self._next()
        if character == "(":
            return self._group()
        if character in ("*", "+", "?", "{"):
            raise self.refuse(f"a {character!r} that repeats nothing")
        if found := self._scan(r"\^|\$|\\A|\\z"):
            return self._anchor(found.group())
        if self._takes("["):
            return self._set(self._class())
        if self._takes("."):
            return self._set(~_one("\n"))
        member = self._member()
        return self._set(member if isinstance(member, np.ndarray) else self._folded(member))

    def _anchor(self, written: str) -> Node:
        if self.dialect == "tiktoken" or written[0] == "\\":
            return Node(r"\A" if written in ("^", r"\A") else r"\Z", is_assertion=True)
        # Ends of lines to Oniguruma; ^ does not match after the last newline of the text.
        end = self._set(_one("\n")).written
        return Node(rf"(?:(?={end})|\Z)" if written == "$" else rf"(?:\A|(?<={end})(?!\Z))")

    def _folded(self, character: str) -> Set:
        members = _one(character)
        if self.ignores_case:
            lower = character.lower()
            if lower.isascii() and lower.isalpha():
                for other in (lower, lower.upper(), _FOLDS.get(lower, lower)):
                    members[ord(other)] = True
            elif character.casefold() + character.upper() != 2 * character:
                raise self.refuse(f"{character!r} where case is ignored")
        return members

    def _group(self) -> Node | None:
        at = self.place
        ignored_case = self.ignores_case
        # Elsewhere Oniguruma and fancy-regex disagree about its scope.
        if at == 0 and self._takes("(?i)"):
            self.ignores_case = True
            return None
        found = self._scan(r"\((?:\?(?:[:=!>]|<[=!]|-?i:))?")
        assert found
        opening = found.group()
        if opening == "(" and self._next() in ("?", "*"):
            what = "group" if self._next() == "?" else "verb"
            raise self.refuse(f"the {what} {self.text[at : at + 5]!r}")
        if opening.endswith("i:"):
            self.ignores_case = opening == "(?i:"
        if opening in ("(", "(?i:", "(?-i:"):
            opening = "(?:"
        inside = self._choice()
        self.ignores_case = ignored_case
        if not self._takes(")"):
            raise self.refuse("a '(' without its ')'", at)
        if opening in ("(?<=", "(?<!") and inside.length is None:
            raise self.refuse("a lookbehind whose length is not fixed", at)
        node = replace(inside, written=f"{opening}{inside.written})", size=1 + inside.size)
        if opening in ("(?:", "(?>"):
            return replace(node, is_assertion=False)
        return replace(node, length=0, can_be_empty=True, is_assertion=True)

    def _escape(self) -> str | Set:
        """Return the character or the set of an escape; the place is at its backslash."""
        at = self.place
        letter = self.text[at + 1 : at + 2]
        self.place += 2
        if not letter:
            raise self.refuse("a '\\' at its end", at)
        if letter in ("s", "S", "d", "D"):
            members = members_of(*runs_of("Nd"))
            if letter in "sS":
                members = (class_table() & WHITE_SPACE).astype(bool)
            return members if letter.islower() else ~members
        if letter in ("p", "P"):
            return self._property(at, letter == "P")
        if letter in _ESCAPES and not (letter == "e" and self.dialect == "tiktoken"):
            return _ESCAPES[letter]
        self.place -= 1
        for form in (r"x([0-9A-Fa-f]{2})", r"x\{([0-9A-Fa-f]{1,6})\}", r"u([0-9A-Fa-f]{4})"):
            if found := self._scan(form):
                code_point = int(found.group(1), 16)
                # Oniguruma's \xHH is a byte, and no text has a surrogate.
                limit = 0x80 if form.startswith("x(") else N_CODE_POINTS
                if code_point < limit and not 0xD800 <= code_point < 0xE000:
                    return chr(code_point)
                break
        self.place = at + 2
        if letter.isascii() and not letter.isalnum() and letter not in "<>_`":
            return letter
        raise self.refuse(f"'\\{letter}'", at)

    def _property(self, at: int, inverted: bool) -> Set:
        found = self._scan(r"\{(\^?)([A-Za-z_&]+)\}|([A-Z])")
        if not found or (found.group(3) and self.dialect == "huggingface"):
            raise self.refuse(f"{self.text[at : at + 8]!r}", at)
        name = found.group(3) or found.group(2)
        name = _LONG_NAMES.get(name.lower(), name)
        members = members_of(*runs_of(name)) if len(name) <= 2 else np.zeros(0, np.bool_)
        inverts = bool(found.group(1))
        if not members.any() or name[0] == "C" or (inverts and self.dialect == "tiktoken"):
            raise self.refuse(f"the property {found.group()!r}", at)
        if self.ignores_case and name in ("Lu", "Ll", "Lt"):
            raise self.refuse(f"the property {found.group()!r} where case is ignored", at)
        return ~members if inverted != inverts else members

    def _class(self) -> Set:
        """Return the set in brackets; the place is after the first."""
        self._enter("sets")
        at = self.place - 1
        negated = self._takes("^")
        members = np.zeros(N_CODE_POINTS, np.bool_)
        intersection: Set = np.ones(N_CODE_POINTS, np.bool_)  # of what precedes each '&&'
        empty = True
        while not self._takes("]"):
            if not self._next():
                raise self.refuse("a '[' without its ']'", at)
            if self._takes("&&"):
                intersection &= members
                members = np.zeros(N_CODE_POINTS, np.bool_)
                continue
            two = self.text[self.place : self.place + 2]
            if self.dialect == "tiktoken" and two in ("--", "~~"):
                raise self.refuse(f"{two!r} in a set")
            if two == "[:":
                raise self.refuse("a set of the form '[:name:]'")
            empty = False
            if self._takes("["):
                members = members | self._class()
                continue
            first = self._member()
            if isinstance(first, np.ndarray):
                if self.ignores_case and self.dialect == "huggingface":
                    raise self.refuse("a set inside a set where case is ignored")
                members = members | first
                continue
            last = first
            if self._next() == "-" and self.text[self.place + 1 : self.place + 2] not in ("]", ""):
                self.place += 1
                if self._next() == "[":
                    raise self.refuse("a range that ends with a set")
                end = self._member()
                if isinstance(end, np.ndarray) or end < first:
                    raise self.refuse("a range that does not ascend")
                last = end
            if self.ignores_case:  # letters one by one; a range of others is as it is
                if first != last and not last.isascii():
                    raise self.refuse("a range beyond ASCII where case is ignored")
                for code_point in range(ord(first), ord(last) + 1):
                    members |= self._folded(chr(code_point))
            members[ord(first) : ord(last) + 1] = True
        if empty:
            raise self.refuse("an empty set", at)
        self.depth -= 1
        members &= intersection
        return ~members if negated else members

    def _member(self) -> str | Set:
        if self._next() == "\\":
            return self._escape()
        self.place += 1
        return self.text[self.place - 1]


def _one(character: str) -> Set:
    members = np.zeros(N_CODE_POINTS, np.bool_)
    members[ord(character)] = True
    return members
