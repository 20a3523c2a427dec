r"""Split text by a regex without a scanner, exactly as the engine it was written for.

Results do not depend on the Unicode version of the installed `regex` package:

- `Parser` knows the syntax of two engines, Hugging Face's (Oniguruma) and tiktoken's (fancy-regex),
  accepts only what has an exact equivalent in the `regex` package, and refuses the rest by name;
- sets are computed from our own table (Unicode 16.0). Code points in the same sets of the regex are
  one letter of a small alphabet, to which text and regex are translated; the translated regex uses
  no Unicode properties;
- text is cut at documents only, as no other safe cut is known.

Splitting needs about 15 bytes of memory per byte of a document, and takes 100 times as long as by a
scanner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import regex as engine
from numpy.typing import NDArray

from bpe.errors import EncodingError, PatternError, shown
from bpe.text.bit_set import bits_between, set_bits
from bpe.unicode_classes import WHITE_SPACE, class_table, members_of, runs_of

# Behavior -> kinds of neighbours that are joined, as (is a match, is a match).
BEHAVIORS: Final[dict[str, tuple[tuple[bool, bool], ...]]] = {
    "Isolated": (), "Contiguous": ((False, False), (True, True)),
    "MergedWithPrevious": ((False, True),), "MergedWithNext": ((True, False),),
}
_TIMEOUT = 10.0  # timeout of a match in seconds; usual matches take a second per 100 MB
_BYTES_AT_A_TIME = 1 << 22  # documents are translated together up to this size


LONGEST = 10_000  # characters of a regex
_DEEPEST = 100  # nested groups and sets
N_CODE_POINTS = 0x110000

Set = NDArray[np.bool_]

FIRST_SET = 0xE000  # character `FIRST_SET + n` of `Node.written` matches a member of set n


@dataclass(frozen=True)
class Node:
    """A part of a regex."""

    written: str  # syntax of the `regex` package; sets are single characters (`FIRST_SET`)
    length: int | None = 0  # characters of a match, None if not fixed
    size: int = 1  # characters of the regex with its repetitions expanded
    can_be_empty: bool = True  # can match the empty string
    is_assertion: bool = False  # an anchor or a lookaround
    is_optional: bool = False  # can match the empty string in any text, after backtracking, too
    covers: frozenset[int] = frozenset()  # sets: before each of their characters is a match
    begins: frozenset[int] = frozenset()  # numbers of the sets of the first character
    ends: frozenset[int] = frozenset()  # and of the last


def _concatenate(parts: list[Node]) -> Node:
    if len(parts) == 1:
        return parts[0]
    lengths = [part.length for part in parts if part.length is not None]
    needed = [part for part in parts if not part.is_optional]
    return Node(
        "".join(part.written for part in parts),
        sum(lengths) if len(lengths) == len(parts) else None,
        sum(part.size for part in parts), all(part.can_be_empty for part in parts),
        is_optional=not needed, covers=needed[0].covers if len(needed) == 1 else frozenset(),
        begins=frozenset().union(*(part.begins for part in _edge(parts))),
        ends=frozenset().union(*(part.ends for part in _edge(parts[::-1]))),
    )


def _edge(parts: list[Node]) -> list[Node]:
    """Return the parts up to the first that cannot be empty, included."""
    n_empty = next((i for i, part in enumerate(parts) if not part.can_be_empty), len(parts))
    return parts[: n_empty + 1]


def _alternate(options: list[Node]) -> Node:
    if len(options) == 1:
        return options[0]
    lengths = {option.length for option in options}
    return Node(
        "|".join(option.written for option in options),
        lengths.pop() if len(lengths) == 1 else None,
        sum(option.size for option in options), any(option.can_be_empty for option in options),
        is_optional=any(option.is_optional for option in options),
        covers=frozenset().union(*(option.covers for option in options)),
        begins=frozenset().union(*(option.begins for option in options)),
        ends=frozenset().union(*(option.ends for option in options)),
    )


_QUANTIFIERS: Final = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_LONG_NAMES: Final = {
    "letter": "L", "mark": "M", "number": "N", "punctuation": "P", "symbol": "S", "separator": "Z",
}  # fmt: skip
# Code points of the script Han in Unicode 16.0.
_HAN: Final = (
    "2E80-2E99 2E9B-2EF3 2F00-2FD5 3005 3007 3021-3029 3038-303B 3400-4DBF 4E00-9FFF F900-FA6D "
    "FA70-FAD9 16FE2-16FE3 16FF0-16FF1 20000-2A6DF 2A700-2B739 2B740-2B81D 2B820-2CEA1 2CEB0-2EBE0 "
    "2EBF0-2EE5D 2F800-2FA1D 30000-3134A 31350-323AF"
)
_FOLDS: Final = {"s": "\u017f", "k": "\u212a"}  # other characters that case-fold to a letter
# Ignoring case, Oniguruma matches these with one character (U+00DF, U+FB00, ...).
_FOLDED_TOGETHER: Final = (
    "ss", "st", "ff", "fi", "fl", "\u017ft", "\u017fs", "s\u017f", "h\u0331", "i\u0307", "\u02bcn",
    "a\u02be", "j\u030c", "t\u0308", "w\u030a", "y\u030a",
)  # fmt: skip


class Parser:
    """Recursive descent parser of a regex; collects its distinct sets of characters in `sets`."""

    def __init__(self, text: str, dialect: str) -> None:
        self.text, self.dialect = text, dialect
        self.position = self.depth = 0
        self.ignores_case = False
        self.sets: list[Set] = []
        self._numbers: dict[bytes, int] = {}

    def refuse(self, what: str, position: int | None = None) -> PatternError:
        """Return the error for unsupported syntax, by default at the current position."""
        at = self.position if position is None else position
        return PatternError(
            f"unsupported split pattern {shown(self.text)}: {what} at character {at}; supported are"
            " character classes, groups, alternation, quantifiers, lookaround and anchors"
        )

    def invalid(self, what: str, position: int | None = None) -> PatternError:
        """Return the error for a malformed regex, by default at the current position."""
        at = self.position if position is None else position
        return PatternError(
            f"invalid split pattern {shown(self.text)}: {what} at character {at}; correct it"
        )

    def parse(self) -> Node:
        """Parse the whole regex; raise `PatternError` if that is impossible."""
        tree = self._choice()
        if self.position < len(self.text):
            raise self.invalid("unbalanced ')'")
        return tree

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _accept(self, wanted: str) -> bool:
        if self.text.startswith(wanted, self.position):
            self.position += len(wanted)
            return True
        return False

    def _match(self, form: str) -> engine.Match[str] | None:
        """Consume a match of the regex `form` at the current position, if there is one."""
        if found := engine.compile(form).match(self.text, self.position):
            self.position = found.end()
        return found

    def _set(self, members: Set) -> Node:
        number = self._numbers.setdefault(np.packbits(members).tobytes(), len(self.sets))
        if number == len(self.sets):
            self.sets.append(members)
            if len(self.sets) > 500:
                raise self.refuse("more than 500 different character classes")
        here = frozenset([number])
        return Node(
            chr(FIRST_SET + number), 1, can_be_empty=False, covers=here, begins=here, ends=here
        )

    def _enter(self, what: str) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.refuse(f"more than {_DEEPEST} {what} inside one another")

    def _choice(self) -> Node:
        self._enter("groups")
        options = [self._sequence()]
        while self._accept("|"):
            options.append(self._sequence())
        self.depth -= 1
        return _alternate(options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            before = self.position
            part = self._atom()
            if part is None:
                continue
            if parts and self.ignores_case and self.dialect == "huggingface":
                left, right = parts[-1].ends, part.begins
                for first, second in _FOLDED_TOGETHER:
                    if self._contains(left, first) and self._contains(right, second):
                        raise self.refuse(f"{first + second!r} where case is ignored", before)
            parts.append(self._repeat(part))
        return _concatenate(parts)

    def _contains(self, numbers: frozenset[int], character: str) -> bool:
        """Return True if any of the sets has a character."""
        return any(self.sets[number][ord(character)] for number in numbers)

    def _repeat(self, part: Node) -> Node:
        for _ in range(4):
            at = self.position
            found = self._match(r"[?*+]|\{(\d{0,4})(,(\d{0,4}))?\}")
            if not found:
                if self._peek() == "{":
                    raise self.refuse("a '{' that begins no quantifier")
                return part
            least, most = _QUANTIFIERS.get(found.group()) or self._interval(found)
            if part.is_assertion:
                raise self.refuse("a quantifier on a zero-width assertion", at)
            interval = self.text[at] == "{"
            manner = ""
            if self._accept("?"):
                if interval and self.dialect == "huggingface" and most == least:
                    # Oniguruma reads `{n}?` as "n times or not at all".
                    raise self.refuse("'{n}?'", at)
                manner = "?"
            elif self._peek() == "+" and not (interval and self.dialect == "huggingface"):
                self.position += 1
                manner = "+"
            part = replace(
                part,
                written=f"(?:{part.written}){{{least},{'' if most is None else most}}}{manner}",
                length=part.length * least if part.length is not None and least == most else None,
                size=part.size * max(1, least, most or 0),
                can_be_empty=part.can_be_empty or least == 0,
                is_optional=(part.is_optional or least == 0) and manner != "+",
                covers=part.covers if least < 2 and most != 0 else frozenset(),
            )
            if part.size > LONGEST:
                raise self.refuse(f"quantifiers that repeat more than {LONGEST:,} characters", at)
            # In Oniguruma, a quantifier after a quantifier repeats it, as in `{1,3}+`.
            if self.dialect == "tiktoken" and self._peek() in ("?", "*", "+", "{"):
                raise self.refuse("a quantifier after a quantifier")
        raise self.refuse("more than three stacked quantifiers")

    def _interval(self, found: engine.Match[str]) -> tuple[int, int | None]:
        """Return (minimum, maximum) of `{n}`, `{n,}`, `{,n}` or `{n,m}`."""
        first, comma, last = found.groups()
        least = int(first or 0)
        most = (int(last) if last else None) if comma else least
        has_start = bool(first or (last and self.dialect == "huggingface"))
        if not has_start or (most is not None and most < least):
            raise self.refuse(f"{found.group()!r}", found.start())
        return least, most

    def _atom(self) -> Node | None:
        character = self._peek()
        if character == "(":
            return self._group()
        if character in ("*", "+", "?", "{"):
            raise self.invalid(f"nothing for the quantifier {character!r} to repeat")
        if found := self._match(r"\^|\$|\\A|\\z"):
            return self._anchor(found.group())
        if self._accept("["):
            return self._set(self._class())
        if self._accept("."):
            return self._set(~_single("\n"))
        member = self._member()
        return self._set(member if isinstance(member, np.ndarray) else self._case_variants(member))

    def _anchor(self, written: str) -> Node:
        if self.dialect == "tiktoken" or written[0] == "\\":
            return Node(r"\A" if written in ("^", r"\A") else r"\Z", is_assertion=True)
        # Edges of lines in Oniguruma; ^ does not match after the last newline of the text.
        end = self._set(_single("\n")).written
        return Node(rf"(?:(?={end})|\Z)" if written == "$" else rf"(?:\A|(?<={end})(?!\Z))")

    def _case_variants(self, character: str) -> Set:
        members = _single(character)
        if self.ignores_case:
            lower = character.lower()
            if lower.isascii() and lower.isalpha():
                for other in (lower, lower.upper(), _FOLDS.get(lower, lower)):
                    members[ord(other)] = True
            elif character.casefold() + character.upper() != 2 * character:
                raise self.refuse(f"{character!r} where case is ignored")
        return members

    def _group(self) -> Node | None:
        at = self.position
        ignored_case = self.ignores_case
        # Only at the start is its scope the same in both engines.
        if at == 0 and self._accept("(?i)"):
            self.ignores_case = True
            return None
        found = self._match(r"\((?:\?(?:[:=!>]|<[=!]|-?i:))?")
        assert found
        opening = found.group()
        if opening == "(" and self._peek() in ("?", "*"):
            what = "group" if self._peek() == "?" else "verb"
            raise self.refuse(f"the {what} {self.text[at : at + 5]!r}")
        if opening.endswith("i:"):
            self.ignores_case = opening == "(?i:"
        if opening in ("(", "(?i:", "(?-i:"):
            opening = "(?:"
        inside = self._choice()
        self.ignores_case = ignored_case
        if not self._accept(")"):
            raise self.invalid("unterminated group", at)
        if opening in ("(?<=", "(?<!") and inside.length is None:
            raise self.refuse("a variable-length lookbehind", at)
        node = replace(inside, written=f"{opening}{inside.written})", size=1 + inside.size)
        if opening in ("(?:", "(?>"):
            is_optional = node.is_optional and opening == "(?:"
            return replace(node, is_assertion=False, is_optional=is_optional)
        return replace(
            node, length=0, can_be_empty=True, is_assertion=True, is_optional=False,
            covers=frozenset(),
        )

    def _escape(self) -> str | Set:
        """Parse an escape, from its backslash on; return its character or set."""
        at = self.position
        letter = self.text[at + 1 : at + 2]
        self.position += 2
        if not letter:
            raise self.invalid("a lone '\\'", at)
        if letter in ("s", "S", "d", "D"):
            members = members_of(*runs_of("Nd"))
            if letter in "sS":
                members = (class_table() & WHITE_SPACE).astype(bool)
            return members if letter.islower() else ~members
        if letter in ("p", "P"):
            return self._property(at, letter == "P")
        if letter in _ESCAPES and not (letter == "e" and self.dialect == "tiktoken"):
            return _ESCAPES[letter]
        self.position -= 1
        for form in (r"x([0-9A-Fa-f]{2})", r"x\{([0-9A-Fa-f]{1,6})\}", r"u([0-9A-Fa-f]{4})"):
            if found := self._match(form):
                code_point = int(found.group(1), 16)
                # In Oniguruma \xHH is a byte; text has no surrogates.
                limit = 0x80 if form.startswith("x(") else N_CODE_POINTS
                if code_point < limit and not 0xD800 <= code_point < 0xE000:
                    return chr(code_point)
                break
        self.position = at + 2
        if letter.isascii() and not letter.isalnum() and letter not in "<>_`":
            return letter
        raise self.refuse(f"'\\{letter}'", at)

    def _property(self, at: int, inverted: bool) -> Set:
        found = self._match(r"\{(\^?)([A-Za-z_&]+)\}|([A-Z])")
        if not found or (found.group(3) and self.dialect == "huggingface"):
            raise self.refuse(f"{self.text[at : at + 8]!r}", at)
        name = found.group(3) or found.group(2)
        name = _LONG_NAMES.get(name.lower(), name)
        runs = runs_of(name) if len(name) <= 2 else []
        if name.lower() == "han":
            edges = (run.partition("-") for run in _HAN.split())
            runs = [(int(first, 16), int(last or first, 16)) for first, _, last in edges]
        members = members_of(*runs)
        inverts = bool(found.group(1))
        if not members.any() or name[0] == "C" or (inverts and self.dialect == "tiktoken"):
            raise self.refuse(f"the property {found.group()!r}", at)
        if self.ignores_case and name in ("Lu", "Ll", "Lt"):
            raise self.refuse(f"the property {found.group()!r} where case is ignored", at)
        return ~members if inverted != inverts else members

    def _class(self) -> Set:
        """Parse a set after its opening bracket."""
        self._enter("sets")
        at = self.position - 1
        negated = self._accept("^")
        members = np.zeros(N_CODE_POINTS, np.bool_)
        intersection: Set = np.ones(N_CODE_POINTS, np.bool_)  # of the operands before '&&'
        empty = True
        while not self._accept("]"):
            if not self._peek():
                raise self.invalid("unterminated character class", at)
            if self._accept("&&"):
                intersection &= members
                members = np.zeros(N_CODE_POINTS, np.bool_)
                continue
            two = self.text[self.position : self.position + 2]
            if self.dialect == "tiktoken" and two in ("--", "~~"):
                raise self.refuse(f"{two!r} in a character class")
            if two == "[:":
                raise self.refuse("a class of the form '[:name:]'")
            empty = False
            if self._accept("["):
                members = members | self._class()
                continue
            first = self._member()
            if isinstance(first, np.ndarray):
                if self.ignores_case and self.dialect == "huggingface":
                    raise self.refuse("a nested character class where case is ignored")
                members = members | first
                continue
            last = first
            if self._match(r"-(?=[^\]])"):
                if self._peek() == "[":
                    raise self.refuse("a range that ends with a class")
                end = self._member()
                if isinstance(end, np.ndarray) or end < first:
                    raise self.invalid("a range in descending order")
                last = end
            if self.ignores_case:  # add the other case of each character
                if first != last and not last.isascii():
                    raise self.refuse("a non-ASCII range where case is ignored")
                for code_point in range(ord(first), ord(last) + 1):
                    members |= self._case_variants(chr(code_point))
            members[ord(first) : ord(last) + 1] = True
        if empty:
            raise self.invalid("empty character class", at)
        self.depth -= 1
        members &= intersection
        return ~members if negated else members

    def _member(self) -> str | Set:
        if self._peek() == "\\":
            return self._escape()
        self.position += 1
        return self.text[self.position - 1]


def _single(character: str) -> Set:
    members = np.zeros(N_CODE_POINTS, np.bool_)
    members[ord(character)] = True
    return members


def _alphabet(sets: list[Set]) -> tuple[NDArray[np.uint16], list[str]]:
    """Return the letter of each code point, uint16[0x110000], and the letters of each set."""
    # Code points between two edges of sets have the same letter.
    changes = np.zeros(N_CODE_POINTS, np.bool_)
    changes[0] = True
    for members in sets:
        changes[1:] |= members[1:] != members[:-1]
    firsts = np.flatnonzero(changes)
    in_sets = np.array([members[firsts] for members in sets]).reshape(len(sets), len(firsts))
    kinds, letters = np.unique(in_sets, axis=1, return_inverse=True)
    lengths = np.diff(firsts, append=N_CODE_POINTS)
    return (
        np.repeat(letters.ravel().astype(np.uint16), lengths),
        ["".join(rf"\u{number:04x}" for number in np.flatnonzero(kind)) for kind in kinds],
    )


class RegexSplitter:
    """Splits by a regex for the engine `dialect`, "huggingface" or "tiktoken".

    `behavior` is a key of `BEHAVIORS`, and `invert` swaps matches and the text between them, as in
    Hugging Face's `Split`.

    Attributes:
        covers_all: There is a match at each character of any text, so that none is between matches.

    Raises:
        PatternError: The regex has syntax not implemented; that of tiktoken can match nothing.
    """

    def __init__(
        self, regex: str, dialect: str = "huggingface", behavior: str = "Isolated",
        invert: bool = False,
    ) -> None:
        if len(regex) > LONGEST:
            found = f"a split pattern has {len(regex):,} characters"
            raise PatternError(f"{found}: expected {LONGEST:,} at most")
        parser = Parser(regex, dialect)
        tree = parser.parse()
        if tree.can_be_empty and dialect == "tiktoken":
            raise PatternError(
                f"the split pattern {regex[:100]!r} can match nothing at all: expected one that"
                " takes a character at least; write '+' for '*'"
            )
        letters, sets = _alphabet(parser.sets)
        self._letters = letters.astype(np.uint8) if letters.max() < 256 else letters
        written = {FIRST_SET + i: f"[{each}]" if each else "(?!)" for i, each in enumerate(sets)}
        compiled = engine.compile(tree.written.translate(written), engine.V0)
        self._find = partial(_find_empty, compiled) if tree.can_be_empty else compiled.finditer
        covered = (parser.sets[number] for number in tree.covers)
        self.covers_all = not tree.can_be_empty and bool(sum(covered, np.False_).all())
        self._dialect = dialect
        self._merged = BEHAVIORS[behavior]
        self._invert = invert

    def refine(self, buffer: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        """Split every piece further.

        Args:
            buffer: uint8[n_bytes], UTF-8.
            starts: uint64[n_bytes // 64 + 1], bit set of the starts of pieces and of n_bytes;
                modified in place.

        Raises:
            EncodingError: The regex of tiktoken does not match all text, or a match times out.
        """
        encoding = "latin-1" if self._letters.dtype == np.uint8 else "utf-16-le"
        for first, n_bytes, code_points, places in _texts(buffer, starts):
            text = self._letters[code_points].tobytes().decode(encoding)
            pieces = bits_between(starts, first, first + n_bytes + 1) - first
            bounds = np.searchsorted(places, pieces)
            cuts: list[int] = []
            for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                cuts += self._cuts(text[begin:end], begin, first, places)
            set_bits(starts, places[cuts] + first)

    def _matches(self, text: str, place: int) -> Iterator[engine.Match[str]]:
        """Yield the matches in one text, which begins at byte `place`."""
        timeout = _TIMEOUT + len(text) * 1e-6
        try:
            yield from self._find(text, timeout=timeout)
        except TimeoutError as error:
            raise EncodingError(
                f"the split pattern took more than {timeout:.0f} s for one match in the text of"
                f" {len(text):,} characters from byte {place} on, because of backtracking; rewrite"
                " it without nested quantifiers"
            ) from error

    def _cuts(self, text: str, begin: int, first: int, places: NDArray[np.int64]) -> Iterator[int]:
        """Yield the starts of pieces of one text, in characters, plus `begin`."""
        pieces: list[tuple[int, bool]] = []  # start, and whether it is a match
        place = 0
        for found in self._matches(text, first + int(places[begin])):
            if place < found.start():
                pieces.append((place, self._invert))
            pieces.append((found.start(), not self._invert))
            place = found.end()
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
            if (before, is_match) not in self._merged:
                yield begin + start
            before = is_match


def _find_empty(
    compiled: engine.Pattern[str], text: str, timeout: float
) -> Iterator[engine.Match[str]]:
    """Yield matches as Oniguruma's `find_iter` of a regex that can match the empty string.

    An empty match where a match ends is dropped, and the search continues after a character.
    """
    place, end = 0, -1
    while place <= len(text) and (found := compiled.search(text, place, timeout=timeout)):
        if found.start() == found.end() == end:
            place += 1
            continue
        place = end = found.end()
        yield found


# Additional numbers in the tables of Rust (Unicode 17.0), which Hugging Face's `Digits` uses.
_NEWER_NUMBERS: Final = ((0x11DE0, 0x11DE9), (0x16FF4, 0x16FF6))


class DigitsSplitter:
    """Splits off numeric characters (General_Category N), as Hugging Face's `Digits`.

    With `individual` each of them is a piece, otherwise each run of them.
    """

    def __init__(self, individual: bool) -> None:
        self._individual = individual
        self._numbers = members_of(*runs_of("N"), *_NEWER_NUMBERS)

    def refine(self, buffer: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        """Split every piece further, see `RegexSplitter.refine`."""
        for first, _, code_points, places in _texts(buffer, starts):
            is_number = self._numbers[code_points]
            begins = is_number.copy() if self._individual else np.zeros(len(is_number), np.bool_)
            begins[1:] |= is_number[1:] != is_number[:-1]
            set_bits(starts, places[:-1][begins] + first)


def _texts(
    buffer: NDArray[np.uint8], starts: NDArray[np.uint64]
) -> Iterator[tuple[int, int, NDArray[np.uint32], NDArray[np.int64]]]:
    """Yield whole pieces, some megabytes at a time.

    Yields:
        (first byte, n_bytes, code points uint32[n], their offsets int64[n + 1] from first byte).
    """
    first = 0
    while first < len(buffer):
        stop = len(buffer)
        if first + _BYTES_AT_A_TIME < stop:
            at = first + _BYTES_AT_A_TIME  # a piece is not divided
            while not len(found := bits_between(starts, at, min(at + 65536, stop + 1))):
                at += 65536
            stop = int(found[0])
        part = buffer[first:stop]
        code_points = np.frombuffer(part.tobytes().decode().encode("utf-32-le"), np.uint32)
        places = np.append(np.flatnonzero(part & 0xC0 != 0x80), stop - first)
        yield first, stop - first, code_points, places
        first = stop
