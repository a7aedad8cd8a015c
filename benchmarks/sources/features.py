"""AIO's features compared with the sources' claims about other servers (SPEC TB-11); each of ours names its tests."""

import msgspec


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature. `tests`: files under tests/ that fail if it stops being true. `others`: as source 004 or 003
    states."""

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
        tests=("inference_core/engine/test_block_pool.py", "inference_core/triton_kernels/test_paged_attention.py"),
        others=_of(ENGINES, "yes (native)", "yes", "yes (via vLLM)", "yes"),
    ),
    Feature(
        name="continuous batching",
        tests=("inference_core/engine/test_core.py", "inference_core/engine/test_batching.py"),
        others=_of(ENGINES, "yes", "yes", "yes", "yes"),
    ),
    Feature(
        name="speculative decoding",
        tests=("inference_core/speculation/test_rejection_sampling.py", "inference_core/engine/test_speculation.py"),
        others=_of(ENGINES, "yes", "yes", "limited", "yes"),
    ),
    Feature(
        name="multi-LoRA",
        tests=("inference_core/lora/test_adapters_in_core.py",),
        others=_of(ENGINES, "yes (S-LoRA)", "yes", "yes", "yes"),
    ),
    Feature(
        name="quantisation (AWQ, GPTQ, FP8, SmoothQuant, GGUF)",
        tests=(
            "inference_core/quantization/test_awq.py",
            "inference_core/quantization/test_gptq.py",
            "inference_core/quantization/test_fp8.py",
            "inference_core/quantization/test_smoothquant.py",
            "inference_core/loaders/test_gguf_checkpoint.py",
        ),
        others=_of(ENGINES, "AWQ, GPTQ, FP8", "all + custom", "AWQ, GPTQ, BnB", "AWQ, GPTQ, FP8"),
    ),
    Feature(
        name="structured output",
        tests=("inference_core/grammar/test_answers_obey.py", "gateway/inference/api/test_structured_answers.py"),
        others=_of(ENGINES, "Outlines", "limited", "yes", "native (fast)"),
    ),
)
SERVER_FEATURES = (
    Feature(
        name="dynamic batching",
        tests=("inference_core/engine/test_batching.py",),
        others=_of(SERVERS, "yes", "yes"),
    ),
    Feature(
        name="streaming", tests=("gateway/inference/api/test_chat_stream.py",), others=_of(SERVERS, "yes", "not stated")
    ),
    Feature(
        name="versions without downtime",
        ours="of servers elsewhere, and of own models on the CPU or under several workers",
        tests=(
            "gateway/operations/test_catalogue_reload.py",
            "gateway/runtime/cores/test_core_swap.py",
            "gateway/processes/test_core_renewed.py",
        ),
        others=_of(SERVERS, "yes", "not stated"),
    ),
    Feature(
        name="ensemble (tokenise, model, detokenise in one call)",
        ours="these three, text in and text out; no other pipelines",
        tests=("tiers/local/test_laptop_tiers.py", "tiers/local/test_local.py"),
        others=_of(SERVERS, "yes", "not stated"),
    ),
    Feature(
        name="metrics",
        tests=("gateway/telemetry/test_core_metrics.py", "gateway/telemetry/test_metric_families.py"),
        others=_of(SERVERS, "yes", "not stated"),
    ),
)
