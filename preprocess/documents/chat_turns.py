"""Find which characters of a rendered conversation are whose.

A conversation is rendered again with private characters in place of what it says, other ones for
each message. Where that text agrees with the real one, private characters show what a message says,
and all others are the template's.

The place of a turn follows from two more renderings. Rendered up to the turn, with the generation
prompt, a conversation ends where the assistant begins to write; rendered through the turn, it ends
where the assistant stops. If the text of the whole conversation begins with both, their ends are
the place. Otherwise the template writes earlier turns in another way when more follows, and only
what the three texts have in common next to the private characters of the turn counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from preprocess.documents.template_sandbox import ChatTemplateError, Messages, Template

# Private characters have no meaning of their own. Those of messages are of the first private plane.
_PRIVATE, _N_OF_MESSAGES = 0xF0001, 0xFFF0
_OF_TOOLS, _OF_PROBE, _OF_NAMES = "\U00100000", "\U00100001", 0x100002
_private = re.compile(f"[{chr(_PRIVATE)}-\U0010ffff]")

Special = list[tuple[int, int, int]]  # (start, end, id), ascending
Place = tuple[int, int]  # start, end


class Hidden:
    """A conversation with private characters in place of what it says.

    Args:
        messages: The messages.
        tools: The tools; None: none.
        kept: Texts to leave as they are, the longest first: what the template looks for.
        hide: Returns a text with a private character in place of those to hide.
        hides_name: Whether a name in a message or tool, such as that of an argument, is hidden.
    """

    def __init__(
        self, messages: Messages, tools: Any, kept: Sequence[str],
        hide: Callable[[str, str], str], hides_name: Callable[[str], bool],
    ) -> None:
        self._kept = re.compile(f"({'|'.join(map(re.escape, kept))})") if kept else None
        self._hide_text, self._hides_name, self._names = hide, hides_name, dict[str, str]()
        self.messages = [
            # The role is checked, and may be a part of a special token.
            {**self._hide(message, mark_of(number)), "role": message["role"]}
            for number, message in enumerate(messages)
        ]
        self.tools = self._hide(tools, _OF_TOOLS)
        self.text = ""

    def _hide(self, value: Any, mark: str) -> Any:
        """Return a value of JSON with `mark` for each character of its texts."""
        if isinstance(value, str):
            if self._kept is None:
                return self._hide_text(value, mark)
            parts = self._kept.split(value)
            parts[::2] = (self._hide_text(part, mark) for part in parts[::2])
            return "".join(parts)
        if isinstance(value, list | tuple):
            return [self._hide(each, mark) for each in value]
        if isinstance(value, dict):
            return {self._name(key): self._hide(each, mark) for key, each in value.items()}
        return value

    def _name(self, name: str) -> str:
        if not self._hides_name(name):
            return name
        mark = chr(_OF_NAMES + len(self._names) % _N_OF_MESSAGES)
        return self._names.setdefault(name, mark * len(name))

    def is_of(self, text: str, template: Template) -> bool:
        """Render the conversation; return True if other characters are those of `text`."""
        try:
            self.text = template.render(self.messages, self.tools)[0]
        except ChatTemplateError:  # it looks at what messages say
            return False
        given = (each.encode("utf-32-le", "surrogatepass") for each in (self.text, text))
        codes, others = (np.frombuffer(each, "<u4") for each in given)
        return len(codes) == len(others) and bool(((codes == others) | (codes >= _PRIVATE)).all())


def hide_all(text: str, mark: str) -> str:
    """Return a text with a character in place of all but white space."""
    return re.sub(r"\S", mark, text)


def mark_of(number: int) -> str:
    """Return the private character for what a message says."""
    return chr(_PRIVATE + number % _N_OF_MESSAGES)


def _n_common(text: str, other: str) -> int:
    """Return the number of characters that both texts begin with."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


