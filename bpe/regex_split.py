r"""Split patterns that have no scanner: any regex, run exactly as its owner's engine runs it.

The law here: a regex splits as it does in the engine that it was written for, whatever Unicode the
installed `regex` package knows; or it is refused by name.  Three things see to that:

- a parser that takes only what is known to mean the same, and knows where the two engines differ:
  Hugging Face's (Oniguruma) and tiktoken's (fancy-regex);
- a small alphabet.  A regex tells code points apart by the sets that it names, and by nothing
  else.  All sets are made from our own table (Unicode 16.0); code points that no set tells apart
  become one letter of an alphabet of a few dozen, and text and regex are translated into it.  What
  then runs knows no property of Unicode at all;
- no assumptions about text: it is cut at documents only, for where else a cut is safe nobody knows.

It takes about 15 bytes of memory for each byte of a document and runs at the speed of `regex`,
some MB/s: a hundredth of a scanner's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import regex as engine
from numpy.typing import NDArray

from bpe.errors import EncodingError, PatternError
from bpe.unicode_classes import WHITE_SPACE, class_table, members_of, runs_of

DIALECTS: Final = ("huggingface", "tiktoken")
# What becomes of a match -> which neighbours are one piece: whether each of the two is a match.
BEHAVIORS: Final[dict[str, tuple[tuple[bool, bool], ...]]] = {
    "Isolated": (),
    "Contiguous": ((False, False), (True, True)),
    "MergedWithPrevious": ((False, True),),
    "MergedWithNext": ((True, False),),
}
_LONGEST = 10_000  # characters of a regex
# Seconds after which a match is given up; what is honest takes a second for 100 MB.
_PATIENCE = 10.0
_DEEPEST = 100  # groups and sets inside one another
_N_CODE_POINTS = 0x110000
# Documents are translated together up to this many bytes.
_BYTES_AT_A_TIME = 1 << 22

Set = NDArray[np.bool_]


# --- what a regex says ---------------------------------------------------------------------------


# In `_Node.written`, character `_FIRST_SET + n` stands for one character of set n.
_FIRST_SET = 0xE000


@dataclass(frozen=True)
class _Node:
    """A part of a regex.

    Attributes:
        written: It as the `regex` package reads it; sets are single characters (`_FIRST_SET`).
        length: How many characters it takes, None if that is not fixed.
        size: How many characters it has when its repetitions are written out.
        can_be_empty: It can match no character.
        is_assertion: It is an anchor or a lookaround.
        begins: The numbers of the sets that it can begin with.
        ends: The numbers of the sets that it can end with.
    """

    written: str
    length: int | None = 0
    size: int = 1
    can_be_empty: bool = True
    is_assertion: bool = False
    begins: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()


def _in_a_row(parts: list[_Node]) -> _Node:
    if len(parts) == 1:
        return parts[0]
    lengths = [part.length for part in parts if part.length is not None]
    return _Node(
        "".join(part.written for part in parts),
        sum(lengths) if len(lengths) == len(parts) else None,
        sum(part.size for part in parts),
        all(part.can_be_empty for part in parts),
        begins=frozenset().union(*(part.begins for part in _edge(parts))),
        ends=frozenset().union(*(part.ends for part in _edge(parts[::-1]))),
    )


def _edge(parts: list[_Node]) -> Iterator[_Node]:
    """Yield the first parts, up to one that cannot be empty."""
    for part in parts:
        yield part
        if not part.can_be_empty:
            return


def _one_of(options: list[_Node]) -> _Node:
    if len(options) == 1:
        return options[0]
    lengths = {option.length for option in options}
    return _Node(
        "|".join(option.written for option in options),
        lengths.pop() if len(lengths) == 1 else None,
        sum(option.size for option in options),
        any(option.can_be_empty for option in options),
        begins=frozenset().union(*(option.begins for option in options)),
        ends=frozenset().union(*(option.ends for option in options)),
    )


_QUANTIFIERS: Final = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_LONG_NAMES: Final = {
    "letter": "L", "mark": "M", "number": "N", "punctuation": "P", "symbol": "S", "separator": "Z",
}  # fmt: skip
# Characters whose case folds to an ASCII letter, beside the letter itself.
_FOLDS: Final = {"s": "\u017f", "k": "\u212a"}
# Oniguruma takes these for one character (U+00DF, U+FB00, ...) where case is ignored.
_FOLDED_TOGETHER: Final = (
    "ss", "st", "ff", "fi", "fl", "\u017ft", "\u017fs", "s\u017f", "h\u0331", "i\u0307", "\u02bcn",
    "a\u02be", "j\u030c", "t\u0308", "w\u030a", "y\u030a",
)  # fmt: skip


@functools.cache
def _category(name: str) -> Set:
    """The code points of a General_Category of one or two letters; none if there is none."""
    return members_of(*runs_of(name))


def _white_space() -> Set:
    members: Set = np.not_equal(class_table() & WHITE_SPACE, 0)
    return members


class _Parser:
    """Reads a regex; `sets` are the sets of characters that it names, each once."""

    def __init__(self, text: str, dialect: str) -> None:
        self.text = text
        self.dialect = dialect
        self.place = 0
        self.depth = 0
        self.ignores_case = False
        self.sets: list[Set] = []
        self._numbers: dict[bytes, int] = {}

    def refuse(self, what: str, place: int | None = None) -> PatternError:
        shown = self.text if len(self.text) <= 100 else self.text[:99] + "…"
        return PatternError(
            f"the split pattern {shown!r} has {what} at character"
            f" {self.place if place is None else place}, which is not implemented: expected sets of"
            " characters, groups, choices, repetitions, lookarounds and anchors; write it otherwise"
        )

    def parse(self) -> _Node:
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
        """Take what a regex matches here."""
        found = engine.compile(form).match(self.text, self.place)
        if found:
            self.place = found.end()
        return found

    def _set(self, members: Set) -> _Node:
        key = np.packbits(members).tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.sets)
            self.sets.append(members)
            if len(self.sets) > 500:
                raise self.refuse("more than 500 sets of characters")
        number = self._numbers[key]
        here = frozenset([number])
        return _Node(chr(_FIRST_SET + number), 1, can_be_empty=False, begins=here, ends=here)

    def _choice(self) -> _Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.refuse(f"more than {_DEEPEST} groups inside one another")
        options = [self._sequence()]
        while self._takes("|"):
            options.append(self._sequence())
        self.depth -= 1
        return _one_of(options)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
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

    def _repeated(self, part: _Node) -> _Node:
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
            if part.size > _LONGEST:
                raise self.refuse(f"repetitions of more than {_LONGEST:,} characters", at)
            # Whatever comes now repeats the repetition: Oniguruma's `{1,3}+` does.
            if self.dialect == "tiktoken" and self._next() in ("?", "*", "+", "{"):
                raise self.refuse("a repetition of a repetition")
        raise self.refuse("more than three repetitions of one another")

    def _interval(self, found: engine.Match[str]) -> tuple[int, int | None]:
        """The least and the greatest number of `{n}`, `{n,}`, `{,n}` or `{n,m}`."""
        first, comma, last = found.groups()
        least = int(first or 0)
        most = (int(last) if last else None) if comma else least
        if (
            not (first or last)
            or (not first and self.dialect == "tiktoken")
            or (most is not None and most < least)
        ):
            raise self.refuse(f"{found.group()!r}", found.start())
        return least, most

    def _atom(self) -> _Node | None:
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

    def _anchor(self, written: str) -> _Node:
        if self.dialect == "tiktoken" or written[0] == "\\":
            return _Node(r"\A" if written in ("^", r"\A") else r"\Z", is_assertion=True)
        # Ends of lines to Oniguruma, where ^ is not behind the last of all.
        end = self._set(_one("\n")).written
        return _Node(rf"(?:(?={end})|\Z)" if written == "$" else rf"(?:\A|(?<={end})(?!\Z))")

    def _folded(self, character: str) -> Set:
        members = _one(character)
        if self.ignores_case:
            lower = character.lower()
            if lower.isascii() and lower.isalpha():
                for other in (lower, lower.upper(), _FOLDS.get(lower, lower)):
                    members[ord(other)] = True
            elif (
                not character.isascii()
                and character.casefold() + character.upper() != 2 * character
            ):
                raise self.refuse(f"{character!r} where case is ignored")
        return members

    def _group(self) -> _Node | None:
        at = self.place
        ignored_case = self.ignores_case
        # Further on, Oniguruma and fancy-regex disagree about where its scope ends.
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
        """The character or the set of an escape; the place is at its backslash."""
        at = self.place
        letter = self.text[at + 1 : at + 2]
        self.place += 2
        if not letter:
            raise self.refuse("a '\\' at its end", at)
        if letter in ("s", "S"):
            return _white_space() if letter == "s" else ~_white_space()
        if letter in ("d", "D"):
            return _category("Nd") if letter == "d" else ~_category("Nd")
        if letter in ("p", "P"):
            return self._property(at, letter == "P")
        if letter in _ESCAPES and not (letter == "e" and self.dialect == "tiktoken"):
            return _ESCAPES[letter]
        self.place -= 1
        for form in (r"x([0-9A-Fa-f]{2})", r"x\{([0-9A-Fa-f]{1,6})\}", r"u([0-9A-Fa-f]{4})"):
            if found := self._scan(form):
                code_point = int(found.group(1), 16)
                # Oniguruma's \xHH is a byte, and no text has a surrogate.
                if (
                    code_point >= _N_CODE_POINTS
                    or 0xD800 <= code_point < 0xE000
                    or (form.startswith("x(") and code_point > 0x7F)
                ):
                    break
                return chr(code_point)
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
        members = _category(name) if len(name) <= 2 else np.zeros(0, np.bool_)
        inverts = bool(found.group(1))
        if not members.any() or name[0] == "C" or (inverts and self.dialect == "tiktoken"):
            raise self.refuse(f"the property {found.group()!r}", at)
        if self.ignores_case and name in ("Lu", "Ll", "Lt"):
            raise self.refuse(f"the property {found.group()!r} where case is ignored", at)
        return ~members if inverted != inverts else members

    def _class(self) -> Set:
        """The set that stands in brackets; the place is behind the first."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.refuse(f"more than {_DEEPEST} sets inside one another")
        at = self.place - 1
        negated = self._takes("^")
        members = np.zeros(_N_CODE_POINTS, np.bool_)
        sofar: Set | None = None
        empty = True
        while not self._takes("]"):
            if not self._next():
                raise self.refuse("a '[' without its ']'", at)
            if self._takes("&&"):
                sofar = members if sofar is None else sofar & members
                members = np.zeros(_N_CODE_POINTS, np.bool_)
                continue
            two = self.text[self.place : self.place + 2]
            if self.dialect == "tiktoken" and two in ("--", "~~"):
                raise self.refuse(f"{two!r} in a set")
            empty = False
            if two == "[:":
                raise self.refuse("a set of the form '[:name:]'")
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
            if self.ignores_case:
                # Letters one by one; a range of others is as it is.
                if first != last and not last.isascii():
                    raise self.refuse("a range beyond ASCII where case is ignored")
                for code_point in range(ord(first), ord(last) + 1):
                    members |= self._folded(chr(code_point))
            members[ord(first) : ord(last) + 1] = True
        if empty:
            raise self.refuse("an empty set", at)
        self.depth -= 1
        if sofar is not None:
            members = sofar & members
        return ~members if negated else members

    def _member(self) -> str | Set:
        if self._next() == "\\":
            return self._escape()
        self.place += 1
        return self.text[self.place - 1]


