"""Turns text and chat turns into token ids with one BOS; the only place where text meets tokenizer.

It does not know of lengths or of requests: that is `_encoding`.
"""

from __future__ import annotations

from typing import Any

from jinja2.exceptions import TemplateError

from raveval.types import Failure, Message, Prompt, Status


class Unencodable(Exception):
    """Carries the failure of one request out of nested calls."""

    def __init__(self, status: Status, message: str) -> None:
        self.failure = Failure(status, message)
        super().__init__(message)


class Tokens:
    """A tokenizer whose prompts begin with exactly one BOS, or with none where that is its way."""

    def __init__(self, tokenizer: Any, *, vocab_size: int | None) -> None:
        self.bos: int | None = tokenizer.bos_token_id
        self.has_chat_template = bool(tokenizer.chat_template)
        self._eos: int | None = tokenizer.eos_token_id
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._adds_bos = self.bos is not None and tokenizer("x")["input_ids"][0] == self.bos

    def prompt(self, prompt: Prompt) -> tuple[int, ...]:
        """Encode a prompt to complete; nothing at all becomes BOS (or EOS) alone.

        Raises:
            Unencodable: see `text`, `render` and `prefix`.
        """
        text = prompt if isinstance(prompt, str) else self.render(prompt)
        return self.behind_bos(text) or (self.prefix(),)

    def behind_bos(self, text: str) -> tuple[int, ...]:
        """Encode a text with one BOS where the tokenizer adds one, or the text spells one.

        A rendered chat template often spells it; it is text like any other here.

        Raises:
            Unencodable: see `text`.
        """
        ids = self.text(text)
        if self.bos is not None and self._adds_bos:
            ids = (self.bos, *ids)
        while len(ids) > 1 and ids[0] == ids[1] == self.bos:
            ids = ids[1:]
        assert self.bos is None or ids[:2] != (self.bos, self.bos)
        return ids

    def prefix(self) -> int:
        """Return what a first token is conditioned on: BOS, else EOS.

        Raises:
            Unencodable: the tokenizer has neither.
        """
        token = self.bos if self.bos is not None else self._eos
        if token is None:
            raise Unencodable(
                Status.INVALID,
                "the tokenizer has neither a BOS nor an EOS token, so a first token has nothing to "
                "be conditioned on",
            )
        return token

    def text(self, text: str) -> tuple[int, ...]:
        """Encode a text as it stands, nothing added.

        Raises:
            Unencodable: not valid Unicode, or tokens that the model does not have.
        """
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise Unencodable(
                Status.INVALID,
                f"not valid Unicode: a lone surrogate (U+{ord(text[exc.start]):04X}) at character "
                f"{exc.start}",
            ) from None
        ids = tuple(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if self._vocab_size is not None and ids and max(ids) >= self._vocab_size:
            raise Unencodable(
                Status.INVALID,
                f"token id {max(ids)} is outside the model's vocabulary of {self._vocab_size}: "
                f"does the tokenizer belong to this model?",
            )
        return ids

    def render(self, messages: tuple[Message, ...]) -> str:
        """Render chat turns through the model's own template, up to where the answer begins.

        Raises:
            Unencodable: there is no template, or it refuses these turns.
        """
        if not self.has_chat_template:
            raise Unencodable(
                Status.INVALID, "the tokenizer has no chat template; use plain prompts"
            )
        turns = [{"role": turn.role, "content": turn.content} for turn in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=False
            )
        except TemplateError as exc:
            roles = ", ".join(turn.role for turn in messages)
            raise Unencodable(
                Status.INVALID, f"the chat template refuses the turns ({roles}): {exc}"
            ) from None
        return text

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return generated tokens as text, without special tokens, white space as it is."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
