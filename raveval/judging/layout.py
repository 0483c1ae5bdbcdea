"""The sections of a judge's prompt: their headings, and rendered prompts split at them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from raveval.errors import DataError

ABSOLUTE_HEADINGS: Mapping[str, str] = {
    "task": "###Task Description:",
    "context": "###Context:",
    "instruction": "###The instruction to evaluate:",
    "response": "###Response to evaluate:",
    "reference": "###Reference Answer (Score 5):",
    "rubric": "###Score Rubrics:",
    "feedback": "###Feedback:",
}
"""Heading by section, in the order of an absolute prompt. "context" is our addition."""

RELATIVE_HEADINGS: Mapping[str, str] = {
    "task": "###Task Description:",
    "context": "###Context:",
    "instruction": "###Instruction:",
    "response_a": "###Response A:",
    "response_b": "###Response B:",
    "reference": "###Reference Answer:",
    "rubric": "###Score Rubric:",
    "feedback": "###Feedback:",
}
"""Heading by section, in the order of a relative prompt. "context" is our addition."""

OPTIONAL_SECTIONS = ("context", "reference")


@dataclass(frozen=True, slots=True)
class CleanedPrompt:
    """A rendered prompt of a published file, and the debris that stood after its last heading."""

    text: str
    debris: str


_TAIL = re.compile(r"(###Feedback:)([\s\",]*)\Z")


def clean_prompt(text: str) -> CleanedPrompt:
    r"""Take off what published files carry after `###Feedback:`: white space, quotes and commas.

    These are leftovers of the JSON that the prompts were cut from. Prometheus' own loader takes off
    the same characters; here the blank before them goes as well, so that all prompts end alike.
    White space around the prompt is no debris: `debris` is what else was there, for counting. A
    text that does not end in the heading is not touched.

    >>> clean_prompt('###Score Rubrics:\n[Short?]\n\n###Feedback: ",')
    CleanedPrompt(text='###Score Rubrics:\n[Short?]\n\n###Feedback:', debris='",')
    """
    last = text.rfind(ABSOLUTE_HEADINGS["feedback"])
    tail = _TAIL.match(text, last) if last >= 0 else None
    if tail is None:
        return CleanedPrompt(text, "")
    return CleanedPrompt(text[: tail.end(1)].lstrip(), "".join(tail[2].split()))


_SECTIONS: Mapping[str, str] = {
    heading: name
    for headings in (ABSOLUTE_HEADINGS, RELATIVE_HEADINGS)
    for name, heading in headings.items()
}
_HEADING_LINE = re.compile(
    "^(" + "|".join(re.escape(heading) for heading in _SECTIONS) + ")[ \t\r]*(?:\n|\\Z)", re.M
)
_REQUIRED = (
    {"instruction", "response", "rubric", "feedback"},
    {"instruction", "response_a", "response_b", "rubric", "feedback"},
)
_ORDER = tuple(dict.fromkeys([*[*ABSOLUTE_HEADINGS][:4], *RELATIVE_HEADINGS]))


def split_prompt(text: str) -> dict[str, str]:
    """Split a rendered prompt, ours or a published one, into its sections as they stand in it.

    The sections are those of `ABSOLUTE_HEADINGS` or `RELATIVE_HEADINGS` that are there, without
    "feedback", where the judge goes on. A prompt that could be split in two ways, because a text in
    it holds a heading of its own, is refused: which of the two is meant would be a guess.

    Raises:
        DataError: a section is missing, stands twice or in another place.
    """
    text = clean_prompt(text).text
    lines = list(_HEADING_LINE.finditer(text))
    names = [_SECTIONS[line[1]] for line in lines]
    _check_sections(names, [line[1] for line in lines])
    if text[: lines[0].start()].strip() or lines[-1].end() != len(text):
        raise DataError(
            "no rendered prompt: there is text before its first heading or after '###Feedback:'"
        )
    sections = {}
    for name, line, following in zip(names, lines, lines[1:], strict=False):
        body = text[line.end() : following.start()]
        sections[name] = body.removesuffix("\n").removesuffix("\n")
    return sections


def _check_sections(names: list[str], headings: list[str]) -> None:
    """Raise a DataError unless these sections, in this order, make a prompt in one way only."""
    for name, heading in zip(names, headings, strict=True):
        if names.count(name) > 1:
            raise DataError(
                f"prompt cannot be split: {heading!r} stands {names.count(name)} times as a line, "
                "so where its section ends is not certain; give the row's texts as columns"
            )
    found = set(names) - {"task", *OPTIONAL_SECTIONS}
    if found not in _REQUIRED:
        raise DataError(
            f"prompt cannot be split: headings found: {', '.join(headings) or 'none'}; needed: "
            f"{', '.join(_wanted(ABSOLUTE_HEADINGS))}, or {', '.join(_wanted(RELATIVE_HEADINGS))}"
        )
    if names != sorted(names, key=_ORDER.index):
        raise DataError(
            f"prompt cannot be split: its headings stand in another order: {', '.join(headings)}"
        )


def _wanted(headings: Mapping[str, str]) -> list[str]:
    return [text for name, text in headings.items() if name not in ("task", *OPTIONAL_SECTIONS)]
