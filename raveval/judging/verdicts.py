r"""Reads a verdict from what a judge wrote: a score, or the label of the better response.

A verdict is the last thing the judge says: a marker and what it stands before, up to the end of the
output. The marker is `[RESULT]` (also `[SCORE]`, `[RATING]`; for choices `[CHOICE]`, `[WINNER]`),
and the last one in the output decides alone: if nothing, or more than a verdict, follows it, there
is none, whatever stands before. Without any such marker a last line `Score: 4` of its own counts
(Result, Rating; Choice, Winner, Verdict), and so does an output that is one JSON object with one
such key. Nothing else does: a number in running text, "(Score 5)", "Score 5: excellent", a copied
rubric, a marker inside quotation marks, code or a block quote that does not span the output.

The principle of what is accepted: what a careful reader takes for one allowed value without having
to guess. So the dress does not matter (emphasis, brackets, `\boxed{3}`, a final full stop, "3/5"
and "3 out of 5" on a scale to 5, "Score 3", 3.0, decimal digits of any one script), and whatever
may mean another value is refused: 2.5, "3-4", "3 or 4", "3/10", "~3", "3+", "3?", number words,
Roman numerals, text after the number on any line. Nothing is rounded, clamped or filled in.

Where the output was cut at its token limit nothing counts: a number may go on (1 of 10, 3 of 3.5),
and what looks like the end may be the middle of a rubric or a response that the judge repeats.

The tables of accepted and refused forms in tests/unit/test_judging.py are the whole of it. Reading
takes linear time and never raises, whatever the text.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

Reason = Literal["no verdict", "out of range", "not an integer", "cut at max tokens"]
"""Why there is no value. "out of range": a verdict was stated, but not one of those offered."""

Value = TypeVar("Value", int, str)


@dataclass(frozen=True, slots=True)
class Verdict(Generic[Value]):
    """What a judge decided, and why.

    Attributes:
        value: the score or label; None exactly when `reason` is given.
        feedback: what stands before the verdict, or all of the output where there is no verdict,
            without white space around it and without a leading "Feedback:".
        reason: why there is no value.
    """

    value: Value | None
    feedback: str
    reason: Reason | None = None


Slot = Callable[[str], "Verdict[Value]"]
"""Reads what stands behind a marker, bare of its dress; the feedback is still empty."""

_SCORE_WORDS = ("result", "score", "rating")
_CHOICE_WORDS = ("result", "choice", "winner", "verdict")

_MAX_BARE_CHARS = 200
"""No accepted form is longer."""

_DRESS: Mapping[int, str] = {
    **dict.fromkeys(map(ord, "*_~$`\"'\u201c\u201d\u2018\u2019«»\u200b\u200e\u200f\ufeff"), " "),
    **dict(zip(map(ord, "\uff08\uff09\uff1a\uff1d\uff0f\u2212\u3002"), "():=/-.", strict=True)),
}
"""Emphasis, quotes, code and marks without a width become blanks, since `3*4` must not become 34;
full-width punctuation and the minus sign become their ASCII twins."""

_QUOTES = (
    *(('"', '"'), ("'", "'"), ("`", "`")),
    *(("\u201c", "\u201d"), ("\u2018", "\u2019"), ("«", "»")),
)
_PAIRS = {"(": ")", "[": "]", "{": "}", "\\boxed{": "}"}
_END_TOKEN = re.compile(r"(?:</s>|<eos>|<end_of_turn>|<\|\w{1,24}\|>|\[/result\]|\[end\])\Z", re.I)
_FEEDBACK = re.compile(r"[\"\u201c#*_\s]{0,8}feedback[*_\s]{0,4}[:\uff1a][*_\s]{0,4}", re.I)

_OPEN = r"(?P<open>\\boxed ?\{|[(\[{])? ?"
_CLOSE = r" ?(?P<close>[)\]}])?"
_SCALE = r"(?: ?(?:/|out of|of) ?(?P<{}>\d+))?"
_LEAD = r"(?:(?:(?:the|a|my|final|overall) ){0,2}(?:score|result|rating)(?: is| of)? ?[:=]? ?)?"
_SCORE = re.compile(
    rf" ?[:=]? ?{_LEAD}{_OPEN}{_LEAD}(?P<sign>-?)(?P<digits>\d+)(?:\.(?P<fraction>\d+))?"
    rf"{_SCALE.format('inner')}{_CLOSE}{_SCALE.format('outer')} ?\.?",
    re.I,
)
_RESPONSE = r"(?:(?:the )?(?:better )?response(?: is)? ?[:=]? ?)?"
_CHOICE = re.compile(
    rf" ?[:=]? ?{_RESPONSE}{_OPEN}{_RESPONSE}(?P<value>[^\W_]+){_CLOSE} ?\.?", re.I
)


def read_score(
    text: str, *, lowest: int = 1, highest: int = 5, is_cut: bool = False
) -> Verdict[int]:
    """Read an integer score from a judge's output; the rules stand at the top of this module.

    >>> read_score("Feedback: Clear, as in (Score 5), but short. **[RESULT] 3/5**")
    Verdict(value=3, feedback='Clear, as in (Score 5), but short.', reason=None)
    >>> read_score("Good. [RESULT] 3 or 4").reason
    'no verdict'

    Args:
        text: all that the judge wrote.
        lowest: the lowest score offered.
        highest: the highest score offered, which is also what "3/5" and "3 out of 5" must name.
        is_cut: whether the output ended at its token limit.
    """

    def slot(bare: str) -> Verdict[int]:
        found = _SCORE.fullmatch(bare)
        if not found or not _is_paired(found):
            return Verdict(None, "", "no verdict")
        scales = {int(scale) for scale in (found["inner"], found["outer"]) if scale}
        if not scales <= {highest} or not _is_one_script(found["digits"]):
            return Verdict(None, "", "no verdict")
        if found["fraction"] and int(found["fraction"]):
            return Verdict(None, "", "not an integer")
        score = int(found["digits"]) * (-1 if found["sign"] else 1)
        is_allowed = lowest <= score <= highest
        return Verdict(score, "") if is_allowed else Verdict(None, "", "out of range")

    return _read(text, slot, words=_SCORE_WORDS, is_cut=is_cut)


def read_choice(
    text: str, labels: Sequence[str] = ("A", "B"), is_cut: bool = False
) -> Verdict[str]:
    """Read one of the offered labels, in upper or lower case, from a judge's output.

    >>> read_choice("A is vague, B is not. [RESULT] Response B.").value
    'B'

    Args:
        text: all that the judge wrote.
        labels: what was offered; words of letters and digits that differ in lower case too.
        is_cut: whether the output ended at its token limit.

    Raises:
        ValueError: the labels could not be told apart.
    """
    offered = {label.casefold(): label for label in labels}
    if len(offered) != len(labels) or not all(label.isalnum() for label in labels):
        raise ValueError(f"labels must be different words of letters and digits, given {labels!r}")

    def slot(bare: str) -> Verdict[str]:
        found = _CHOICE.fullmatch(bare)
        if not found or not _is_paired(found):
            return Verdict(None, "", "no verdict")
        label = offered.get(found["value"].casefold())
        return Verdict(label, "", None if label is not None else "out of range")

    return _read(text, slot, words=_CHOICE_WORDS, is_cut=is_cut)


def _is_paired(found: re.Match[str]) -> bool:
    """Whether the bracket before the value, if any, is closed after it, and by its like."""
    opening = (found["open"] or "").replace(" ", "")
    return (found["close"] or "") == _PAIRS.get(opening, "")


def _is_one_script(digits: str) -> bool:
    """Whether the digits are decimals of one script: no one writes a number in two of them."""
    return len({ord(digit) - unicodedata.decimal(digit) for digit in digits}) == 1


def _read(text: str, slot: Slot[Value], *, words: tuple[str, ...], is_cut: bool) -> Verdict[Value]:
    said = _unwrapped(text)
    if is_cut:
        return Verdict(None, _feedback(said), "cut at max tokens")
    return _from_json(said, slot, words) or _from_marker(said, slot, words)


def _unwrapped(text: str) -> str:
    """Take off what is no word of the judge's: white space, end tokens, a fence around it all."""
    text = text.strip()
    for _ in range(3):
        token = _END_TOKEN.search(text, max(0, len(text) - 32))
        if token is None:
            break
        text = text[: token.start()].rstrip()
    n_fences = text.count("```") if text.startswith("```") else 0
    is_closed = n_fences == 2 and text.endswith("```")
    if "\n" in text and (n_fences == 1 or is_closed):
        text = text.partition("\n")[2].removesuffix("```").strip()
    return text


