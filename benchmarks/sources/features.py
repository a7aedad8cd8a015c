"""AIO's features compared with the sources' claims about other servers (SPEC TB-11); each of ours names its tests."""

import msgspec


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature. `tests`: pytest's names, below tests/, of tests that fail if it stops being true. `others`: as source
    004 or 003 states."""

    name: str
    ours: str = "yes"
    tests: tuple[str, ...]
    others: dict[str, str]


# Source 004: engines.
ENGINES = ("vLLM", "TensorRT-LLM", "TGI", "SGLang")
# Source 003: servers.
SERVERS = ("Triton", "TorchServe")


def _of(names: tuple[str, ...], *said: str) -> dict[str, str]:
    return dict(zip(names, said, strict=True))


ENGINE_FEATURES = (
    Feature(
        name="paged attention",
        tests=(
            "inference_core/engine/test_block_pool.py::test_allocation_is_all_or_nothing",
            "inference_core/engine/test_block_pool.py::test_a_shared_block_is_free_only_after_its_last_reference",
            "inference_core/triton_kernels/test_paged_attention.py::test_every_cell_equals_the_reference",
        ),
        others=_of(ENGINES, "yes (native)", "yes", "yes (via vLLM)", "yes"),
    ),
    Feature(
        name="continuous batching",
        tests=(
            "inference_core/engine/test_batching.py::test_continuous_batching_needs_far_fewer_steps_than_static_for_answers_of_unequal_length",
        ),
        others=_of(ENGINES, "yes", "yes", "yes", "yes"),
    ),
    Feature(
        name="speculative decoding",
        tests=(
            "inference_core/speculation/test_rejection_sampling.py::test_rejection_draws_from_the_law_of_the_target",
            "inference_core/engine/test_speculation.py::test_a_draft_that_is_always_right_gives_all_its_tokens_in_one_step",
            "inference_core/engine/test_speculation.py::test_sampled_answers_are_the_same_with_and_without_drafts",
        ),
        others=_of(ENGINES, "yes", "yes", "limited", "yes"),
    ),
    Feature(
        name="multi-LoRA",
        tests=(
            "inference_core/lora/test_adapters_in_core.py::test_more_adapters_than_slots_are_all_served_and_evictions_counted",
        ),
        others=_of(ENGINES, "yes (S-LoRA)", "yes", "yes", "yes"),
    ),
    Feature(
        name="quantisation (AWQ, GPTQ, FP8, SmoothQuant, GGUF)",
        tests=(
            "inference_core/quantization/test_awq.py::test_a_layer_quantised_with_awq_is_nearer_to_its_outputs_than_one_rounded_to_nearest",
            "inference_core/quantization/test_gptq.py::test_outputs_err_less_than_with_rounding_to_nearest",
            "inference_core/quantization/test_fp8.py::test_every_weight_becomes_the_nearest_number_of_the_format",
            "inference_core/quantization/test_smoothquant.py::test_with_outlier_channels_smoothed_outputs_err_less_than_plain_int8",
            "inference_core/loaders/test_gguf_checkpoint.py::test_k_quants_load",
        ),
        others=_of(ENGINES, "AWQ, GPTQ, FP8", "all + custom", "AWQ, GPTQ, BnB", "AWQ, GPTQ, FP8"),
    ),
    Feature(
        name="structured output",
        tests=(
            "inference_core/grammar/test_answers_obey.py::test_a_finished_answer_validates_against_any_schema",
            "gateway/inference/api/test_structured_answers.py::test_parse_gives_a_pydantic_model_on_every_tier",
        ),
        others=_of(ENGINES, "Outlines", "limited", "yes", "native (fast)"),
    ),
)
SERVER_FEATURES = (
    Feature(
        name="dynamic batching",
        tests=(
            "inference_core/engine/test_batching.py::test_a_dynamic_batch_goes_at_the_earlier_of_delay_and_preferred_size",
        ),
        others=_of(SERVERS, "yes", "yes"),
    ),
    Feature(
        name="streaming",
        tests=(
            "gateway/inference/api/test_chat_stream.py::test_text_survives_json_and_utf8_unharmed",
            "gateway/inference/api/test_chat_stream.py::test_a_stream_begins_with_the_role_and_ends_with_one_finish_reason_and_done",
        ),
        others=_of(SERVERS, "yes", "not stated"),
    ),
    Feature(
        name="versions without downtime",
        ours="of servers elsewhere, and of own models on the CPU or under several workers",
        tests=(
            "gateway/operations/test_catalogue_reload.py::test_a_reload_under_load_fails_no_reply_and_mixes_none",
            "gateway/runtime/cores/test_core_swap.py::test_a_swap_under_load_fails_no_reply_and_mixes_none",
            "gateway/processes/test_core_renewed.py::test_sigusr2_replaces_a_core_that_the_catalogue_changes",
        ),
        others=_of(SERVERS, "yes", "not stated"),
    ),
    Feature(
        name="ensemble (tokenise, model, detokenise in one call)",
        ours="these three, text in and text out; no other pipelines",
        tests=(
            "tiers/local/test_laptop_tiers.py::test_every_tier_knows_the_capital_of_france",
            "tiers/local/test_local.py::test_a_stop_string_cuts_text_tokens_and_log_probabilities_alike",
        ),
        others=_of(SERVERS, "yes", "not stated"),
    ),
    Feature(
        name="metrics",
        tests=(
            "gateway/telemetry/test_core_metrics.py::test_steps_limits_and_knobs_are_metrics",
            "gateway/telemetry/test_metric_families.py::test_it_shows_the_buckets_counts_and_sums_of_an_ordinary_histogram",
        ),
        others=_of(SERVERS, "yes", "not stated"),
    ),
)
