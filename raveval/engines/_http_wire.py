"""What goes over the wire to an OpenAI-compatible server, and what its answers mean; no network.

Every sampling parameter is written out, because vLLM's server fills those left out from the
checkpoint's `generation_config.json`. What a server says is shortened and freed of control
characters before it becomes part of a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from raveval.types import Failure, Message, Sampling, Status

Api = Literal["chat", "completions"]

MOST_STOPS = 4
"""Stop strings that the original API takes; vLLM takes any number."""

_WORDS_CHARS = 500
_OVERLONG_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
# Servers that give no code of their own say it in one of these ways (vLLM has four).
_OVERLONG_WORDS = re.compile(
    r"maximum context length|maximum model length|context length is only|exceeds? the (available )?"
    r"context (size|length|window)|cannot be greater than (max_model_len|max_total_tokens)",
    re.IGNORECASE,
)


class Malformed(Exception):
    """An answer that is not what the API promises; the server may do better next time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as it is sent: token ids, a text, or chat turns.

    `token_ids` are what the server should make of it, where a tokenizer is at hand.
    """

    prompt: tuple[int, ...] | str | tuple[Message, ...]
    token_ids: tuple[int, ...] | None = None
    n_truncated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer to one prompt; counts and ids are None where the server gives none."""

    text: str
    finish_reason: Literal["stop", "length"]
    n_prompt_tokens: int | None
    n_output_tokens: int | None
    prompt_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """What a server says of one model it serves."""

    id: str
    owned_by: str | None = None
    root: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What a server says went wrong: its words, and its code where it has one."""

    words: str
    code: str | None = None

    @property
    def is_overlong(self) -> bool:
        """Whether the prompt does not fit the model's context."""
        return self.code in _OVERLONG_CODES or bool(_OVERLONG_WORDS.search(self.words))


