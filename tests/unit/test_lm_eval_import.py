"""Reading lm-eval's files: every number as it stands, records from samples, nothing invented."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raveval
from raveval import runner
from raveval.config import load_config
from raveval.errors import DataError, MismatchError
from raveval.lm_eval import conventions
from raveval.lm_eval.importing import import_runs
from raveval.metrics import _intervals as intervals
from raveval.run_status import status
from raveval.store import RunDirectory
from raveval.sweep import load_sweep_results, report_imported
from raveval.types import Estimate, Results, Shard
from tests import lm_eval_files as files

TEXTS = ("a long answer", "no", "été", "blue")


def choices(n: int = 60, *, seed: int = 1) -> list[files.Sample]:
    rng = np.random.default_rng(seed)
    nats = -rng.exponential(3, (n, 4))
    return [files.choice(i, nats[i].tolist(), TEXTS, i % 4) for i in range(n)]


def imported(folder: Path, paths: Path | list[Path], said: list[str] | None = None) -> Results:
    given = paths if isinstance(paths, list) else [paths]
    say = (lambda _: None) if said is None else said.append
    (run,) = import_runs(given, folder, say=say)
    assert raveval.load_results(folder) == run.results, "what is written is what is returned"
    return run.results


def records(folder: Path, task: str) -> list[dict[str, Any]]:
    entry = (RunDirectory(folder).read_manifest() or {})["tasks"][task]
    n = entry["n_examples"]
    rows: list[dict[str, Any]] = RunDirectory(folder).read_records(Shard(task, 0, 0, n)).to_pylist()
    return rows


def same(a: Estimate, b: Estimate) -> bool:
    """Whether two estimates are the same but for the rounding of a printed standard error."""
    assert a.stderr == pytest.approx(b.stderr, rel=1e-12)
    return replace(a, stderr=None) == replace(b, stderr=None)


class TestNumbers:
    def test_stand_as_in_the_file_with_walds_interval(self, tmp_path):
        metrics = {
            **files.proportion("acc", 0.25, 100),
            "perplexity,none": 5.5,
            "perplexity_stderr,none": 0.25,
            "word_perplexity,none": 30.0,
            "word_perplexity_stderr,none": "N/A",
        }
        path = files.write(tmp_path / "in", {"t": metrics}, n_samples={"t": 100})
        task = imported(tmp_path / "run", path).tasks["t"]
        acc = task.metrics["acc,none"]
        stderr = math.sqrt(0.25 * 0.75 / 99)
        assert (acc.value, acc.stderr, acc.unit, acc.n) == (0.25, stderr, "fraction", 100)
        assert acc.interval == "wald95"
        assert acc.low == pytest.approx(0.25 - 1.959964 * stderr, abs=1e-7)
        assert acc.high == pytest.approx(0.25 + 1.959964 * stderr, abs=1e-7)
        assert acc.higher_is_better is True
        perplexity = task.metrics["perplexity,none"]
        assert (perplexity.value, perplexity.unit) == (5.5, "perplexity")
        assert perplexity.higher_is_better is False
        unknown_error = task.metrics["word_perplexity,none"]
        assert (unknown_error.value, unknown_error.stderr, unknown_error.low) == (30.0, None, None)

    def test_intervals_end_where_the_numbers_do(self, tmp_path):
        metrics = {
            **files.proportion("acc", 0.02, 50),
            "perplexity,none": 2.0,
            "perplexity_stderr,none": 3.0,
            "exact_match,none": 1.0,
            "exact_match_stderr,none": 0.0,
        }
        path = files.write(tmp_path / "in", {"t": metrics}, n_samples={"t": 50})
        found = imported(tmp_path / "run", path).tasks["t"].metrics
        assert found["acc,none"].low == 0.0
        assert found["perplexity,none"].low == 1.0
        assert found["exact_match,none"].low is None, "no spread is no proof that there is none"

    @pytest.mark.parametrize("given", ["N/A", None, float("nan"), "", [1.0]])
    def test_what_is_no_number_is_null_with_a_reason(self, tmp_path, given):
        path = files.write(tmp_path / "in", {"t": {"f1,none": given, "f1_stderr,none": "N/A"}})
        f1 = imported(tmp_path / "run", path).tasks["t"].metrics["f1,none"]
        assert f1.value is None
        assert f1.reason

    def test_of_an_old_file_n_follows_from_the_standard_error(self, tmp_path):
        p, stderr = 0.375, math.sqrt(0.375 * 0.625 / 1599)
        content = {
            "results": {"wsc": {"acc": p, "acc_stderr": stderr, "ppl": 9.0, "ppl_stderr": 1.0}},
            "versions": {"wsc": 0},
            "config": {"model_args": "pretrained=a/b,revision=step9", "num_fewshot": 5},
        }
        path = tmp_path / "old.json"
        path.write_text(json.dumps(content))
        results = imported(tmp_path / "run", path)
        task = results.tasks["wsc"]
        assert {name: e.n for name, e in task.metrics.items()} == {"acc": 1600, "ppl": 1600}
        assert (task.coverage.n_scored, task.num_fewshot, task.version) == (1600, 5, None)
        assert (results.model, results.settings["revision"]) == ("a/b", "step9")
        assert results.settings["step"] == 9
        assert results.times == {}

    def test_what_cannot_be_known_is_not_guessed(self, tmp_path):
        path = tmp_path / "old.json"
        content = {"results": {"t": {"word_perplexity": 9.5}}, "versions": {}}
        path.write_text(json.dumps(content))
        results = imported(tmp_path / "run", path)
        task = results.tasks["t"]
        assert (task.num_fewshot, task.version, task.coverage.by_status) == (None, None, {})
        assert task.source["n"].startswith("not known")
        assert results.model == "unknown"
        assert "not known" in raveval.report.to_markdown(results)

    def test_groups_are_of_as_many_examples_as_their_subtasks(self, tmp_path):
        results = {
            "mmlu": {"acc,none": 0.5, "acc_stderr,none": 0.1},
            "mmlu_a": files.proportion("acc", 0.5, 10),
            "mmlu_b": files.proportion("acc", 0.25, 20),
            "tag": {},
        }
        path = files.write(
            tmp_path / "in",
            results,
            n_samples={"mmlu_a": 10, "mmlu_b": 20},
            group_subtasks={"mmlu": ["mmlu_a", "mmlu_b"]},
        )
        found = imported(tmp_path / "run", path)
        assert list(found.tasks) == ["mmlu", "mmlu_a", "mmlu_b"], "a tag has no numbers"
        assert found.tasks["mmlu"].metrics["acc,none"].n == 30

    def test_are_marked_as_imported(self, tmp_path):
        path = files.write(tmp_path / "in", {"t": files.proportion("acc", 0.5, 10)})
        results = imported(tmp_path / "run", path)
        assert results.settings["imported"] == f"from lm-eval 0.4.13: {path}"
        manifest = RunDirectory(tmp_path / "run").read_manifest() or {}
        assert manifest["imported"]["file"] == str(path)
        assert len(manifest["imported"]["sha256"]) == 64
        assert results.times == {
            "started": "2026-03-01T12:00:00+00:00",
            "finished": "2026-03-01T12:01:02+00:00",
        }
        assert "imported: from lm-eval 0.4.13" in (tmp_path / "run" / "report.md").read_text()


class TestRecords:
    def test_of_multiple_choice_give_the_files_numbers_again(self, tmp_path):
        samples = choices()
        results = {"t": files.means(samples, "acc", "acc_norm")}
        path = files.write(tmp_path / "in", results, {"t": samples})
        task = imported(tmp_path / "run", path).tasks["t"]
        acc = task.metrics["acc,none"]
        assert acc.value is not None
        exact = intervals.proportion(round(acc.value * 60), 60)
        assert same(acc, exact), "the interval is exact, from the samples"
        assert task.metrics["accuracy_raw"] == exact
        assert task.notes == {}, "no sample's acc or acc_norm differs from the one by our rules"
        assert task.metrics["accuracy_per_token"].reason == "not measured"
        assert task.metrics["accuracy_unconditional"].reason == "not measured"
        assert task.protocol == "multiple_choice"
        first = next(row for row in records(tmp_path / "run", "t") if row["id"] == "0")
        assert first["logprob_nats"] == [float(r[0]) for r in samples[0]["filtered_resps"]]
        assert first["n_chars"] == [14, 3, 4, 5], "with the space before them"
        assert (first["gold"], first["n_tokens"]) == (0, None)

    def test_acc_norm_is_held_against_the_file(self, tmp_path):
        samples = choices()
        samples[3]["acc_norm"] = 1 - samples[3]["acc_norm"]
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")}, {"t": samples})
        notes = imported(tmp_path / "run", path).tasks["t"].notes
        assert notes == {"acc_norm_differs_from_the_file": 1}

    def test_a_tie_is_wrong_for_us_and_said(self, tmp_path):
        samples = choices(20)
        samples[0] = files.choice(0, [-1.0, -1.0, -2.0, -3.0], TEXTS, 0)
        assert samples[0]["acc"] == 1.0, "lm-eval takes the first"
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")}, {"t": samples})
        task = imported(tmp_path / "run", path).tasks["t"]
        acc, ours = task.metrics["acc,none"].value, task.metrics["accuracy_raw"].value
        assert acc is not None
        assert ours == pytest.approx(acc - 1 / 20)
        assert task.notes["acc_differs_from_the_file"] == 1
        assert task.notes["accuracy_raw_ties"] == 1

    def test_targets_may_be_texts_and_ids_are_the_rows_own(self, tmp_path):
        samples = choices(12)
        for number, each in enumerate(samples):
            each["target"] = TEXTS[number % 4]
            each["doc"] = {"id": f"Mercury_{number}"}
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")}, {"t": samples})
        imported(tmp_path / "run", path)
        found = {row["id"]: row["gold"] for row in records(tmp_path / "run", "t")}
        assert found == {f"Mercury_{number}": number % 4 for number in range(12)}

    def test_choices_that_are_digits_are_told_from_indices_by_acc(self, tmp_path):
        nats = [[-1.0, -2.0], [-1.0, -2.0]]
        samples = [files.choice(i, each, ("1", "0"), i) for i, each in enumerate(nats)]
        for gold, each in enumerate(samples):
            each["target"] = ("1", "0")[gold]  # the text, which reads like the other's index
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")}, {"t": samples})
        imported(tmp_path / "run", path)
        assert {r["id"]: r["gold"] for r in records(tmp_path / "run", "t")} == {"0": 0, "1": 1}

    def test_a_task_with_rules_of_its_own_stays_numbers(self, tmp_path):
        samples = choices(12)
        said: list[str] = []
        for each in samples:
            each["acc"] = 1.0
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")}, {"t": samples})
        task = imported(tmp_path / "run", path, said).tasks["t"]
        assert list(task.metrics) == ["acc,none"]
        assert "rules of its own" in task.source["records"]
        assert said
        assert (RunDirectory(tmp_path / "run").read_manifest() or {})["tasks"] == {}

    def test_of_mutual_information_hold_the_unconditional_part(self, tmp_path):
        samples = choices(10)
        for each in samples:
            again = {
                f"gen_args_{4 + j}": {"arg_0": "", "arg_1": f" {text}"}
                for j, text in enumerate(TEXTS)
            }
            each["arguments"] |= again
            each["filtered_resps"] += [["-1.5", "False"]] * 4
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")}, {"t": samples})
        metrics = imported(tmp_path / "run", path).tasks["t"].metrics
        assert metrics["accuracy_unconditional"].value == metrics["accuracy_raw"].value

    def test_of_whole_texts(self, tmp_path):
        samples = [
            files.document(i, -20.0 - i, f"text {i}", n_words=5 + i, n_bytes=30) for i in range(8)
        ]
        total = sum(float(s["filtered_resps"][0]) for s in samples)
        value = math.exp(-total / sum(s["word_perplexity"][1] for s in samples))
        results = {"t": {"word_perplexity,none": value, "word_perplexity_stderr,none": "N/A"}}
        path = files.write(tmp_path / "in", results, {"t": samples})
        metrics = imported(tmp_path / "run", path).tasks["t"].metrics
        assert metrics["word_perplexity"].value == pytest.approx(value, rel=1e-12)
        assert metrics["word_perplexity"].interval == "delta-t95"
        assert metrics["word_perplexity,none"].interval is None
        assert metrics["word_perplexity,none"].no_interval == "no standard error"
        assert metrics["char_perplexity"].reason == "not measured"

    def test_of_continuations(self, tmp_path):
        samples = [
            files.continuation(i, -1.0 - i / 7, f" word{i}", is_greedy=i % 3 == 0) for i in range(9)
        ]
        value = math.exp(-sum(s["perplexity"] for s in samples) / 9)
        results = {"t": {**files.means(samples, "acc"), "perplexity,none": value}}
        path = files.write(tmp_path / "in", results, {"t": samples})
        metrics = imported(tmp_path / "run", path).tasks["t"].metrics
        assert same(metrics["greedy_accuracy"], metrics["acc,none"])
        assert metrics["word_perplexity"].value == pytest.approx(value, rel=1e-12)

    def test_of_answers_are_ours_only_where_the_rules_agree(self, tmp_path):
        ours = [files.answer(i, "Lund", "The Lund!", score=1.0) for i in range(3)]
        ours += [files.answer(3, "Oslo", "['Rome', 'Oslo']", score=1.0)]
        theirs = [files.answer(i, "Lund", "The Lund!", score=0.0) for i in range(4)]
        results = {"ours": files.means(ours, "exact_match"), "theirs": {"exact_match,none": 0.0}}
        path = files.write(tmp_path / "in", results, {"ours": ours, "theirs": theirs})
        tasks = imported(tmp_path / "run", path).tasks
        assert tasks["ours"].metrics["exact_match"].value == 1.0
        assert list(tasks["theirs"].metrics) == ["exact_match,none"]
        assert "the file's own rule" in tasks["theirs"].source["records"]
        by_id = {row["id"]: row for row in records(tmp_path / "run", "ours")}
        assert by_id["3"]["references"] == ["Rome", "Oslo"]

    def test_of_several_filters_are_those_of_the_first(self, tmp_path):
        strict = [files.answer(i, "7", "7", score=1.0, filter="strict") for i in range(4)]
        loose = [files.answer(i, "8", "7", score=0.0, filter="loose") for i in range(4)]
        results = {"t": {"exact_match,strict": 1.0, "exact_match,loose": 0.0}}
        path = files.write(tmp_path / "in", results, {"t": strict + loose})
        task = imported(tmp_path / "run", path).tasks["t"]
        assert task.metrics["exact_match,strict"].n == 4
        assert task.metrics["exact_match,strict"].interval == "wilson95"
        assert task.metrics["exact_match,loose"].value == 0.0
        assert [row["prediction"] for row in records(tmp_path / "run", "t")] == ["7"] * 4

    def test_of_early_files_are_a_list_of_lists_and_numbers(self, tmp_path):
        samples = choices(8)
        for each in samples:
            each["arguments"] = [list(a.values()) for a in each["arguments"].values()]
            each["filtered_resps"] = [[float(n), g == "True"] for n, g in each["filtered_resps"]]
            for key in ("doc_hash", "prompt_hash", "target_hash"):
                del each[key]
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")}, n_samples={})
        (path.parent / "pretrained__m_t.jsonl").write_text(json.dumps(samples, indent=2))
        task = imported(tmp_path / "run", path).tasks["t"]
        assert task.metrics["accuracy_raw"].value == task.metrics["acc,none"].value

    def test_requests_that_are_no_kind_of_ours(self, tmp_path):
        mixed = files.answer(0, "a", "a", score=1.0)
        mixed["arguments"]["gen_args_1"] = {"arg_0": "Q", "arg_1": " unanswerable"}
        said: list[str] = []
        path = files.write(tmp_path / "in", {"t": {"exact_match,none": 1.0}}, {"t": [mixed]})
        assert (
            "of several kinds"
            in imported(tmp_path / "run", path, said).tasks["t"].source["records"]
        )

    def test_no_name_in_a_file_leads_out_of_its_folder(self, tmp_path):
        samples, said = choices(8), list[str]()
        path = files.write(tmp_path / "in", {"..": files.means(samples, "acc")}, {"..": samples})
        task = imported(tmp_path / "run", path, said).tasks[".."]
        assert list(task.metrics) == ["acc,none"]
        assert "its name is none for a file" in said[0]
        assert {each.name for each in (tmp_path / "run").glob("[!.]*")} == {
            *("run.json", "results.json", "report.md")
        }


class TestFiles:
    def test_a_folder_of_several_gives_a_run_each(self, tmp_path):
        for model, p in (("org__a", 0.25), ("org__b", 0.75)):
            results = {"t": files.proportion("acc", p, 9)}
            files.write(tmp_path / "in" / model, results, model_name=model)
        (tmp_path / "in" / "other.json").write_text('{"results": "no"}')
        (tmp_path / "in" / "broken.json").write_text("{")
        runs = import_runs([tmp_path / "in"], tmp_path / "runs")
        assert [Path(run.directory).name for run in runs] == ["org__a", "org__b"]
        values = [run.results.tasks["t"].metrics["acc,none"].value for run in runs]
        assert values == [0.25, 0.75]
        (tmp_path / "in" / "results_cut.json").write_text("{")
        with pytest.raises(DataError, match=r"results_cut\.json: cannot be read"):
            import_runs([tmp_path / "in"], tmp_path / "more")

    def test_checkpoints_of_a_training_run_are_a_sweep(self, tmp_path):
        for step, p in ((1000, 0.25), (2000, 0.5), (10_000, 0.75)):
            config = {"model": "hf", "model_args": f"pretrained=org/model,revision=step{step}"}
            results = {"t": files.proportion("acc", p, 101)}
            files.write(tmp_path / "in" / f"step{step}", results, config=config)
        imported = import_runs([tmp_path / "in"], tmp_path / "runs")
        assert report_imported(imported) == [tmp_path / "runs"]
        found = load_sweep_results(tmp_path / "runs")
        assert [(each.name, each.step) for each in found.checkpoints] == [
            ("step1000", 1000),
            ("step2000", 2000),
            ("step10000", 10_000),
        ]
        assert [d.run for d in found.from_previous] == ["step2000", "step10000"]
        first = found.from_previous[0]
        assert (first.metric, first.difference, first.test) == ("acc", 0.25, "unpaired-z")
        assert dict(found.best) == {"t": ("step10000",)}
        page = (tmp_path / "runs" / "report.html").read_text()
        assert "Curves over 3 steps. acc,none: from 25.0 % to 75.0 %" in page
        assert "training steps 1000 to 10000" in page

    def test_series_that_cannot_be_compared_are_kept_apart(self, tmp_path):
        for model in ("a", "b"):
            for step in (10, 20):
                for shots in (0, 5):
                    arguments = f"pretrained=ckpts/{model}/step_{step}"
                    files.write(
                        tmp_path / "in" / f"{model}{step}_{shots}",
                        {"t": files.proportion("acc", 0.5, 101)},
                        num_fewshot=shots,
                        config={"model": "hf", "model_args": arguments},
                        model_name=f"ckpts/{model}/step_{step}",
                    )
        runs = import_runs([tmp_path / "in"], tmp_path / "runs")
        folders = {Path(run.directory).parent.name for run in runs}
        assert folders == {
            f"ckpts__{model}__step_N__{shots}-shot" for model in ("a", "b") for shots in (0, 5)
        }
        names = [
            Path(run.directory).name
            for run in runs
            if Path(run.directory).parent.name in min(folders)
        ]
        assert names == ["a10_0", "a20_0"]
        assert len(report_imported(runs)) == 4

    def test_samples_of_another_date_are_not_taken(self, tmp_path):
        samples = choices(8)
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")})
        strange = path.parent / "samples_t_2020-01-01T00-00-00.000000.jsonl"
        files.write_samples(strange, samples)
        assert "accuracy_raw" not in imported(tmp_path / "run", path).tasks["t"].metrics
        named = imported(tmp_path / "named", [path, strange]).tasks["t"]
        assert "accuracy_raw" in named.metrics, "unless they are named"

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda f: f / "nothing", "no such file"),
            (lambda f: f, "no results of lm-eval"),
            (lambda f: _text(f / "x.json", "{"), "cannot be read as JSON"),
            (lambda f: _text(f / "x.json", '{"tasks": {}}'), "found tasks"),
            (lambda f: _text(f / "x.json", '{"results": {"t": 1}, "config": {}}'), "not a results"),
            (lambda f: _text(f / "x.jsonl", "{}"), "no results of lm-eval"),
        ],
    )
    def test_that_are_none_are_refused(self, tmp_path, make, message):
        with pytest.raises(DataError, match=message):
            import_runs([make(tmp_path)], tmp_path / "run")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", r"\.jsonl:2: not valid JSON"),
            ("[]", r"\.jsonl:2: doc_id: missing"),
            ('{"doc_id": 1, "resps": [], "arguments": 3}', r"\.jsonl:2: arguments: expected lists"),
        ],
    )
    def test_a_broken_sample_is_named(self, tmp_path, line, message):
        samples = choices(1)
        path = files.write(tmp_path / "in", {"t": files.means(samples * 2, "acc")}, {"t": samples})
        place = next(path.parent.glob("samples_*"))
        place.write_text(f"{place.read_text()}{line}\n")
        with pytest.raises(DataError, match=message):
            import_runs([path], tmp_path / "run")

    def test_samples_belong_to_one_results_file(self, tmp_path):
        results = {"t": files.proportion("acc", 0.5, 9)}
        paths = [files.write(tmp_path / name, results) for name in "ab"]
        stray = files.write_samples(tmp_path / "samples_t_x.jsonl", choices(2))
        with pytest.raises(DataError, match="which of the 2 results files"):
            import_runs([*paths, stray], tmp_path / "run")
        other = files.write_samples(tmp_path / "samples_u_x.jsonl", choices(2))
        with pytest.raises(DataError, match="none of the tasks"):
            import_runs([paths[0], other], tmp_path / "run")


def _text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


class TestDirectory:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        samples = choices(8)
        path = files.write(tmp_path / "in", {"t": files.means(samples, "acc")}, {"t": samples})
        imported(tmp_path / "run", path)
        return tmp_path / "run"

    def test_may_be_written_again_from_the_same_file_only(self, tmp_path, run):
        before = (run / "results.json").read_bytes()
        imported(run, tmp_path / "in")
        assert (run / "results.json").read_bytes() == before
        other = files.write(tmp_path / "other", {"t": files.proportion("acc", 0.5, 9)})
        with pytest.raises(MismatchError, match="already holds an import"):
            import_runs([other], run)
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign" / "thesis.tex").touch()
        with pytest.raises(MismatchError, match="no run of raveval"):
            import_runs([other], tmp_path / "foreign")

    def test_has_a_status_but_no_replies_to_score(self, run):
        found = status(run)
        assert found.complete
        assert found.tasks["t"].by_status == {"ok": 8}
        with pytest.raises(DataError, match="was imported"):
            runner.rescore(run)

    def test_is_no_place_for_a_run(self, run):
        config = load_config(
            {
                "evaluate": {
                    "model": {"id": "m"},
                    "engine": "scripted",
                    "tasks": ["demo_choice"],
                },
                "run": {"output": str(run)},
            }
        )
        with pytest.raises(MismatchError, match="imported"):
            runner.plan(config)


def test_hashes_are_lm_evals() -> None:
    """Values that lm-eval 0.4.13 itself logged for this row."""
    doc = {"question": "How 0?", "answer": ["x"]}
    assert conventions.doc_hash(doc).startswith("54c44b068ae83cb8627aca13dcfa19598f48978ab5f73160")
    assert conventions.text_hash("Q: How 0?\nA:").startswith("7d01b37e2de0798f33125caf200998dc9213")
    assert conventions.text_hash("['x']").startswith("2fe4f815b61d5b4827fbafd85ee1c329e1108441064a")
