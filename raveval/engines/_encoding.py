"""Turns requests into token ids, and sums over tokens into replies; shared by all local engines.

Engines get token ids only, so that what a model sees does not depend on the engine:

- *BOS.* A prompt begins with exactly one BOS where the tokenizer adds one by default, and with none
  where it does not; a chat template that writes its own is never given a second. Whatever has no
  token before it (a document, an empty context) is conditioned on BOS, else on EOS.
- *Boundary.* A context does not end in a space: trailing spaces belong to the continuation. The
  scored tokens are those of `encode(context + continuation)` behind as many as `encode(context)`
  has. Where a token straddles the boundary the cut is at the same place (lm-eval cuts there too,
  but then shows the model the context's own tokens, which drops characters; here the model sees
  the encoding of the whole text). If nothing remains behind the cut the request is invalid.
- *Length.* A scored sequence holds at most `max_model_len - 1` tokens on every engine, because vLLM
  must generate one token after it. Documents go in windows of that many: window i scores the next
  `window - 1` tokens, and ends at its last scored token, so each token is scored exactly once, all
  windows but the last score equally many, and the last one has as much context as fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from raveval.engines import _checkpoint
from raveval.engines._tokens import SystemRole, Tokens, Unencodable
from raveval.types import (
    ChoiceScores,
    DocumentScore,
    Failure,
    Generate,
    ModelRef,
    Prompt,
    Request,
    ScoreChoices,
    ScoreDocument,
    Status,
)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One row for the model.

    The last `n_scored` tokens are scored, each from the logits of the position before it.
    """

    token_ids: tuple[int, ...]
    n_scored: int


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """The tokens to complete; `n_truncated_tokens` were cut off on the left."""

    token_ids: tuple[int, ...]
    n_truncated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EncodedChoices:
    """One sequence a continuation, with the context and (where asked for) without the question.

    `n_context_tokens` are those of the context as the model sees it, after truncation.
    """

    sequences: tuple[Sequence, ...]
    unconditional: tuple[Sequence, ...] | None
    n_context_tokens: int
    n_truncated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """The windows of a document; the sum of their `n_scored` is the document's tokens."""

    windows: tuple[Sequence, ...]
    window_tokens: int
    first_token_context: Literal["bos", "eos"]


Encoded = EncodedPrompt | EncodedChoices | EncodedDocument


@dataclass(frozen=True, slots=True)
class Span:
    """What an engine measured for one sequence: sums over its scored tokens.

    `entropy_nats` is None where the engine does not see the full vocabulary.
    """

    logprob_nats: float
    is_greedy: bool
    entropy_nats: float | None


