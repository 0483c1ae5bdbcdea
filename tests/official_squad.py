"""The published SQuAD semantics, written as plainly as possible: what the fast code is held to."""

import re
import string
from collections import Counter
from collections.abc import Sequence


def normalised(text: str) -> str:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def plain_f1(prediction: str, reference: str) -> float:
    p, r = normalised(prediction).split(), normalised(reference).split()
    shared = sum((Counter(p) & Counter(r)).values())
    if shared == 0:
        return 0.0
    precision, recall = 1.0 * shared / len(p), 1.0 * shared / len(r)
    return (2 * precision * recall) / (precision + recall)


def plain_v1(prediction: str, references: Sequence[str]) -> tuple[bool, float]:
    exact = max(normalised(prediction) == normalised(r) for r in references)
    return exact, max(plain_f1(prediction, r) for r in references)


def plain_v2(prediction: str, references: Sequence[str]) -> tuple[bool, float]:
    kept = [r for r in references if normalised(r)] or [""]
    exact = max(normalised(prediction) == normalised(r) for r in kept)

    def f1(reference: str) -> float:
        p, r = normalised(prediction), normalised(reference)
        return plain_f1(prediction, reference) if p and r else float(p == r)

    return exact, max(f1(r) for r in kept)
