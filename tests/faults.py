"""Faults that users met in other tools for evaluation, and what keeps them out of this one.

Each entry names where the fault was reported, its symptom, and the tests that would fail if it were
here, relative to this folder; or it says why it cannot happen. What is left open is said as well.
Numbers are names: they stay, and some are not in use. `unit/test_faults.py` checks the table.
"""

from dataclasses import dataclass

GROUPS = {
    "A": "hangs and failures of several replicas",
    "B": "memory and speed of log-probabilities",
    "C": "length of prompts",
    "D": "BOS and special tokens",
    "E": "the boundary between context and continuation",
    "F": "perplexity",
    "G": "normalisation and aggregation",
    "H": "judges",
    "I": "statistics",
    "J": "resuming, caches, lost and doubled data",
    "K": "results that depend on the batch or the engine",
    "L": "few-shot examples",
    "M": "progress and cost",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        group: a key of `GROUPS`.
        number: its name, with the group.
        upstream: where it was reported, repository and number.
        symptom: what users saw.
        tests: what fails if the fault is here.
        cannot_happen: why it cannot, where no test shows it.
        left_open: what of it neither tests nor reason cover.
    """

    group: str
    number: int
    upstream: str
    symptom: str
    tests: tuple[str, ...] = ()
    cannot_happen: str = ""
    left_open: str = ""


FAULTS = (
    Fault(
        *("A", 1, "lm-eval#2904, vllm#16588"),
        "with two copies of the model a call to an engine never returns",
        (
            "end_to_end/test_run.py::TestFaults::test_an_engine_that_hangs",
            "end_to_end/test_run.py::TestFaults::test_a_queue_is_no_hang",
            "unit/test_watch.py::test_the_silence_that_is_allowed_grows_with_the_output_asked_for",
        ),
    ),
    Fault(
        *("A", 2, "lm-eval#1734"),
        "several replicas of several GPUs each wait for GPUs that nobody has",
        (
            "unit/test_pipeline.py::test_a_model_gets_the_devices_it_is_split_over_and_one_cpu",
            "end_to_end/test_run.py::TestFaults::test_more_replicas_than_the_cluster_holds",
        ),
    ),
    Fault(
        *("A", 3, "lm-eval#2379, lighteval#841, open-r1#245"),
        "a cluster without GPUs leaves a run that wants some pending",
        (
            "end_to_end/test_run.py::TestFaults::test_more_replicas_than_the_cluster_holds",
            "unit/test_attendance.py::test_waiting_is_said_until_a_replica_is_there",
        ),
        left_open="A GPU that Ray counts and CUDA_VISIBLE_DEVICES hides is told by the engine.",
    ),
    Fault(
        *("A", 4, "lighteval#670"),
        "an engine inside an actor asks Ray for GPUs once more, and waits",
        cannot_happen=(
            "vLLM turns to Ray only inside a placement group or where it is told to; replicas are "
            "plain actors, and the engine has no such option."
        ),
        left_open="A model split over GPUs has not been run in a replica.",
    ),
    Fault(
        *("A", 5, "vllm#27269, vllm#27282"),
        "data_parallel_size reaches the engine, which hangs or refuses it",
        (
            "unit/test_cli.py::TestFlags::test_are_refused_by_name",
            "unit/test_config.py::test_options_of_an_engine",
        ),
    ),
    Fault(
        *("A", 6, "vllm#50835, vllm#16259"),
        "a worker dies and the others wait for it, or run on",
        (
            "end_to_end/test_run.py::TestSameAnswer::test_a_replica_that_dies_costs_nothing",
            "end_to_end/test_vllm_engine.py"
            "::test_the_engine_in_its_own_process_gives_the_same_and_dies_loudly",
            "unit/test_vllm_backends.py::test_a_broken_step_fails_all_that_wait_and_all_that_come",
        ),
        left_open="These end a process, not a whole node.",
    ),
    Fault(
        *("A", 7, "ray#59986"),
        "a model that does not fit when it is loaded hangs the job",
        (
            "unit/test_worker.py::test_a_start_that_breaks_is_told_in_the_engines_words",
            "end_to_end/test_run.py::TestFaults::test_a_model_that_cannot_start",
            "end_to_end/test_run.py::TestFaults::test_one_of_two_replicas_that_cannot_start",
            "end_to_end/test_run.py::TestFaults::test_a_replica_whose_process_dies_whenever_it_loads",
            "end_to_end/test_vllm_engine.py::test_a_start_that_fails_says_why",
            "end_to_end/test_vllm_engine.py::test_an_engine_that_dies_at_its_start_is_quoted",
            "unit/test_vllm_memory.py::test_want_of_memory_is_known_by_what_was_raised_and_where",
        ),
        left_open="The memory of a real GPU has not been exhausted.",
    ),
    Fault(
        *("A", 8, "ray#59522"),
        "one example kills its engine, again and again",
        (
            "end_to_end/test_run.py::TestFaults::test_an_example_that_kills_its_engine",
            "end_to_end/test_open_generation.py::TestFaults::test_a_judge_that_dies_of_one_answer",
            "unit/test_worker.py::test_replicas_that_die_and_die_before_they_answer_end_the_run",
        ),
    ),
    Fault(
        *("A", 9, "lm-eval#1404"),
        "ranks that are done time out while the last one is at work",
        cannot_happen=(
            "Replicas share a run directory and nothing else: there is no process group, so none "
            "waits for another."
        ),
    ),
    Fault(
        *("A", 10, "lm-eval#1485"),
        "the bootstrap forks a process that has threads, and never returns",
        ("unit/test_bootstrap.py::test_no_other_process_is_begun",),
    ),
    Fault(
        *("A", 11, "lm-eval#2532"),
        "after the last answer one core works for hours on what was collected",
        (
            "unit/test_evaluate.py::test_what_is_stored_of_a_text_does_not_grow_with_it",
            "unit/test_clusters.py::test_merging_many_shards_costs_little_more_than_their_rows",
        ),
        left_open="No test runs a million examples.",
    ),
    Fault(
        *("A", 13, "opencompass#974, opencompass#1258"),
        "a task has failed, and the terminal does not say why",
        (
            "unit/test_report.py"
            "::TestTable::test_says_what_the_engine_said_of_the_first_that_broke",
            "end_to_end/test_run.py::TestFaults::test_a_directory_that_cannot_be_written_says_so",
            "unit/test_worker.py::test_a_start_that_breaks_is_told_in_the_engines_words",
        ),
    ),
    Fault(
        *("B", 14, "lm-eval#2490, vllm#10325"),
        "log-probabilities of a long prompt over the vocabulary exhaust the GPU's memory",
        ("unit/test_vllm_hook.py::test_few_rows_of_logits_are_held_at_a_time",),
        left_open=(
            "The memory itself has not been measured on a GPU; without the hook vLLM's own "
            "log-probabilities are bounded by the tokens of a step alone."
        ),
    ),
    Fault(
        *("B", 15, "lm-eval#2698, lm-eval#2800, lm-eval#1538"),
        "scoring choices in vLLM is slow, or runs out of memory",
        (
            "unit/test_vllm_hook.py::test_few_rows_of_logits_are_held_at_a_time",
            "end_to_end/test_vllm_engine.py::test_continuations_share_their_context",
        ),
    ),
    Fault(
        *("B", 16, "vllm#5234, vllm#5907, vllm#1532"),
        "each choice costs its whole context once more",
        (
            "end_to_end/test_vllm_engine.py::test_continuations_share_their_context",
            "end_to_end/test_vllm_engine.py::test_one_forward_pass_scores_all_single_token_choices",
            "end_to_end/test_vllm_engine.py::test_choices_without_their_question_are_scored_once",
        ),
    ),
    Fault(
        *("B", 17, "vllm#42019, vllm#42245, vllm#8268, vllm#3251, vllm#3914, vllm#13409"),
        "with a prefix cache, log-probabilities are wrong or depend on the order of requests",
        (
            "end_to_end/test_vllm_engine.py::test_order_company_and_cache_change_nothing",
            "end_to_end/test_vllm_engine.py"
            "::test_each_token_is_right_behind_a_context_of_any_length",
            "unit/test_vllm_hook.py::test_rows_that_a_cache_holds_are_missing_from_the_count",
        ),
    ),
    Fault(
        *("B", 18, "dynamo#14323"),
        "parameters changed after they were made leave the prefix cache on",
        (
            "end_to_end/test_vllm_engine.py"
            "::test_each_token_is_right_behind_a_context_of_any_length",
            "end_to_end/test_vllm_engine.py::test_continuations_share_their_context",
        ),
    ),
    Fault(
        *("B", 19, "lm-eval#2964"),
        "looking up what is done already takes minutes",
        (
            "unit/test_store.py::test_what_is_done_is_known_without_reading_a_row",
            "end_to_end/test_run.py::TestResume::test_a_finished_run_loads_nothing_and_writes_nothing",
        ),
        left_open=(
            "A run that goes on reads and renders its examples again, about 0.1 ms each: minutes "
            "for a million."
        ),
    ),
    Fault(
        *("B", 20, "lighteval#409"),
        "standard errors of means take a bootstrap of minutes",
        (
            "unit/test_bootstrap.py::test_the_error_of_a_mean_needs_no_replicates",
            "unit/test_agreement.py::test_many_kinds_of_rows_take_no_time_to_resample",
        ),
    ),
    Fault(
        *("C", 21, "lm-eval#3115, lm-eval#1426"),
        "a long prompt loses its instruction or half a shot, and nobody is told",
        (
            "unit/test_encoding.py::test_truncation_cuts_the_left_of_each_context_but_bos",
            "unit/test_evaluate.py::test_a_shortened_prompt_is_scored_and_says_by_how_much",
            "end_to_end/test_run.py::TestFaults::test_an_overlong_prompt",
        ),
        left_open="Shots cannot be dropped one by one: a prompt is refused, counted or cut.",
    ),
    Fault(
        *("C", 22, "lm-eval#2300"),
        "cutting takes the BOS first, and the log shows the prompt before the cut",
        (
            "unit/test_encoding.py::test_truncated_prompt_keeps_bos_and_its_end",
            "end_to_end/test_http_engine.py"
            "::test_what_does_not_fit_is_overlong_with_and_without_a_tokenizer",
        ),
        left_open="Records say how many tokens were cut; the stored prompt is the whole one.",
    ),
    Fault(
        *("C", 23, "lm-eval#2880, lm-eval#3134, vllm#15971"),
        "a window as long as the context leaves no room for the token that vLLM must make",
        (
            "unit/test_encoding.py::test_document_of_about_one_window",
            "end_to_end/test_vllm_engine.py::test_documents_equal_the_direct_forward",
        ),
    ),
    Fault(
        *("C", 24, "lm-eval#2253, lm-eval#3499"),
        "one token too many, or a document of a million, ends in an assertion",
        (
            "unit/test_encoding.py::test_scored_sequence_may_hold_one_token_less_than_the_model",
            "unit/test_encoding.py::test_five_megabytes_take_linear_time",
        ),
    ),
    Fault(
        *("C", 25, "evalchemy#152, open-rs#13"),
        "an output as long as the context cuts the prompt to nothing, and the engine dies",
        (
            "unit/test_encoding.py"
            "::test_output_that_leaves_no_room_is_overlong_even_if_truncation_is_allowed",
            "end_to_end/test_vllm_engine.py::test_failures_stand_beside_answers",
        ),
    ),
    Fault(
        *("C", 26, "ray#59194, ray#57140, vllm#16732, CodeEditorBench#19"),
        "one prompt that is too long costs the whole batch",
        (
            "end_to_end/test_vllm_engine.py::test_failures_stand_beside_answers",
            "end_to_end/test_run.py::TestFaults::test_an_overlong_prompt",
            "unit/test_lengths.py::test_the_one_long_prompt_among_many_is_found",
        ),
    ),
    Fault(
        *("C", 27, "prometheus: run_absolute_scoring.py"),
        "a judge's prompts that are too long are skipped, and not counted",
        (
            "unit/test_absolute_grading.py::test_failures_of_all_samples_are_the_examples",
            "unit/test_cli.py::TestRun::test_results_go_to_stdout_and_all_else_to_stderr",
            "end_to_end/test_open_generation.py"
            "::TestFaults::test_a_judge_without_room_for_an_answer",
        ),
    ),
    Fault(
        *("C", 28, "lm-eval#3421, lm-eval#2300, opencompass#1373"),
        "there is no way to leave out what is too long",
        ("end_to_end/test_run.py::TestFaults::test_an_overlong_prompt",),
        left_open="A prompt can lose its beginning, not its middle.",
    ),
    Fault(
        *("D", 30, "ukrainian-llm-leaderboard#5"),
        "a chat template and the tokenizer both add a BOS",
        ("unit/test_encoding.py::test_template_that_spells_its_bos_gets_no_second",),
    ),
    Fault(
        *("D", 31, "lm-eval#3295, lm-eval#2676"),
        "a model that needs its BOS does not get one, and guesses",
        (
            "unit/test_encoding.py::test_plain_prompt_has_one_bos_where_the_tokenizer_adds_one",
            "unit/test_cli.py::TestFlags::test_are_refused_by_name",
        ),
        left_open="A model trained with a BOS that its own tokenizer leaves out is not warned of.",
    ),
    Fault(
        *("D", 32, "open-r1#462, vllm#27486, vllm#27515, vllm#55288, OpenRLHF#393"),
        "a rendered text is encoded once more by the engine, which adds its own BOS",
        (
            "unit/test_http.py::TestTokens::test_ids_are_sent_for_texts_and_turns",
            "end_to_end/test_http_engine.py"
            "::test_the_server_reads_the_tokens_that_the_encoder_makes",
            "end_to_end/test_vllm_engine.py::test_greedy_text_is_that_of_the_model",
        ),
    ),
    Fault(
        *("E", 33, "lm-eval#3336"),
        "a continuation that melts into its context has no token, and an assertion fails",
        (
            "unit/test_encoding.py::test_continuation_that_melts_into_the_context_is_invalid",
            "unit/test_encoding.py::test_empty_continuation_is_invalid_by_index",
        ),
    ),
    Fault(
        *("E", 34, "lm-eval#1322, lm-eval#4055, lm-eval#1053, lm-eval#1297"),
        "a space at the end of the context becomes a token of its own",
        (
            "unit/test_encoding.py::test_no_lone_space_stands_before_a_continuation",
            "unit/test_encoding.py::test_boundary_space_belongs_to_the_continuation",
        ),
    ),
    Fault(
        *("E", 35, "lm-eval#644"),
        "all choices begin with the same piece of white space, and accuracy falls by 18 points",
        ("unit/test_encoding.py::test_no_lone_space_stands_before_a_continuation",),
    ),
    Fault(
        *("E", 36, "lighteval#354, catwalk, nousnet#153"),
        "a space is forced before continuations that have none, as in Chinese",
        (
            "unit/test_encoding.py::test_no_space_between_words_of_other_scripts",
            "unit/test_tasks.py"
            "::test_a_boundary_may_be_nothing_and_a_space_moves_to_the_continuation",
        ),
    ),
    Fault(
        *("F", 37, "lm-eval#2301, lm-eval#806, lm-eval#833"),
        "a perplexity per word is held against papers' perplexity per token",
        ("unit/test_perplexity.py::test_each_unit_has_its_own_perplexity",),
        left_open="Their denominators are in the records, not beside the numbers.",
    ),
    Fault(
        *("F", 38, "lm-eval#2467"),
        "perplexities of different windows are compared, and neither says which it had",
        (
            "unit/test_comparison.py::TestPerplexity::test_other_windows_are_said",
            "unit/test_evaluate.py"
            "::test_a_document_says_in_which_windows_and_behind_what_it_was_scored",
        ),
    ),
    Fault(
        *("F", 39, "lm-eval"),
        "each backend has windows of another length, and another perplexity",
        (
            "unit/test_encoding.py::test_windows_score_each_token_exactly_once",
            "end_to_end/test_vllm_engine.py::test_documents_equal_the_direct_forward",
            "end_to_end/test_transformers_engine.py"
            "::test_document_equals_the_direct_forward_token_by_token",
        ),
    ),
    Fault(
        *("F", 40, "lighteval#57, lingua#46, olmo-eval"),
        "a document longer than the context is cut, divided by its full length, or worth 0",
        (
            "unit/test_encoding.py::test_windows_score_each_token_exactly_once",
            "unit/test_encoding.py::test_document_without_tokens_is_invalid",
            "unit/test_perplexity.py::test_nothing_to_divide_by",
        ),
    ),
    Fault(
        *("F", 41, "evaluate#688"),
        "perplexities of documents are averaged",
        ("unit/test_perplexity.py::test_each_unit_has_its_own_perplexity",),
    ),
    Fault(
        *("F", 43, "lm-eval#1471"),
        "a perplexity is odd for want of a BOS, and does not say so",
        (
            "unit/test_encoding.py::test_what_has_nothing_before_it_follows_bos_or_eos",
            "unit/test_evaluate.py"
            "::test_a_document_says_in_which_windows_and_behind_what_it_was_scored",
        ),
        left_open="A document is never scored without a token before its first.",
    ),
    Fault(
        *("G", 44, "opencompass"),
        "log-likelihoods of choices are divided by the length of context and choice together",
        (
            "unit/test_encoding.py::test_choice_scores_are_the_spans",
            "unit/test_accuracy.py::test_each_scoring_may_prefer_another_choice",
        ),
    ),
    Fault(
        *("G", 45, "lm-eval#1521, lm-eval#922, lm-eval#1390, lm-eval#3882"),
        "nobody can tell whether the mean of groups weighs subjects or examples",
        (
            "unit/test_averages.py::test_each_group_counts_once_in_a_macro_average",
            "unit/test_measurement.py::test_groups_and_their_mean",
            "unit/test_report.py::TestTable::test_the_mean_of_groups_is_named",
        ),
    ),
    Fault(
        *("G", 46, "lm-eval#411, lm-eval#3251"),
        "an example is right by one normalisation and wrong by another, unexplained",
        ("unit/test_accuracy.py::test_each_scoring_may_prefer_another_choice",),
    ),
    Fault(
        *("G", 47, "lm-eval#3843, lm-eval#3212, inspect#291, transformers#7313, evaluate#409"),
        "SQuAD: right silence is wrong, no normalisation, EM for F1, percent for shares",
        (
            "unit/test_squad.py::test_known_edges",
            "unit/test_squad.py::test_v2_splits_by_whether_there_is_an_answer",
            "unit/test_evaluate.py::test_no_answer_is_an_answer_where_the_task_says_so",
            "golden/test_squad.py::test_v1",
            "golden/test_squad.py::test_v2",
        ),
    ),
    Fault(
        *("G", 48, "Stability-AI/lm-evaluation-harness#4"),
        "English normalisation is applied to Japanese",
        ("golden/test_squad.py::test_other_languages_keep_the_english_rule",),
        left_open=(
            "As in the official script the English rule holds for every language; where no spaces "
            "part the words, F1 is little more than exact match. Another rule is another metric."
        ),
    ),
    Fault(
        *("H", 49, "prometheus-eval#58, prometheus-eval#59"),
        "a score that the judge quotes from its prompt is taken for its verdict",
        (
            "unit/test_judging.py::test_refused_forms",
            "unit/test_judging.py::test_accepted_outputs",
            "unit/test_grading_tasks.py"
            "::TestInjection::test_a_judge_that_repeats_the_prompt_gives_no_verdict",
        ),
    ),
    Fault(
        *("H", 50, "prometheus-eval"),
        "a parser refuses a verdict with a full stop or in bold, and takes 10 for 1",
        (
            "unit/test_judging.py::test_accepted_forms",
            "unit/test_judging.py::test_refused_forms",
        ),
    ),
    Fault(
        *("H", 51, "prometheus-eval#11"),
        "an output that was cut before its verdict is told as one that cannot be parsed",
        (
            "unit/test_judging.py::test_a_cut_output_has_no_verdict",
            "unit/test_absolute_grading.py"
            "::test_reasons_are_said_and_counted_where_no_sample_can_be_read",
        ),
    ),
    Fault(
        *("H", 53, "distilabel#865, instructlab/eval#51"),
        "a judge's chat template refuses the system turn",
        (
            "unit/test_encoding.py"
            "::test_system_text_that_a_template_would_lose_opens_the_user_turn",
            "unit/test_http.py::TestSystemTurns::test_a_template_that_refuses_it",
            "unit/test_grading_tasks.py::test_a_plan_says_what_becomes_of_the_system_turn",
        ),
    ),
    Fault(
        *("H", 54, "opencompass#1933, opencompass#1661, opencompass#2598, taosmd#176"),
        "the first match is the verdict, though the graded answer or another word holds it",
        (
            "unit/test_open_generation.py"
            "::TestInjection::test_an_answer_reaches_the_judge_as_it_stands_and_is_no_verdict",
            "unit/test_grading_tasks.py"
            "::TestInjection"
            "::test_no_part_of_a_prompt_that_begins_or_ends_with_it_is_a_verdict",
            "unit/test_judging.py::test_refused_choices",
        ),
    ),
    Fault(
        *("H", 55, "evalscope#1575, NVIDIA-NeMo/Evaluator#1094, ragas#2022, lighteval#1296"),
        "a judge that fails counts as 0, as NaN, or as whatever its error message says",
        (
            "unit/test_absolute_grading.py::test_counts_are_over_all_examples_also_missing_ones",
            "unit/test_http.py::TestAskingAgain::test_a_fault_that_stays",
            "end_to_end/test_open_generation.py::TestFaults::test_of_the_judge_keep_the_answers",
            "end_to_end/test_judges.py::TestARealJudge::test_the_report_shows_all_of_it",
        ),
    ),
    Fault(
        *("H", 56, "prometheus"),
        "ties are drawn again without end, count as wrong, or are broken by a coin without a seed",
        (
            "unit/test_ranking.py::test_the_budget_of_rounds_ends_in_unresolved",
            "unit/test_grading_tasks.py"
            "::TestRanking::test_a_judge_that_gives_all_a_three_resolves_nothing",
        ),
    ),
    Fault(
        *("H", 57, "alpaca_eval#382, ClawBench#242, weitzer-org#68"),
        "verdicts differ from run to run, and nothing says how far they agree",
        (
            "end_to_end/test_judges.py"
            "::TestJudgesOfKnownOdds::test_no_number_depends_on_sharding_replicas_or_order",
            "end_to_end/test_judges.py::TestARealJudge::test_the_same_questions_get_the_same_bits",
            "unit/test_agreement.py::test_kappa_equals_statsmodels",
            "unit/test_win_rate.py::TestNumbers::test_consistency_is_that_of_preference",
        ),
        left_open="A judge on a server is as reproducible as its server.",
    ),
    Fault(
        *("I", 58, "transformers#11555, helm#1765, inspect"),
        "a correlation with a constant is NaN, which is no JSON, or becomes 0",
        (
            "unit/test_correlation.py::test_constant",
            "unit/test_report.py::TestJson::test_refuses_to_write_what_is_no_number",
            "laws/test_metrics.py::test_estimates_are_strict_and_consistent",
        ),
    ),
    Fault(
        *("I", 60, "lm-eval#3831, lm-eval#3868"),
        "two models on the same examples are compared as if they had others",
        (
            "unit/test_paired.py::TestMcNemar::test_shows_what_an_unpaired_test_does_not",
            "unit/test_comparison.py::TestAccuracy::test_every_number_by_hand",
        ),
    ),
    Fault(
        *("I", 61, "lm-eval#2089"),
        "an interval over examples is read as one over seeds",
        ("unit/test_report.py::TestMarkdown::test_says_what_intervals_are_over",),
    ),
    Fault(
        *("J", 62, "lm-eval#4063, lm-eval#2715"),
        "answers of one model are taken for another's",
        (
            "end_to_end/test_run.py::TestOtherRun::test_is_refused_by_name",
            "unit/test_plan.py::test_a_checkpoint_saved_over_another_is_another_model",
        ),
    ),
    Fault(
        *("J", 63, "lm-eval#2140, lm-eval#2533, lm-eval#2548"),
        "a finished run crashes when it is resumed, or one of other ranks starts anew",
        (
            "end_to_end/test_run.py::TestResume::test_a_finished_run_loads_nothing_and_writes_nothing",
            "end_to_end/test_run.py::TestResume::test_after_the_driver_is_killed",
        ),
    ),
    Fault(
        *("J", 64, "opencompass#1987, opencompass#180, opencompass#63"),
        "shards of another number of workers or of another limit are mixed",
        (
            "end_to_end/test_run.py::TestResume::test_another_shard_size_keeps_what_is_there",
            "end_to_end/test_run.py::TestResume::test_examples_of_another_plan_are_written_anew",
            "end_to_end/test_run.py::TestOtherRun::test_is_refused_by_name",
        ),
    ),
    Fault(
        *("J", 67, "lmms-eval#852, lighteval#161, lighteval#417, lighteval#880"),
        "nothing is saved until the last task has ended",
        (
            "end_to_end/test_run.py::TestResume::test_after_the_driver_is_killed",
            "unit/test_cli.py::TestRun::test_an_interrupted_run_says_how_to_go_on",
        ),
        left_open="The numbers of a task that is done are reported at the end of the run.",
    ),
    Fault(
        *("J", 69, "evalscope#767, evalscope#563"),
        "another metric or judge has the model answer everything again",
        (
            "end_to_end/test_run.py::TestResume::test_a_new_metric_needs_no_model",
            "end_to_end/test_open_generation.py::TestAnotherJudge::test_takes_over_the_answers",
        ),
    ),
    Fault(
        *("J", 71, "evalchemy"),
        "numbers rest on the shards that happen to be there",
        (
            "unit/test_reduce.py::test_a_run_without_one_of_its_shards_has_no_numbers",
            "unit/test_reduce.py::test_a_lost_doubled_or_foreign_row_is_seen",
            "end_to_end/test_run.py::TestResume::test_a_torn_or_rotten_file_is_made_again",
        ),
    ),
    Fault(
        *("K", 73, "lm-eval#704, lm-eval#1645, lm-eval#879, lm-eval#3357, lm-eval#1751"),
        "batch size or the number of GPUs moves the numbers",
        (
            "end_to_end/test_vllm_engine.py::test_order_company_and_cache_change_nothing",
            "end_to_end/test_transformers_engine.py::test_company_in_the_batch_changes_nothing",
            "end_to_end/test_run.py::TestSameAnswer::test_any_sharding",
        ),
        left_open="On GPUs, and in bfloat16, the last digits vary with the batch.",
    ),
    Fault(
        *("K", 74, "lm-eval#2851, lm-eval#3150, opencompass#1594, lmms-eval#698"),
        "two engines give different numbers for one model",
        (
            "end_to_end/test_demo.py::test_choices_agree_with_the_reference",
            "end_to_end/test_demo.py::test_documents_agree_with_the_reference",
            "end_to_end/test_vllm_engine.py::test_choices_equal_the_direct_forward",
        ),
    ),
    Fault(
        *("K", 76, "lm-eval#1262"),
        "a score is a tenth of the published one, for shots or a format that nobody wrote down",
        (
            "unit/test_plan.py::test_a_run_of_something_else_is_refused_with_the_key",
            "unit/test_html_report.py"
            "::TestContent::test_the_table_says_value_interval_and_coverage",
            "unit/test_store.py::test_examples_come_back_unchanged",
        ),
        left_open="The prompts are kept as they were asked, not the template they were made of.",
    ),
    Fault(
        *("K", 77, "open-instruct#751"),
        "published scores cannot be had again, and nothing says by what they were made",
        (
            "unit/test_plan.py::test_run_json_says_by_what_it_was_planned",
            "unit/test_torch_model.py::test_says_what_moves_numbers",
            "end_to_end/test_run.py::TestOtherRun::test_replicas_unlike_those_before_are_refused",
        ),
        left_open="The kind of GPU is not stated, nor packages of replicas beside their engine's.",
    ),
    Fault(
        *("L", 79, "lm-eval#1906, lm-eval#1591, lighteval#1308, HELMET#44"),
        "shots depend on the order of examples, or on a seed that is not applied",
        ("unit/test_tasks.py::test_shots_depend_on_seed_and_id_alone",),
    ),
    Fault(
        *("M", 80, "lighteval#662, lighteval#1340, lmeval#4"),
        "a progress bar for each worker, and none for the run",
        (
            "unit/test_progress.py::test_a_line_at_the_end_whatever_the_speed",
            "unit/test_progress.py::test_time_left_leaves_out_the_loading",
            "unit/test_cli.py::TestRun::test_results_go_to_stdout_and_all_else_to_stderr",
        ),
    ),
    Fault(
        *("M", 81, "lighteval#948"),
        "the model is loaded again for each task",
        (
            "end_to_end/test_run.py::TestSameAnswer::test_every_example_is_accounted_for",
            "end_to_end/test_sweep.py::test_one_judge_grades_the_answers_of_all",
        ),
    ),
    Fault(
        *("M", 82, "lmms-eval#131, lmms-eval#1125, lm-eval#1810"),
        "nothing says what a task cost in tokens and seconds",
        (
            "unit/test_html_report.py::TestContent::test_cost_with_rates_and_load_times",
            "unit/test_report.py::TestJson::test_has_the_documented_shape",
            "end_to_end/test_demo.py"
            "::test_the_answers_are_the_models_and_the_cost_is_each_ones_own",
        ),
    ),
    Fault(
        *("M", 83, "ray#52630"),
        "stop tokens that went through Arrow are arrays, which the engine refuses",
        ("unit/test_plan.py::test_settings_of_any_kind_survive_run_json",),
    ),
)
