"""The state of a core and of its models at one moment."""

import msgspec

from inference_core.protocol.knobs import Knobs
from inference_core.protocol.model_info import AdapterInfo


class Tuning(msgspec.Struct, kw_only=True):
    """The current step limits of a model, tuned or as set, and the tuner's measurements.

    `decisions`: changes of its rule since start, the last one `decided_at` by the core's clock, for `reason`. The 95th
    percentiles are of the last gaps between tokens and of the last times to first token; None before there are any.
    `margin`: share of the objective that steps aim at. A step takes about `base_seconds`, `sequence_seconds` for each
    sequence, `token_seconds` for each further token and `pair_seconds` for each token that one attends to; 95 of 100
    steps take at most `tail` times that.
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
    """First-token latency (SPEC BS-12) of `count` sequences admitted while `decoding` to `2 * decoding - 1` others
    decoded (0: none): the mean seconds from admission to the first token, and per computed token."""

    decoding: int
    count: int
    seconds_mean: float
    seconds_per_token: float


class SpeculationStats(msgspec.Struct, kw_only=True):
    """Speculation since start: how many tokens were `proposed` and `accepted` at each position of a draft, in `rounds`
    (a sequence in a step). Steps with drafts took `seconds`; as many tokens without drafts would have taken
    `plain_seconds`, by measured steps without drafts."""

    proposed: list[int] = []
    accepted: list[int] = []
    rounds: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0


class SwapStats(msgspec.Struct, frozen=True, kw_only=True):
    """KV blocks in host memory (SPEC KV-09): `blocks_kept` in `blocks_total` places of `block_bytes`; since start,
    blocks copied out and back, and blocks not copied because computing them is cheaper.

    Copying took `copying_seconds`; computing the restored blocks would have taken `spared_seconds` by the learned step
    times. A block takes `out_seconds_per_block` and `back_seconds_per_block` by recent copies; 0 before any.
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
    """Transfers of KV blocks between cores (SPEC BS-08) since start: blocks exported, blocks imported, and frames
    refused. For a core with replicas, `outcomes` also counts transferred prompts: "done", or why the prompt was
    computed in place; `seconds` and `tokens` are the sums over those that are done.
    """

    out_blocks: int = 0
    in_blocks: int = 0
    refused_frames: int = 0
    outcomes: dict[str, int] = {}
    seconds: float = 0.0
    tokens: int = 0


class PipelineStats(msgspec.Struct, kw_only=True):
    """Pipeline of `stages` since start: steps, their micro-batches in all, and the sum over the steps of the share of
    the stages' time that is idle while the pipeline fills and drains (SPEC PX-03)."""

    stages: int
    steps: int = 0
    micro_batches: int = 0
    idle_sum: float = 0.0


class PrefixStats(msgspec.Struct, frozen=True, kw_only=True):
    """A pinned prefix (SPEC KV-06) of `tokens` in `blocks`: public if `tenant` is None. `ready`: prompts find it;
    until then it waits or is computed. `error`: why it was not computed the last time; "" if nothing went wrong.
    """

    name: str
    tenant: str | None
    tokens: int
    blocks: int
    ready: bool
    error: str = ""


class ModelStats(msgspec.Struct, kw_only=True):
    """One model of a core: current sequences and blocks, and totals since start.

    `idle_work`: sequences of work without a caller (`AddRequest.idle`), of which `running`, `waiting`,
    `blocks_in_use` and the predicted wait know nothing.
    `knobs`: the current ones; `start`: those that the model was started with, before any change.
    `weight_bytes`: of all ranks. `is_loaded`: whether the weights are there; until then requests wait. `pipeline`: None
    for a model that is not cut into stages.
    `step_seconds_counts`: steps by duration, in the buckets of `step_statistics`; `batch_sizes`: steps by the number of
    sequences in them.
    `adapter_installs` and `adapter_evictions` count how often an adapter was loaded into one of the `adapter_slots`,
    and how often that evicted another one.
    `blocks_pinned`: how many of `blocks_in_use` hold pinned prefixes. `prefixes`: of a core with replicas, those of the
    first.
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
    idle_work: int = 0
    knobs: Knobs = Knobs()
    start: Knobs = Knobs()
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
    weight_bytes: int = 0
    is_loaded: bool = True
    pipeline: PipelineStats | None = None
    blocks_pinned: int = 0
    prefixes: list[PrefixStats] = []


class CoreStats(msgspec.Struct, tag="core_stats", kw_only=True):
    """State of a core at one moment."""

    query_id: str
    steps: int
    arena_bytes: int
    slab_bytes: int
    slabs_free: int
    models: list[ModelStats]
