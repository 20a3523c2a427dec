"""Find the chat template of a run, and what it needs of the tokenizer."""

from __future__ import annotations

import logging
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from preprocess.documents.chat_template import CHATML, ChatFormat, render
from preprocess.documents.template_sandbox import ChatTemplateError
from preprocess.documents.tokenizer_files import read_chat_templates, read_token_names
from preprocess.options import ChatSettings
from preprocess.settings import SettingsError

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_CHATML = "chatml"
_OF_CHATML = ("<|im_start|>", "<|im_end|>")

logger = logging.getLogger("preprocess")
_warn_once = cache(partial(logger.warning, "%s"))  # passes and datasets have one template


def chat_format_of(settings: ChatSettings, tokenizer: AnyTokenizer) -> ChatFormat | None:
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
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(
            f"chat_template {path!r} cannot be read ({reason}); give a file with a Jinja template,"
            f" or {_CHATML}"
        ) from error