def _bare(text: str) -> str:
    """Return the text without its dress, and with single blanks."""
    return " ".join(text.translate(_DRESS).split())


def _from_json(said: str, slot: Slot[Value], words: tuple[str, ...]) -> Verdict[Value] | None:
    """Read an output that is one JSON object; None where it is none."""
    if not (said.startswith("{") and said.endswith("}")):
        return None
    try:
        pairs = json.loads(said, object_pairs_hook=list)  # pairs: a key may stand twice
    except (ValueError, RecursionError):
        return None
    stated = [value for key, value in pairs if key.casefold() in words]
    feedback = [value for key, value in pairs if key.casefold() == "feedback"]
    why = feedback[0].strip() if len(feedback) == 1 and isinstance(feedback[0], str) else ""
    if (
        len(stated) != 1
        or isinstance(stated[0], bool)
        or not isinstance(stated[0], str | int | float)
    ):
        return Verdict(None, _feedback(said), "no verdict")
    bare = _bare(str(stated[0]))
    if len(bare) > _MAX_BARE_CHARS:
        return Verdict(None, _feedback(said), "no verdict")
    verdict = slot(bare)
    return replace(verdict, feedback=_feedback(said) if verdict.value is None else why)


def _from_marker(said: str, slot: Slot[Value], words: tuple[str, ...]) -> Verdict[Value]:
    place = _last_marker(said, words) or _last_line(said, words)
    if place is not None and not _is_quoted(said[: place.start], said[place.end :]):
        bare = _bare(place.rest)
        if len(bare) <= _MAX_BARE_CHARS:
            verdict = slot(bare)
            before = _without_dress_at_end(said[: place.start])
            before = said if verdict.value is None else before
            return replace(verdict, feedback=_feedback(before))
    return Verdict(None, _feedback(said), "no verdict")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a marker stands, and the text that must be the verdict."""

    start: int
    end: int
    rest: str


def _last_marker(said: str, words: tuple[str, ...]) -> _Place | None:
    r"""Find the last `[RESULT]`, `\[RESULT\]` or `[RESULT: …]`."""
    found = max(_marker(words).finditer(said), key=lambda match: match.start(), default=None)
    if found is None:
        return None
    rest = said[found.end() :]
    if found["closed"] is None:
        inside, bracket, after = rest.partition("]")
        rest = f"{inside} {after}" if bracket else "(unclosed"
    return _Place(found.start(), found.end(), rest)


def _last_line(said: str, words: tuple[str, ...]) -> _Place | None:
    """Find a last line `Score: …`."""
    start = said.rfind("\n") + 1
    found = _line(words).match(said, start)
    return _Place(found.start(1), found.end(), said[found.end() :]) if found else None


@functools.cache
def _marker(words: tuple[str, ...]) -> re.Pattern[str]:
    any_word = "|".join(words)
    return re.compile(
        rf"\\?\[\s{{0,3}}(?:(?:{any_word})\s{{0,3}}(?P<closed>\\?\])|result(?=[\s:\uff1a=]))", re.I
    )


@functools.cache
def _line(words: tuple[str, ...]) -> re.Pattern[str]:
    dress = r"[*_\"\u201c` \t]{0,6}"
    return re.compile(
        rf"#{{0,6}}{dress}((?:(?:the|my|final|overall) ){{0,2}}(?:{'|'.join(words)}))"
        rf"{dress}[:\uff1a=]",
        re.I,
    )


def _is_quoted(head: str, tail: str) -> bool:
    """Whether a marker between `head` and `tail` is quoted rather than said.

    It is in a block quote, in a code block that is not the whole output, or in quotation marks
    that open before it (unless with the output itself) and close after it or open right at it.
    """
    line = head[head.rfind("\n") + 1 :]
    if line.lstrip().startswith(">") or head.count("```") % 2:
        return True
    return any(_is_inside(opening, closing, head, tail) for opening, closing in _QUOTES)


def _is_inside(opening: str, closing: str, head: str, tail: str) -> bool:
    """Whether the end of `head` lies within quotation marks of one kind."""
    start = head.lstrip()
    is_adjacent = head.endswith(opening)
    if opening == closing:
        is_open = head.count(opening) % 2 == 1
        is_closed = tail.count(closing) % 2 == 1
    else:
        is_open = head.rfind(opening) > head.rfind(closing)
        is_closed = tail.count(closing) > tail.count(opening)
    if closing in "'\u2019":  # also an apostrophe, so that counting them in `head` tells nothing
        return (is_adjacent or is_closed) and not start.startswith(opening)
    n_leading = len(start) - len(start.lstrip(opening))
    if head.count(opening) == n_leading:  # around all of the output
        return False
    is_at_marker = start.rstrip("*_ \t").endswith(opening)
    return (is_open and (is_closed or is_at_marker)) or (is_adjacent and is_closed)


def _feedback(text: str) -> str:
    """Return the judge's reasons without white space around them and without "Feedback:"."""
    label = _FEEDBACK.match(text)
    return text[label.end() if label else 0 :].strip()


def _without_dress_at_end(before: str) -> str:
    """Take off the emphasis, heading or quote that opens right at the marker that follows."""
    bare = before.rstrip().rstrip('*_#`"\u201c')
    return bare if not bare or bare[-1].isspace() else before
