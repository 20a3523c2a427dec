"""Encode text in which only given places are special tokens, by Hugging Face's `tokenizers`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

from bpe.errors import EncodingError
from bpe.huggingface import errors_as, without_special_entries
from bpe.text_tokenizer import AnyTokenizer
from bpe.tokenizer import Tokenizer


class SpecialTextEncoder:
    """Encodes text in which only given places are special tokens, by Hugging Face's `tokenizers`.

    The ids are those of the library for the whole text: tokens at other places that spell special
    ones are ordinary text.

    Args:
        tokenizer: Any tokenizer.

    Raises:
        VocabularyError: The library cannot have the ranks of the tokenizer.
    """

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        if isinstance(tokenizer, Tokenizer):
            text = tokenizer.to_huggingface().to_str()
        else:
            text = tokenizer.to_json()
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Engine

        top = json.loads(text)
        top["model"].pop("dropout", None)
        self._engine = Engine.from_str(json.dumps(without_special_entries(top)))
        self._engine.encode_special_tokens = True
        self._engine.no_truncation()
        self._engine.no_padding()
        # At their places, special tokens have names of their lengths that no text contains.
        private, known = random.SystemRandom(), tokenizer.special_tokens
        self._names, self._special_ids = dict[int, str](), dict[int | None, int]()
        for each in top.get("added_tokens") or []:
            if each["content"] in known:
                name = "".join(chr(private.randrange(0x100000, 0x10FFFE)) for _ in each["content"])
                flags = {x: each[x] for x in ("single_word", "lstrip", "rstrip", "normalized")}
                self._engine.add_tokens([AddedToken(name, special=False, **flags)])
                self._names[known[each["content"]]] = name
                self._special_ids[self._engine.token_to_id(name)] = known[each["content"]]

    def encode(
        self, text: str, special: Iterable[tuple[int, int, int]]
    ) -> list[tuple[int, int, int]]:
        """Return (id, start, stop) of each token, places in characters.

        Args:
            text: A text.
            special: (start, stop, id) of its special tokens, ascending.
        """
        parts, at = list[str](), 0
        for start, stop, token_id in special:
            parts += [text[at:start], self._names[token_id]]
            at = stop
        with errors_as(EncodingError, "Hugging Face's library cannot encode this text"):
            found = self._engine.encode("".join([*parts, text[at:]]), add_special_tokens=False)
        ids = (self._special_ids.get(token_id, token_id) for token_id in found.ids)
        return [(token_id, *place) for token_id, place in zip(ids, found.offsets, strict=True)]