def _one(character: str) -> Set:
    members = np.zeros(_N_CODE_POINTS, np.bool_)
    members[ord(character)] = True
    return members


# --- the small alphabet --------------------------------------------------------------------------


def _alphabet(sets: list[Set]) -> tuple[NDArray[np.uint16], list[str]]:
    """Number the code points so that those which no set tells apart share a number.

    Returns:
        uint16[0x110000], the number of each code point; the numbers that each set has, as the
            members of a set of a regex.
    """
    # Between two places where some set begins or ends, all code points are alike.
    changes = np.zeros(_N_CODE_POINTS, np.bool_)
    changes[0] = True
    for members in sets:
        changes[1:] |= members[1:] != members[:-1]
    firsts = np.flatnonzero(changes)
    in_sets = np.array([members[firsts] for members in sets]).reshape(len(sets), len(firsts))
    kinds, letters = np.unique(in_sets, axis=1, return_inverse=True)
    lengths = np.diff(firsts, append=_N_CODE_POINTS)
    return (
        np.repeat(letters.ravel().astype(np.uint16), lengths),
        ["".join(rf"\u{number:04x}" for number in np.flatnonzero(kind)) for kind in kinds],
    )


# --- splitting -----------------------------------------------------------------------------------


class RegexSplitter:
    """Splits by a regex.

    Args:
        regex: Its text.
        dialect: Whose engine it was written for: "huggingface" or "tiktoken".
        behavior: What becomes of a match, as in Hugging Face's `Split`: "Isolated" stands alone,
            "Contiguous" joins with the next, and so on.
        invert: What is between the matches counts as matches, and the reverse.

    Raises:
        PatternError: The regex has something that is not implemented, or can match nothing at all.
    """

    def __init__(
        self,
        regex: str,
        dialect: str = "huggingface",
        behavior: str = "Isolated",
        invert: bool = False,
    ) -> None:
        if dialect not in DIALECTS or behavior not in BEHAVIORS:
            raise PatternError(
                f"dialect {dialect!r}, behavior {behavior!r}: expected one of {', '.join(DIALECTS)}"
                f" and one of {', '.join(BEHAVIORS)}, which lose no text"
            )
        if len(regex) > _LONGEST:
            raise PatternError(
                f"a split pattern has {len(regex):,} characters: expected {_LONGEST:,} at most"
            )
        parser = _Parser(regex, dialect)
        tree = parser.parse()
        if tree.can_be_empty:
            raise PatternError(
                f"the split pattern {regex[:100]!r} can match nothing at all: expected one that"
                " takes a character at least; write '+' for '*'"
            )
        letters, sets = _alphabet(parser.sets)
        self._letters = letters.astype(np.uint8) if letters.max() < 256 else letters
        # An empty set matches nothing.
        written = {
            _FIRST_SET + number: f"[{members}]" if members else "(?!)"
            for number, members in enumerate(sets)
        }
        self._find = engine.compile(tree.written.translate(written), engine.V0).finditer
        self._dialect = dialect
        self._joined = BEHAVIORS[behavior]
        self._invert = invert

    def refine(self, buffer: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        """Split every piece further.

        Args:
            buffer: uint8[n_bytes], UTF-8.
            starts: uint64[n_bytes // 64 + 1], bit set of the places where a piece begins, and of
                place n_bytes; modified in place.

        Raises:
            EncodingError: The regex was written for tiktoken and leaves out some of the text, which
                tiktoken would lose; or it takes forever.
        """
        for first, n_bytes, code_points, places in _texts(buffer, starts):
            letters = self._letters[code_points]
            wide = letters.dtype != np.uint8
            text = letters.tobytes().decode("utf-16-le" if wide else "latin-1")
            bounds = np.searchsorted(places, _set_bits(starts, first, first + n_bytes + 1) - first)
            cuts: list[int] = []
            for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                cuts += self._cuts(text[begin:end], begin, first, places)
            _set(starts, places[cuts] + first)

    def _matches(self, text: str, place: int) -> Iterator[engine.Match[str]]:
        """The matches in one text; `place` is its first byte."""
        patience = _PATIENCE + len(text) * 1e-6
        try:
            yield from self._find(text, timeout=patience)
        except TimeoutError as error:
            raise EncodingError(
                f"the split pattern takes more than {patience:.0f} s for one match in the text of"
                f" {len(text):,} characters from byte {place} on: it tries very many ways to match;"
                " write it so that only one can (no repetition within a repetition)"
            ) from error

    def _cuts(self, text: str, begin: int, first: int, places: NDArray[np.int64]) -> Iterator[int]:
        """Where pieces of one text begin, counted in characters; `begin` is added."""
        pieces: list[tuple[int, bool]] = []  # where each begins, whether it is a match
        place = 0
        for found in self._matches(text, first + int(places[begin])):
            start, stop = found.span()
            if place < start:
                pieces.append((place, self._invert))
            pieces.append((start, not self._invert))
            place = stop
        if place < len(text):
            pieces.append((place, self._invert))
        before: bool | None = None
        for start, is_match in pieces:
            if self._dialect == "tiktoken" and not is_match:
                raise EncodingError(
                    f"byte {first + int(places[begin + start])} of the text is in no match of"
                    " the split pattern: tiktoken would lose it; give a pattern that takes"
                    " every character"
                )
            if (before, is_match) not in self._joined:
                yield begin + start
            before = is_match


# Numbers to Rust's own tables (Unicode 17.0), which Hugging Face's `Digits` asks, and to no others.
_NEWER_NUMBERS: Final = ((0x11DE0, 0x11DE9), (0x16FF4, 0x16FF6))


@functools.cache
def _numbers() -> Set:
    return members_of(*runs_of("N"), *_NEWER_NUMBERS)


class DigitsSplitter:
    """Sets numbers (General_Category N) apart from all else, as Hugging Face's `Digits`.

    Args:
        individual: Each number stands alone, else each run of them.
    """

    def __init__(self, individual: bool) -> None:
        self._individual = individual

    def refine(self, buffer: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        """Split every piece further; as `RegexSplitter.refine`."""
        for first, _, code_points, places in _texts(buffer, starts):
            is_number = _numbers()[code_points]
            begins = is_number.copy() if self._individual else np.zeros(len(is_number), np.bool_)
            begins[1:] |= is_number[1:] != is_number[:-1]
            _set(starts, places[:-1][begins] + first)


def _texts(
    buffer: NDArray[np.uint8], starts: NDArray[np.uint64]
) -> Iterator[tuple[int, int, NDArray[np.uint32], NDArray[np.int64]]]:
    """Yield whole pieces, some megabytes at a time.

    Yields:
        The first byte and the number of bytes, `uint32[n]` code points, and `int64[n + 1]`, where
        each of them begins, counted from the first byte, and the end.
    """
    first = 0
    while first < len(buffer):
        stop = len(buffer)
        if first + _BYTES_AT_A_TIME < stop:
            # The end of the piece that stands there.
            at = first + _BYTES_AT_A_TIME
            while not len(found := _set_bits(starts, at, min(at + 65536, stop + 1))):
                at += 65536
            stop = int(found[0])
        part = buffer[first:stop]
        code_points = np.frombuffer(part.tobytes().decode().encode("utf-32-le"), np.uint32)
        places = np.append(np.flatnonzero(part & 0xC0 != 0x80), stop - first)
        yield first, stop - first, code_points, places
        first = stop


def _set_bits(starts: NDArray[np.uint64], first: int, stop: int) -> NDArray[np.int64]:
    """The bits of [first, stop) that are set, ascending."""
    low = first // 64
    words = starts[low : -(-stop // 64)]
    bits = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")) + low * 64
    return bits[(bits >= first) & (bits < stop)]


def _set(starts: NDArray[np.uint64], places: NDArray[np.int64]) -> None:
    np.bitwise_or.at(starts, places >> 6, np.uint64(1) << (places & 63).astype(np.uint64))