class Encoder:
    """A model's tokenizer together with the length of its context.

    Attributes:
        max_model_len: the most tokens of a sequence, output included.
        commit: the hub's commit that was read; None for a local directory.
        length_source: where that comes from: "given", "model", or "assumed" where the model does
            not say.
        tokenizer: the model's own.
    """

    def __init__(self, checkpoint: _checkpoint.Checkpoint) -> None:
        self.max_model_len = checkpoint.max_model_len
        self.length_source = checkpoint.length_source
        self.commit = checkpoint.commit
        self.tokenizer: Any = checkpoint.tokenizer
        self._tokens = Tokens(checkpoint.tokenizer, vocab_size=checkpoint.vocab_size)

    @classmethod
    def load(cls, model: ModelRef, *, trust_remote_code: bool = False) -> Self:
        """Read the tokenizer and the context length of a model.

        Raises:
            ModelError: no such path, not a model, no tokenizer, or a context longer than its own.
        """
        return cls(_checkpoint.read(model, trust_remote_code=trust_remote_code))

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts of chat turns can be rendered."""
        return self._tokens.has_chat_template

    @property
    def system_role(self) -> SystemRole:
        """What becomes of a system turn."""
        return self._tokens.system_role

    def generate(self, request: Generate) -> EncodedPrompt | Failure:
        """Encode a prompt to complete."""
        try:
            return self._generate(request)
        except Unencodable as exc:
            return exc.failure

    def choices(self, request: ScoreChoices) -> EncodedChoices | Failure:
        """Encode the continuations of one context."""
        try:
            return self._choices(request)
        except Unencodable as exc:
            return exc.failure

    def document(self, request: ScoreDocument) -> EncodedDocument | Failure:
        """Encode a document in windows."""
        try:
            return self._document(request)
        except Unencodable as exc:
            return exc.failure

    def encode(self, request: Request) -> Encoded | Failure:
        """Encode any request."""
        if isinstance(request, Generate):
            return self.generate(request)
        if isinstance(request, ScoreChoices):
            return self.choices(request)
        return self.document(request)

    def size(self, request: Request) -> int:
        """Return the tokens of the longest sequence a request needs, before any truncation.

        Room for the output (one token for scores) is included; a request fits exactly when its size
        is at most `max_model_len`. A document counts as at most one window; what cannot be encoded
        at all has size 0.
        """
        try:
            if isinstance(request, Generate):
                return len(self._tokens.prompt(request.prompt)) + request.sampling.max_output_tokens
            if isinstance(request, ScoreDocument):
                windows = self._document(request).windows
                return 1 + max(len(window.token_ids) for window in windows)
            rows = self._rows(request.context, request.continuations)
            if request.unconditional_context is not None:
                rows += self._unconditional_rows(request, request.unconditional_context)
            return 1 + max(len(row.token_ids) for row in rows)
        except Unencodable:
            return 0

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return generated tokens as text, without special tokens, white space as it is."""
        return self._tokens.decode(token_ids)

    def _generate(self, request: Generate) -> EncodedPrompt:
        n_output = request.sampling.max_output_tokens
        if n_output < 1:
            raise Unencodable(Status.INVALID, f"max_output_tokens is {n_output}; it must be >= 1")
        ids = self._tokens.prompt(request.prompt)
        excess = len(ids) + n_output - self.max_model_len
        if excess <= 0:
            return EncodedPrompt(ids)
        n_kept = 1 if ids[0] == self._tokens.bos else 0
        if not request.may_truncate or len(ids) - excess <= n_kept:
            raise self._overlong(len(ids), n_output)
        return EncodedPrompt(ids[:n_kept] + ids[n_kept + excess :], excess)

    def _choices(self, request: ScoreChoices) -> EncodedChoices:
        rows = self._rows(request.context, request.continuations)
        excess = max(max(len(row.token_ids) for row in rows) - (self.max_model_len - 1), 0)
        if excess:
            rows = self._cut(rows, excess, may_truncate=request.may_truncate)
        unconditional = None
        if request.unconditional_context is not None:
            unconditional = self._unconditional_rows(request, request.unconditional_context)
            longest = max(len(row.token_ids) for row in unconditional)
            if longest >= self.max_model_len:
                raise self._overlong(
                    longest, 1, what="the unconditional context and its longest continuation"
                )
        n_context = len(rows[0].token_ids) - rows[0].n_scored
        return EncodedChoices(rows, unconditional, n_context, excess)

    def _document(self, request: ScoreDocument) -> EncodedDocument:
        ids = self._tokens.text(request.text)
        while ids[:1] == (self._tokens.bos,):
            ids = ids[1:]  # the text spells its own BOS, which is the context and not scored
        if not ids:
            raise Unencodable(Status.INVALID, "empty document: there is no token to score")
        window = self.max_model_len - 1
        tokens = (self._tokens.prefix(), *ids)
        return EncodedDocument(
            tuple(_windows(tokens, window)), window, "eos" if self._tokens.bos is None else "bos"
        )

    def _unconditional_rows(self, request: ScoreChoices, context: Prompt) -> tuple[Sequence, ...]:
        """Encode the continuations as they stand behind the question: with its boundary spaces."""
        _, boundary = self._split_boundary(request.context)
        return self._rows(context, request.continuations, boundary=boundary)

    def _split_boundary(self, context: Prompt) -> tuple[str, str]:
        """Return a context's text without its trailing spaces, and these."""
        text = context if isinstance(context, str) else self._tokens.render(context)
        stem = text.rstrip(" ")
        return stem, text[len(stem) :]

    def _rows(
        self, context: Prompt, continuations: tuple[str, ...], *, boundary: str = ""
    ) -> tuple[Sequence, ...]:
        """Encode each continuation behind the context, whatever the length."""
        if not continuations:
            raise Unencodable(Status.INVALID, "there are no continuations to score")
        stem, own_boundary = self._split_boundary(context)
        boundary = boundary or own_boundary
        n_context = len(self._tokens.behind_bos(stem))
        prefix = () if n_context else (self._tokens.prefix(),)
        rows = []
        for index, continuation in enumerate(continuations):
            if not continuation:
                raise Unencodable(Status.INVALID, f"continuation {index} is empty")
            ids = self._tokens.behind_bos(stem + boundary + continuation)
            n_scored = len(ids) - n_context
            if n_scored < 1:
                raise Unencodable(
                    Status.INVALID,
                    f"continuation {index} ({continuation[:40]!r}) has no token of its own: "
                    f"it melts into the last token of the context ({stem[-40:]!r}). Put white "
                    f"space or punctuation between the two",
                )
            rows.append(Sequence(prefix + ids, n_scored))
        return tuple(rows)

    def _cut(
        self, rows: tuple[Sequence, ...], excess: int, *, may_truncate: bool
    ) -> tuple[Sequence, ...]:
        """Cut `excess` tokens from the left of every context, so that it stays the same for all."""
        longest = max(len(row.token_ids) for row in rows)
        n_context = len(rows[0].token_ids) - rows[0].n_scored
        n_kept = 1 if rows[0].token_ids[0] == self._tokens.bos else 0
        if not may_truncate or n_context - excess <= n_kept:
            raise self._overlong(longest, 1, what="the context and its longest continuation")
        return tuple(
            Sequence(row.token_ids[:n_kept] + row.token_ids[n_kept + excess :], row.n_scored)
            for row in rows
        )

    def _overlong(self, n_tokens: int, n_output: int, *, what: str = "the prompt") -> Unencodable:
        return Unencodable(
            Status.OVERLONG,
            f"needs {n_tokens + n_output} tokens ({n_tokens} of {what}, {n_output} of output), "
            f"max_model_len is {self.max_model_len}",
        )


