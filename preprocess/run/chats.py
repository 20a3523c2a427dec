"""The chat template of a run, and ChatTemplateTransform, which applies one to single records."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bpe.arguments import checked
from bpe.errors import ArgumentError, CorpusError
from bpe.files.locations import given_location
from bpe.formats.json_file import decoded
from bpe.parallel import cached_property
from preprocess.documents.batch import ReadOptions
from preprocess.documents.chat_template import CHATML, ChatFormat, render
from preprocess.documents.chat_tokens import ConversationEncoder
from preprocess.documents.conversations import (
    KINDS,
    BadConversationError,
    batch_of,
    kind_of,
    render_record,
)
from preprocess.documents.template_sandbox import ChatTemplateError
from preprocess.documents.tokenizer_files import read_chat_templates, read_token_names
from preprocess.options import EncodeSettings, RunSettings
from preprocess.settings import SettingsError, TokenizerSource

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_CHATML = "chatml"
_OF_CHATML = ("<|im_start|>", "<|im_end|>")

logger = logging.getLogger("preprocess")
_warn_once = cache(partial(logger.warning, "%s"))  # passes and datasets have one template


def chat_format_of(settings: RunSettings, tokenizer: AnyTokenizer) -> ChatFormat | None:
    """Return the chat template with the tokenizer's special tokens; None: there is no template.

    Raises:
        SettingsError: The file of the template cannot be read.
        ChatTemplateError: The tokenizer lacks the special tokens of ChatML.
        TokenizerFileError: The tokenizer's template cannot be read.
    """
    given = getattr(settings, "tokenizer", None)
    if not isinstance(given, str) or given.startswith("sha256:"):  # was given as an object
        given = tokenizer
    names, with_tools = read_token_names(given), None
    if (eos := getattr(tokenizer, "eos_token", None)) is not None:
        names.setdefault("eos_token", eos)
    special = tokenizer.special_tokens
    if settings.chat_template == _CHATML:
        if missing := [token for token in _OF_CHATML if token not in special]:
            raise ChatTemplateError(
                f"the tokenizer has no special token {', '.join(missing)}, which the template"
                " chatml writes; use a tokenizer that has them, or another template"
            )
        template, where = CHATML, "the chat template chatml"
    elif settings.chat_template is not None:
        template, where = _read(settings.chat_template), f"{settings.chat_template}"
    else:
        found = read_chat_templates(given)
        if not found:
            return None
        template, with_tools = found["default"], found.get("tool_use")
        where = "the chat template of the tokenizer"
    forms = getattr(tokenizer, "normal_forms", ())
    form = ChatFormat(
        template, tuple(special.items()), tuple(names.items()), settings.train_on, tuple(forms),
        where, with_tools, settings.chat_date, settings.chat_template_kwargs or "{}",
    )
    if not _ends_turns(form):
        _warn_once(
            f"{where} writes no special token after the last turn of the assistant, so a model is"
            " not taught to stop there; of earlier turns the first token of the next turn is"
            " trained on, if it is special"
        )
    return form


def _ends_turns(form: ChatFormat) -> bool:
    """Return False if what is trained on of a last turn ends without a special token."""
    probe = [{"role": role, "content": "x"} for role in ("user", "assistant")]
    try:
        text, special, trained, _ = render(probe, form)
    except ChatTemplateError:  # which real conversations get, or not
        return True
    if form.train_on == "all" or not trained:
        return True
    start, stop = trained[-1]
    return any(start < end <= stop and not text[end:stop].strip() for _, end, _ in special)


def _read(path: str) -> str:
    path = given_location(path)
    try:
        if Path(path).is_char_device():  # reading it might never end
            raise OSError(0, "it is a device")
        return decoded(Path(path).read_bytes()).replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = f"it is not {error.encoding.upper()}"
        raise SettingsError(
            f"--chat-template {path!r} cannot be read ({reason}); give a file with a Jinja"
            f" template, or {_CHATML}"
        ) from error


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
        if not isinstance(record, Mapping):
            raise ArgumentError(f"record: should be a mapping; got {record!r:.100}")
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
