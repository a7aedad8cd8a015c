"""The live knobs of one model of a core, with their bounds and descriptions."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

KnobValue = bool | int | float | str | list[int] | None
MOST_HOST_BLOCKS = 1_048_576


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Live knobs of one model of a core; every one can change while serving (SPEC FR-04).

    The bounds here are the ones that `live_knobs` enforces, and the descriptions the ones that operators are shown.
    """

    max_num_batched_tokens: Annotated[
        int,
        Meta(ge=1, le=65_536, description="Most tokens that one step computes, decodes and prompt chunks together."),
    ] = 512
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096, description="Most sequences that run at the same time.")] = 64
    prefill_chunk: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="Most prompt tokens of a sequence in one step; from the context's length on, prompts go whole.",
        ),
    ] = 256
    prefix_caching: Annotated[
        bool, Meta(description="Whether prompts share the blocks of equal prefixes; off empties the cache at once.")
    ] = True
    max_waiting: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Most sequences that wait; what would pass it is refused (503).")
    ] = 1000
    alert_waiting: Annotated[
        int,
        Meta(ge=0, le=1_000_000, description="Sequences that may wait before an alert is raised, in log and metrics."),
    ] = 500
    ageing_seconds: Annotated[
        float, Meta(ge=0.001, le=86_400, description="Seconds of waiting that lift a sequence by one priority class.")
    ] = 5.0
    threads: Annotated[
        int, Meta(ge=0, le=1024, description="Threads of the kernels, the same for all models; 0 is one per CPU.")
    ] = 0
    auto_tune: Annotated[
        bool, Meta(description="Whether budget, chunk and seats follow the objectives, their knobs being the limits.")
    ] = False
    itl_objective_ms: Annotated[
        float, Meta(ge=1, le=60_000, description="Milliseconds between two tokens that 95 of 100 gaps should keep.")
    ] = 100.0
    ttft_objective_ms: Annotated[
        float, Meta(ge=1, le=3_600_000, description="Milliseconds to the first token that most requests should keep.")
    ] = 1000.0
    batching: Annotated[
        Literal["continuous", "dynamic", "static"],
        Meta(
            description="When waiting sequences join: at once, in batches by size or delay, or when a batch has ended."
        ),
    ] = "continuous"
    max_queue_delay_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=60_000,
            description="Milliseconds that a batch waits for more members; if continuous, prompts while others decode.",
        ),
    ] = 0.0
    preferred_batch_sizes: Annotated[
        list[Annotated[int, Meta(ge=1, le=4096)]],
        Meta(description="Numbers of waiting sequences that end the queue delay at once; max_num_seqs always does."),
    ] = []
    max_join_penalty: Annotated[
        float,
        Meta(
            ge=1,
            le=1000,
            description="How many times longer a prompt may take because others decode; they take turns to keep it.",
        ),
    ] = 2.0
    block_moves_per_step: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="Most KV blocks copied in a step, to empty slabs for a model that waits for memory; 0 is off.",
        ),
    ] = 64
    prefill_arithmetic: Annotated[
        Literal["fast", "exact"],
        Meta(
            description="How prompts are computed: in the arithmetic that the CPU is fastest in, or as generated "
            "tokens are."
        ),
    ] = "fast"
    repetition_guard: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="Ends an answer whose last so many tokens only repeat what stood there before; 0 is off.",
        ),
    ] = 0
    speculation: Annotated[
        Literal["off", "prompt_lookup", "draft_model"],
        Meta(
            description="Who drafts tokens to be verified several at once: what stood in the text before, or a model."
        ),
    ] = "off"
    max_draft_tokens: Annotated[
        int, Meta(ge=0, le=64, description="Most tokens drafted for a sequence in one step.")
    ] = 8
    draft_control: Annotated[
        Literal["adaptive", "fixed"],
        Meta(description="Whether as many tokens are drafted as pay by measured acceptance and time, or always most."),
    ] = "adaptive"
    lookup_ngram: Annotated[
        int, Meta(ge=1, le=16, description="Tokens that must have stood in the text before for prompt_lookup to draft.")
    ] = 3
    draft_acceptance: Annotated[
        Literal["repeatable", "rejection"],
        Meta(
            description="How a draft model's tokens are verified: so that answers to a seed are what they are without "
            "drafts, or so that most are accepted; the law of answers is the model's either way."
        ),
    ] = "repeatable"
    host_cache_blocks: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST_HOST_BLOCKS,
            description="Most KV blocks kept in host memory when evicted, if copying beats computing; 0 is off.",
        ),
    ] = 0
    handover_min_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1_048_576,
            description="Uncached prompt tokens from which on a replica for prefill, if any, computes them; 0 is off.",
        ),
    ] = 0
