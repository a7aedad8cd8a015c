"""The state of a core and of its models at one moment."""

import msgspec

from inference_core.protocol.knobs import Knobs
from inference_core.protocol.model_info import AdapterInfo


class Tuning(msgspec.Struct, kw_only=True):
    """The step limits in force for a model, tuned or as set, and what the tuner knows.

    `decisions`: changes of its rule since start, the last one `decided_at` by the core's clock, for `reason`. The 95th
    percentiles are of the last gaps between tokens and of the last times to first token; None before there are any.
    `margin`: share of the objective that steps aim at. A step takes about `base_seconds`, `sequence_seconds` for each
    sequence, `token_seconds` for each further token and `pair_seconds` for each token that one attends to, and `tail`
    times that in its worst twentieth.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    prefill_chunk: int
    decisions: int = 0
    reason: str = ""
    decided_at: float | None = None
    itl_p95_seconds: float | None = None
    ttft_p95_seconds: float | None = None
    margin: float = 1.0
    base_seconds: float = 0.0
    sequence_seconds: float = 0.0
    token_seconds: float = 0.0
    pair_seconds: float = 0.0
    tail: float = 1.0


class JoinStats(msgspec.Struct, frozen=True):
    """What joining costs (SPEC BS-12): of `count` sequences that began while `decoding` to `2 * decoding - 1` others
    decoded (0: none), the mean seconds from then to the first token, and per token computed for it."""

    decoding: int
    count: int
    seconds_mean: float
    seconds_per_token: float


class SpeculationStats(msgspec.Struct, kw_only=True):
    """What drafts were worth since start: how many tokens were `proposed` and `accepted` at each place of a draft, in
    so many `rounds` (a sequence in a step). Steps with drafts took `seconds`, and for as many tokens without drafts, as
    measured beside them, it would have been `plain_seconds`."""

    proposed: list[int] = []
    accepted: list[int] = []
    rounds: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0


class SwapStats(msgspec.Struct, frozen=True, kw_only=True):
    """KV blocks in host memory (SPEC KV-09): `blocks_kept` in `blocks_total` places of `block_bytes`; since start,
    blocks copied out and back, and refused because that costs more than computing them.

    Copying took `copying_seconds`; computing what came back would have taken `spared_seconds`, as the model's steps
    are known. A block takes `out_seconds_per_block` and `back_seconds_per_block` by recent copies; 0 before any.
    """

    blocks_total: int = 0
    blocks_kept: int = 0
    block_bytes: int = 0
    out_blocks: int = 0
    back_blocks: int = 0
    refused_blocks: int = 0
    copying_seconds: float = 0.0
    spared_seconds: float = 0.0
    out_seconds_per_block: float = 0.0
    back_seconds_per_block: float = 0.0


class KVTransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts computed by one core for another (SPEC BS-08), since start: blocks that went `out_blocks` and came
    `in_blocks`, and frames refused. Of a core with replicas also what became of them: `outcomes` counts "done", or why
    the prompt was computed in place after all; `seconds` is what those that are done took, `tokens` what they spared.
    """

    out_blocks: int = 0
    in_blocks: int = 0
    refused_frames: int = 0
    outcomes: dict[str, int] = {}
    seconds: float = 0.0
    tokens: int = 0


class ModelStats(msgspec.Struct, kw_only=True):
    """One model of a core, now: counts of sequences, blocks and totals since start.

    `step_seconds_counts`: steps by duration, in the buckets of `step_statistics`; `batch_sizes`: steps by the number of
    sequences in them.
    `adapter_installs` and `adapter_evictions` count how often an adapter was put into one of the `adapter_slots`, and
    how often another one had to leave it for that.
    """

    name: str
    running: int
    waiting: int
    blocks_in_use: int
    blocks_cached: int
    blocks_total: int
    prompt_tokens: int
    generated_tokens: int
    prefix_hit_tokens: int
    prefix_query_tokens: int
    preemptions: int
    step_seconds_mean: float
    predicted_wait_seconds: float
    knobs: Knobs = Knobs()
    tuning: Tuning | None = None
    queue_alert: bool = False
    step_seconds_counts: list[int] = []
    step_seconds_sum: float = 0.0
    batch_sizes: dict[int, int] = {}
    joins: list[JoinStats] = []
    deadline_refusals: int = 0
    repetitions_ended: int = 0
    speculation: SpeculationStats | None = None
    swap: SwapStats = SwapStats()
    handover: KVTransferStats = KVTransferStats()
    adapters: list[AdapterInfo] = []
    adapter_slots: int = 0
    adapter_installs: int = 0
    adapter_evictions: int = 0


class CoreStats(msgspec.Struct, tag="core_stats", kw_only=True):
    """State of a core at one moment."""

    query_id: str
    steps: int
    arena_bytes: int
    slab_bytes: int
    slabs_free: int
    models: list[ModelStats]