def choice_scores(
    encoded: EncodedChoices, spans: tuple[Span, ...], unconditional: tuple[Span, ...] | None
) -> ChoiceScores | Failure:
    """Form the reply from one span a sequence; a model whose numbers are not finite has failed."""
    if not all(math.isfinite(s.logprob_nats) for s in (*spans, *(unconditional or ()))):
        return _not_finite()
    rows = (*encoded.sequences, *(encoded.unconditional or ()))
    return ChoiceScores(
        logprob_nats=tuple(span.logprob_nats for span in spans),
        unconditional_nats=None
        if unconditional is None
        else tuple(span.logprob_nats for span in unconditional),
        n_tokens=tuple(row.n_scored for row in encoded.sequences),
        is_greedy=tuple(span.is_greedy for span in spans),
        n_context_tokens=encoded.n_context_tokens,
        n_prompt_tokens=sum(len(row.token_ids) for row in rows),
        n_truncated_tokens=encoded.n_truncated_tokens,
    )


def document_score(encoded: EncodedDocument, spans: tuple[Span, ...]) -> DocumentScore | Failure:
    """Form the reply from one span a window; a model whose numbers are not finite has failed."""
    entropies = [span.entropy_nats for span in spans if span.entropy_nats is not None]
    numbers = [*entropies, *(span.logprob_nats for span in spans)]
    if not all(math.isfinite(number) for number in numbers):
        return _not_finite()
    return DocumentScore(
        logprob_nats=math.fsum(span.logprob_nats for span in spans),
        entropy_nats=math.fsum(entropies) if len(entropies) == len(spans) else None,
        n_tokens=sum(window.n_scored for window in encoded.windows),
        n_windows=len(encoded.windows),
        window_tokens=encoded.window_tokens,
        first_token_context=encoded.first_token_context,
        n_prompt_tokens=sum(len(window.token_ids) for window in encoded.windows),
    )


def _windows(tokens: tuple[int, ...], window: int) -> Iterator[Sequence]:
    """Cut [context token, *document] so that each document token is scored exactly once."""
    for first in range(1, len(tokens), window - 1):
        stop = min(first + window - 1, len(tokens))
        yield Sequence(tokens[max(stop - window, 0) : stop], stop - first)


def _not_finite() -> Failure:
    return Failure(
        Status.FAILED,
        "the model's log-probabilities are not finite (weights or activations overflow; try "
        "dtype: float32)",
    )
