"""Turns text and chat turns into token ids with one BOS; the only place where text meets tokenizer.

A system turn that the chat template refuses, or leaves out without a word, goes in front of the
first user turn, with a blank line between; a template that takes it gets it as it is. Which of
these a template does is tried out once, on turns of our own.

It does not know of lengths or of requests: that is `_encoding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from jinja2.exceptions import TemplateError

from raveval.types import Failure, Message, Prompt, Status

SystemRole = Literal["own turn", "folded into the user turn", "no template"]
"""What becomes of a system turn."""

_CANARY = (Message("system", "Sing like a canary."), Message("user", "Now."))


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
        self.system_role: SystemRole = self._system_role()

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
        if self.system_role == "folded into the user turn":
            messages = folded(messages)
        try:
            return self._apply_template(messages)
        except TemplateError as exc:
            roles = ", ".join(turn.role for turn in messages)
            raise Unencodable(
                Status.INVALID, f"the chat template refuses the turns ({roles}): {exc}"
            ) from None

    def _apply_template(self, messages: Sequence[Message]) -> str:
        turns = [{"role": turn.role, "content": turn.content} for turn in messages]
        text: str = self._tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False
        )
        return text

    def _system_role(self) -> SystemRole:
        if not self.has_chat_template:
            return "no template"
        try:
            is_shown = _CANARY[0].content in self._apply_template(_CANARY)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, who asks in turns will be told
            is_shown = False
        return "own turn" if is_shown else "folded into the user turn"

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return generated tokens as text, without special tokens, white space as it is."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def folded(messages: Sequence[Message]) -> tuple[Message, ...]:
    r"""Return turns without the system role: its text opens the first user turn.

    >>> folded((Message("system", "Be brief."), Message("user", "Why?")))
    (Message(role='user', content='Be brief.\n\nWhy?'),)
    """
    texts = [turn.content for turn in messages if turn.role == "system" and turn.content]
    rest = [turn for turn in messages if turn.role != "system"]
    if not texts:
        return tuple(rest)
    place = next((i for i, turn in enumerate(rest) if turn.role == "user"), None)
    if place is None:
        return (Message("user", "\n\n".join(texts)), *rest)
    opening = "\n\n".join([*texts, *filter(None, [rest[place].content])])
    return (*rest[:place], Message("user", opening), *rest[place + 1 :])
