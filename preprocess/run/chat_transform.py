"""ChatTemplateTransform: token ids and loss mask of single conversations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bpe.arguments import checked
from bpe.errors import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.documents.chat_tokens import ConversationEncoder
from preprocess.documents.conversations import KINDS, BadConversationError, kind_of
from preprocess.documents.tokenizer_files import read_token_names
from preprocess.options import EncodeSettings
from preprocess.run.chat_format import chat_format_of
from preprocess.settings import TokenizerSource
from preprocess.sources.chats import batch_of, render_record


@checked
class ChatTemplateTransform:
    """Makes token ids and a loss mask of a record with a conversation.

        transform = ChatTemplateTransform("model/", train_on="assistant")
        transform({"messages": [{"role": "user", "content": "Hi"}, ...]})["input_ids"]

    The ids and the mask equal those that `build` writes, without the end-of-text id after the
    conversation.

    Args:
        tokenizer: As `bpe.load_tokenizer` takes it: a path, a name, or an object such as a
            tokenizer of transformers with its chat template.
        chat: "auto": conversations are found by their fields; or a kind.
        chat_template: File with a Jinja template, or "chatml"; None: the tokenizer's.
        train_on: What the mask says to train on.
        chat_date: The day that the template writes as today's, YYYY-MM-DD.
        chat_template_kwargs: More variables of the template.

    Raises:
        CorpusError: There is no chat template.
        ChatTemplateError: The tokenizer lacks special tokens of the template.
        SettingsError: An option has a wrong value, or the file of the template cannot be read.
        TokenizerFileError: The tokenizer cannot be read.
        VocabularyError: The tokenizer changes text, and Hugging Face's library cannot have it.
    """

    def __init__(
        self, tokenizer: TokenizerSource, *,
        chat: Literal["auto", "messages", "sharegpt", "prompt-completion"] = "auto",
        chat_template: str | None = None,
        train_on: Literal["assistant", "all", "last-assistant"] = "assistant",
        chat_date: str | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        from bpe import load_tokenizer

        settings = EncodeSettings(
            paths="-", tokenizer=tokenizer, chat=chat, chat_template=chat_template,
            train_on=train_on, chat_date=chat_date, chat_template_kwargs=chat_template_kwargs,
        )  # fmt: skip
        source = settings.tokenizer
        self.tokenizer = load_tokenizer(source)
        self._names = read_token_names(source)
        form = chat_format_of(settings, self.tokenizer)
        self._reading = ReadOptions(chat=settings.chat, chat_format=form)
        if form is None:
            raise CorpusError(
                f"{source}: the tokenizer has no chat template; give one: chat_template, a file or"
                " chatml"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return what workers of a `DataLoader` that are spawned need; encoders are made there."""
        return {name: value for name, value in vars(self).items() if name != "_encoders"}

    @cached_property
    def _encoders(self) -> tuple[ConversationEncoder, Any]:
        return ConversationEncoder(self.tokenizer), self.tokenizer.new_encoder()

    @property
    def pad_id(self) -> int:
        """Id to pad batches with: that of the tokenizer's pad token, else of its end of text."""
        special = self.tokenizer.special_tokens
        names = (self._names.get("pad_token"), self.tokenizer.eos_token)
        return next((special[name] for name in names if name in special), 0)

    def __call__(self, record: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
        """Return the tokens of a conversation, and which to train on.

        Returns:
            "input_ids", "attention_mask" (ones) and "loss_mask" (1 for tokens to train on):
            int64[n_tokens] each.

        Raises:
            CorpusError: The record is no conversation, or has nothing to train on.
        """
        kind = kind_of(record) if self._reading.chat == "auto" else self._reading.chat
        if kind not in KINDS or not {*KINDS[kind]} <= record.keys():
            raise CorpusError(
                f"a record should have a conversation, such as messages; it has {', '.join(record)}"
            )
        try:
            rendered = render_record(record, structs.replace(self._reading, chat=kind))
        except BadConversationError as error:
            raise CorpusError(str(error)) from error
        batch = batch_of([rendered], None)
        conversations, encoder = self._encoders
        ids, _, mask = conversations.encode(encoder, batch, -1, -1)
        ids = ids.astype(np.int64)
        ones = np.ones_like(ids)
        return {"input_ids": ids, "attention_mask": ones, "loss_mask": mask.astype(np.int64)}