def form_request(
    asked: Asked,
    sampling: Sampling,
    *,
    model: str,
    max_tokens_field: str,
    is_seeded: bool,
    has_extensions: bool,
) -> dict[str, Any]:
    """Return the body of a request, every parameter written out."""
    body: dict[str, Any] = {
        "model": model,
        "n": 1,
        "stream": False,
        max_tokens_field: sampling.max_output_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    if is_seeded and sampling.seed is not None:
        body["seed"] = sampling.seed % 2**63
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if has_extensions:
        body |= {
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": sampling.repetition_penalty,
        }
    prompt = asked.prompt
    if isinstance(prompt, str):
        return body | {"prompt": prompt}
    turns = [turn for turn in prompt if isinstance(turn, Message)]
    if turns:
        return body | {"messages": [{"role": t.role, "content": t.content} for t in turns]}
    return body | {"prompt": list(prompt)}


def lacking(sampling: Sampling, *, has_extensions: bool) -> str | None:
    """Return what a server without vLLM's extensions could not do of this sampling, or None."""
    if has_extensions:
        return None
    if sampling.repetition_penalty != 1.0:
        return f"repetition_penalty {sampling.repetition_penalty:g}"
    if len(sampling.stop) > MOST_STOPS:
        return f"{len(sampling.stop)} stop strings (more than {MOST_STOPS})"
    return None


def read_answer(content: Any, *, api: Api, stop: tuple[str, ...]) -> Answer | Failure:
    """Return what a server answered; the text ends before the first stop string.

    Raises:
        Malformed: it is not an answer of this API.
    """
    choices = _member(content, "choices", list)
    if not choices:
        return Failure(Status.FAILED, "the server's answer holds no choices")
    choice = choices[0]
    reason = choice.get("finish_reason") if isinstance(choice, Mapping) else None
    if reason == "content_filter":
        return Failure(Status.FAILED, "the server's content filter stopped the answer")
    text = _text(choice, api)
    if reason not in ("stop", "length"):
        shown = repr(reason) if reason is None or len(str(reason)) <= 40 else "a long one"
        return Failure(Status.FAILED, f"the server ended the answer for the reason {shown}")
    finish_reason: Literal["stop", "length"] = "stop" if reason == "stop" else "length"
    found = [text.find(each) for each in stop if each in text]
    if found:
        text, finish_reason = text[: min(found)], "stop"
    elif finish_reason == "length":
        text = text.rstrip("\ufffd")  # half a character at the very end is no text yet
    usage = content.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    return Answer(
        text=text,
        finish_reason=finish_reason,
        n_prompt_tokens=_count(usage.get("prompt_tokens")),
        n_output_tokens=_count(usage.get("completion_tokens")),
        # vLLM puts them beside the choices of a chat, and into each choice of a completion.
        prompt_token_ids=_ids(content.get("prompt_token_ids") or choice.get("prompt_token_ids")),
    )


def difference(asked: Asked, answer: Answer) -> str | None:
    """Return how what the server read differs from the tokens it should have, or None.

    >>> difference(Asked("ab", (1, 2)), Answer("", "stop", 3, 0))
    'it counts 3 tokens of a prompt that has 2'
    """
    own, theirs = asked.token_ids, answer.prompt_token_ids
    if own is None:
        return None
    n_theirs = answer.n_prompt_tokens if theirs is None else len(theirs)
    if n_theirs is not None and n_theirs != len(own):
        return f"it counts {n_theirs} tokens of a prompt that has {len(own)}"
    if theirs is not None and theirs != own:
        place = next(i for i, (a, b) in enumerate(zip(own, theirs, strict=True)) if a != b)
        return f"token {place} is {theirs[place]} instead of {own[place]}"
    return None


def read_cards(content: Any) -> tuple[Card, ...]:
    """Return the models that a server lists.

    Raises:
        Malformed: it is no list of models.
    """
    cards = []
    for entry in _member(content, "data", list):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
            raise Malformed("an entry of the list of models has no id")
        owner, root = entry.get("owned_by"), entry.get("root")
        cards.append(
            Card(
                id=entry["id"],
                owned_by=owner if isinstance(owner, str) else None,
                root=root if isinstance(root, str) else None,
                max_model_len=_count(entry.get("max_model_len")) or None,
            )
        )
    return tuple(cards)


def read_version(content: Any) -> str:
    """Return a server's version.

    Raises:
        Malformed: it does not say.
    """
    version: str = _member(content, "version", str)
    return version


def read_fault(content: Any) -> Fault:
    """Return what went wrong in a server's own words, in whichever of the usual forms.

    >>> read_fault({"error": {"message": "no  such model", "code": "model_not_found"}})
    Fault(words='no such model', code='model_not_found')
    >>> read_fault({"detail": "Not Found"}).words
    'Not Found'
    """
    if isinstance(content, Mapping):
        inner = content.get("error")
        if isinstance(inner, Mapping):
            content = inner
        code = content.get("code")
        code = code if isinstance(code, str) else None
        for key in ("message", "detail", "error"):
            if content.get(key):
                return Fault(tidy(str(content[key])), code)
    return Fault(tidy(str(content)))


def tidy(words: str) -> str:
    """Return words of a server in one line of bounded length.

    >>> tidy(" a" + chr(10) + "b" + chr(0))
    'a b'
    """
    line = " ".join(_well_formed(words[: 8 * _WORDS_CHARS]).split())
    line = "".join(character for character in line if character.isprintable())
    return line if len(line) <= _WORDS_CHARS else f"{line[:_WORDS_CHARS]}…"


def _text(choice: Any, api: Api) -> str:
    """Return the text of a choice; a null stands for no text at all."""
    if not isinstance(choice, Mapping):
        raise Malformed("a choice of the answer is no object")
    holder, key = (choice.get("message"), "content") if api == "chat" else (choice, "text")
    if not isinstance(holder, Mapping) or key not in holder:
        raise Malformed(f"a choice of the answer has no {key}")
    text = holder[key]
    if not isinstance(text, str | None):
        raise Malformed(f"the {key} of the answer is no text")
    return _well_formed(text or "")


def _well_formed(text: str) -> str:
    """Return a text without lone surrogates, which JSON can spell and no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _member(content: Any, key: str, kind: type) -> Any:
    if not isinstance(content, Mapping):
        raise Malformed("the answer is no JSON object")
    if not isinstance(content.get(key), kind):
        raise Malformed(f"the answer has no {key!r}")
    return content[key]


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None


def _ids(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(_count(each) is not None for each in value):
        return tuple(value)
    return None
