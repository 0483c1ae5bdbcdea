"""An engine whose models know a share of the answers: a file of each says how large it is.

A choice that begins with "right" is the right one. What a model knows follows from its name and the
question alone, so it is the same on any machine and in any order.
"""

import asyncio
import random
from pathlib import Path

from raveval.engines import scripted
from raveval.engines.scripted import OPERATIONAL, Options, encoder
from raveval.types import ChoiceScores, ModelRef, Reply, Request, ScoreChoices

__all__ = ["OPERATIONAL", "Options", "encoder", "start"]


def start(model: ModelRef, options: Options) -> scripted.ScriptedEngine:
    """Return the engine of a directory with a file of its skill and its slowness."""
    place = Path(str(model.path))
    skill, slowness = map(float, (place / "skill").read_text().split())

    async def answer(request: Request) -> Reply:
        assert isinstance(request, ScoreChoices)
        await asyncio.sleep(slowness * options.latency_seconds)
        knows = random.Random(f"{place.name} {request.context}").random() < skill
        return ChoiceScores(
            logprob_nats=tuple(
                -1.0 if text.strip().startswith("right") == knows else -2.0
                for text in request.continuations
            ),
            unconditional_nats=None,
            n_tokens=tuple(1 for _ in request.continuations),
            is_greedy=tuple(False for _ in request.continuations),
            n_context_tokens=1,
            n_prompt_tokens=1,
        )

    silent = Options(max_model_len=options.max_model_len)
    return scripted.ScriptedEngine(answer, silent, max_model_len=options.max_model_len)