class Turns:
    """Finds the places of turns in a rendered conversation.

    Args:
        template: The template.
        messages: The messages.
        tools: The tools; None: none.
        text: What the template writes.
        special: Places of the template's special tokens in it.
    """

    def __init__(
        self, template: Template, messages: Messages, tools: Any, text: str, special: Special
    ) -> None:
        self.template, self.messages, self.text = template, messages, text
        self._tools, self._special = tools, special
        self._hidden: Hidden | None = None

    def find(self, turns: Iterable[int]) -> list[Place]:
        """Return the places of messages, by their numbers, which ascend.

        Raises:
            ChatTemplateError: A place is not known, or a rendering is refused.
        """
        found = list[Place]()
        for turn in turns:
            by_prefixes = self._by_prefixes(turn) if self._hidden is None else None
            start, stop, is_whole = by_prefixes or self._by_marks(turn)
            stop = self._end(start, stop, is_whole)
            found.append((max(start, found[-1][1] if found else 0), stop))
        return found

    def _by_prefixes(self, turn: int) -> tuple[int, int, bool] | None:
        before, through = self._before(self.messages, self._tools, turn), self.text
        if not self.text.startswith(before):
            return None
        if turn + 1 < len(self.messages):
            through, _ = self.template.render(self.messages[: turn + 1], self._tools)
        return (len(before), len(through), True) if self.text.startswith(through) else None

    def _by_marks(self, turn: int) -> tuple[int, int, bool]:
        if self._hidden is None:
            self._hidden = self._hide(turn)
        hidden, text, mark = self._hidden, self._hidden.text, mark_of(turn)
        first, last = text.find(mark), text.rfind(mark) + 1
        if {*_private.findall(text[first:last])} != {mark}:
            said = self.messages[turn]
            if hidden.messages[turn] == said and not (said.get("content") or "").strip():
                raise ChatTemplateError(
                    f"message {turn + 1} of {len(self.messages)} says nothing, and"
                    f" {self.template.where} writes turns in another way when more follows, so it"
                    " is not known what to train on; remove the message, or add {% generation %}"
                    " marks to the template"
                )
            raise self._unknown(turn)
        header, trailer = _private.split(text[:first])[-1], _private.split(text[last:], 1)[0]
        begin = first - len(header)
        for by_probe in (False, True):
            before = self._before(hidden.messages, hidden.tools, turn, by_probe)
            prompt = _private.split(before)[-1]
            start = self._past_common(begin, header, prompt)
            # More of both would follow if the turn did not begin with the prompt.
            n = _n_common(header, prompt)
            is_turn = hidden.messages[turn]["role"] == "assistant"
            if not (is_turn and n and header[n:].strip() and prompt[n:].strip()):
                break
        else:
            raise self._unknown(turn)
        through = text
        if turn + 1 < len(hidden.messages):
            through, _ = self.template.render(hidden.messages[: turn + 1], hidden.tools)
        closing = through[through.rfind(mark) + 1 :]
        stop = self._past_common(last, trailer, closing)
        is_whole = stop - last == len(closing)
        if (start == begin and prompt.strip()) or (
            stop == last and not is_whole and self._end(start, stop, is_whole) == stop
        ):
            raise self._unknown(turn)
        return start, stop, is_whole

    def _hide(self, turn: int) -> Hidden:
        calls = [call for message in self.messages for call in message.get("tool_calls", ())]
        inner = [call.get("function", call) for call in calls]
        # Results may name the call again, so its name is hidden only if it is all that is said.
        names = sorted({x["name"] for x in inner if x.get("arguments")}, key=len, reverse=True)
        texts = self.template.literals
        for kept in (names, names + [x for x in texts if not x.isalnum()], names + texts):
            hidden = Hidden(self.messages, self._tools, kept, hide_all, lambda name: False)
            if hidden.is_of(self.text, self.template):
                return hidden
        raise self._unknown(turn)

    def _unknown(self, turn: int) -> ChatTemplateError:
        return ChatTemplateError(
            f"{self.template.where} writes message {turn + 1} of {len(self.messages)} nowhere, in"
            " pieces, or in another way because of what messages say, so it is not known what to"
            " train on; add {% generation %} marks to the template, or train on all (--train-on"
            " all)"
        )

    def _before(self, messages: Messages, tools: Any, turn: int, by_probe: bool = False) -> str:
        """Return the text up to where a message begins to be written.

        It ends with the generation prompt, or, `by_probe`, with what another turn begins with.
        """
        given, role = messages[:turn], messages[turn]["role"]
        if role != "assistant":
            return self.template.render(given, tools)[0] if given else ""
        if given and not by_probe and "add_generation_prompt" in self.template.names:
            return self.template.render(given, tools, add_generation_prompt=True)[0]
        # What all turns of the assistant begin with. A space is a part of the first word.
        probe = {"role": role, "content": _OF_PROBE}
        text, mark, _ = self.template.render([*given, probe], tools)[0].partition(_OF_PROBE)
        if not mark:
            raise self._unknown(turn)
        return text.removesuffix(" ")

    def _past_common(self, place: int, text: str, other: str) -> int:
        """Return where what both texts begin with ends; `text` is at a place of the whole.

        If it is a part of `other`, it ends with white space or a special token.
        """
        n = _n_common(text, other)
        ends = {end - place for _, end, _ in self._special}
        while 0 < n < min(len(text), len(other)) and not (text[n - 1].isspace() or n in ends):
            n -= 1
        return place + n

    def _end(self, start: int, stop: int, is_whole: bool) -> int:
        """Return where the model stops, which does not write the line break after its last token.

        If no special token ends the turn, one that follows at once does, such as that of the next
        turn, or one for the last turn that is another if the turn is not the last (not `is_whole`).
        """
        ends = [end for _, end, _ in self._special if start < end <= stop]
        if ends and not self.text[ends[-1] : stop].strip():
            return ends[-1]
        if is_whole and self.text[start:stop][-1:].isspace():
            return stop
        return next((end for begin, end, _ in self._special if begin == stop), stop)
