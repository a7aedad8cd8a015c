"""Commands into a core and events out of it: plain msgspec structs, no tensors, no callbacks.

The same structs cross every transport (a thread, a Unix socket, TCP). Times are seconds of
`time.monotonic()`, which Linux shares between processes of one machine; between machines they are translated.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from inference_core.errors import KVTransferFailure
from inference_core.protocol.evidence import Evidence, EvidenceRequest
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame, KVIdentity

FinishReason = Literal["stop", "length", "abort", "error"]
ErrorKind = Literal["invalid", "overloaded", "internal"]
KnobValue = bool | int | float | str | list[int] | None
MOST_HOST_BLOCKS = 1_048_576


GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an answer must be, from its first token to its last (SPEC SO-01).

    `text` is: nothing for any JSON object; a JSON schema; a regular expression in Rust's syntax, for the whole answer;
    a JSON list of the texts to choose from; a grammar in llguidance's dialect of Lark, or in GBNF. `param` is the field
    of the caller's request that it came from, to be named if it cannot be compiled. `schemas`: the JSON schemas that
    a Lark text was made from, as pairs of their own field and text.
    """

    kind: GrammarKind
    text: str = ""
    param: str = "response_format"
    schemas: tuple[tuple[str, str], ...] = ()


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one request's tokens are drawn (SPEC GW-04).

    The order of application is: logit bias, repetition / frequency / presence penalties, minimum-length
    mask, temperature, top-k, top-p, min-p. `temperature == 0` is greedy. `seed` makes the draw
    a function of (seed, choice index, position) alone, whatever else is in the batch.
    `logprobs`: None for none, k >= 0 for the drawn token and the k most likely ones, always of the
    model's raw distribution (before bias, penalties and temperature). `prompt_logprobs`: the same for the tokens of the
    prompt but its first; such a prompt is computed in full, whatever the prefix cache holds.
    `grammar`: tokens that it does not allow are never drawn, whatever else is asked for; the answer ends where it may.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


class AddRequest(msgspec.Struct, frozen=True, tag="add", kw_only=True):
    """Generate `n` continuations of one prompt. `request_id` is unique among live requests.

    `priority`: 0 interactive-critical, 1 normal, 2 batch; smaller goes first, waiting ages a request upwards.
    `deadline`: when the first token is due; orders requests of one priority. If `strict_deadline`, a late answer is
    worth nothing: the request is refused, or ended as "overloaded", once its first token cannot come in time.
    `salt`: separates prefix-cache entries (the tenant); equal salts may share blocks.
    `adapter`: the name of a loaded adapter that the answer is computed with; "" for the model alone. Its content is
    part of what separates prefix-cache entries.
    `speculate`: whether tokens of it may be drafted, as far as the model's knobs allow it (SPEC SD-06).
    `evidence`: what else to tell of the prompt and of the tokens drawn; None for nothing. `embed`: compute only the
    layers up to `evidence.layer`, of the prompt alone, and draw nothing: the one output, whose reason is "stop", brings
    the hidden state. `prefill`: compute only the prompt's full blocks that the prefix cache can hold, and draw nothing:
    the one output, whose reason is "stop", says that `ExportBlocks` finds them (SPEC BS-08).
    """

    request_id: str
    model: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    n: int = 1
    priority: int = 1
    arrival: float = 0.0
    deadline: float | None = None
    strict_deadline: bool = False
    salt: str = ""
    speculate: bool = True
    adapter: str = ""
    evidence: EvidenceRequest | None = None
    embed: bool = False
    prefill: bool = False


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """Forget a request, or its choice `index` alone: what it held is free before the next step.

    A choice that is aborted while others go on gets its last output, with the reason "abort"; of a request that is
    aborted whole nothing more is said. What is unknown or has ended is ignored.
    """

    request_id: str
    index: int | None = None


class QueryStats(msgspec.Struct, frozen=True, tag="stats"):
    """Ask for a `CoreStats` event carrying the same `query_id`."""

    query_id: str


class SetKnobs(msgspec.Struct, frozen=True, tag="knobs"):
    """Change the named knobs of `model`, or of every model; answered by `KnobsSet`.

    All of `changes` comes into force between two steps, or nothing does. None puts a knob back to what the core was
    started with. `keep` makes the change outlast the core's process. No changes ask for the knobs in force.
    """

    query_id: str
    changes: dict[str, KnobValue]
    model: str | None = None
    keep: bool = False


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Read the PEFT folder `path`, on the core's machine, and serve it as `name`; answered by `AdaptersSet`."""

    query_id: str
    model: str
    name: str
    path: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Refuse new requests with the adapter, and forget it when the last one has ended; answered by `AdaptersSet`."""

    query_id: str
    model: str
    name: str


class ExportBlocks(msgspec.Struct, frozen=True, tag="export_blocks"):
    """Tell the content of the chain's blocks from its block `first` on, as far as they are cached on the device and
    `most_bytes` allow, but one at least; answered by `BlocksExported`. Nothing is held for it: what is evicted between
    two of these ends the copy."""

    query_id: str
    chain: BlockChain
    first: int
    most_bytes: int


class ImportBlocks(msgspec.Struct, frozen=True, tag="import_blocks"):
    """Cache the blocks of `frame` as if they had been computed here; answered by `BlocksImported`.

    The core works out their names from `chain` itself, and takes all of them or none. No frame asks how many blocks of
    the chain are here.
    """

    query_id: str
    chain: BlockChain
    frame: BlockFrame | None = None


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


Command = AddRequest | AbortRequest | QueryStats | SetKnobs | LoadAdapter | UnloadAdapter | ExportBlocks | ImportBlocks


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probability of the drawn token and of the most likely ones, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class SequenceOutput(msgspec.Struct, tag="output", kw_only=True, omit_defaults=True):
    """New tokens of one choice of one request after one step.

    `finish_reason` is set exactly once per choice, on its last output. A token that ended the
    choice (EOS or a stop token) is not in `token_ids`; it is `stop_token_id`.
    All counts are set on the choice's last output, `cached_tokens` and `queue_seconds` on every one, so that whoever
    closes a request early (a stop string) knows them too. An error of one choice ends the whole request.
    `error_kind` says what the caller can do: change the request, try later or elsewhere, or report a bug.
    `prompt_logprobs` come chunk by chunk, in outputs of choice 0 without tokens, all before its first token.
    `evidence`: what the request's `evidence` asks for of this output's tokens, and with the first the hidden state.
    """

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    error_param: str | None = None
    error_kind: ErrorKind | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
    preemptions: int = 0
    prompt_logprobs: list[TokenLogprob] | None = None
    evidence: Evidence | None = None


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


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter: `rank` is the largest of its layers', `bytes` what it takes in a slot.

    `resident`: whether it lies in a slot; `running`: how many sequences run with it; `leaving`: whether it goes when
    the last request with it ends.
    """

    name: str
    path: str
    rank: int
    bytes: int
    resident: bool
    running: int
    leaving: bool


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


class KnobsSet(msgspec.Struct, tag="knobs_set", kw_only=True):
    """The answer to `SetKnobs`: the knobs before and now, by model, and why a change was refused, if it was."""

    query_id: str
    before: dict[str, Knobs]
    knobs: dict[str, Knobs]
    error: str | None = None
    error_param: str | None = None


class AdaptersSet(msgspec.Struct, tag="adapters_set", kw_only=True):
    """The answer to `LoadAdapter` and `UnloadAdapter`: the adapters of the model now, and why it was refused, if so."""

    query_id: str
    adapters: list[AdapterInfo]
    error: str | None = None
    error_param: str | None = None


class BlocksExported(msgspec.Struct, tag="blocks_exported", kw_only=True):
    """The answer to `ExportBlocks`; a frame without blocks: none is cached from there on."""

    query_id: str
    frame: BlockFrame | None = None
    error: str | None = None
    reason: KVTransferFailure = "refused"


class BlocksImported(msgspec.Struct, tag="blocks_imported", kw_only=True):
    """The answer to `ImportBlocks`: how many of the chain's blocks, from its first one on, are cached here now."""

    query_id: str
    held: int = 0
    error: str | None = None
    reason: KVTransferFailure = "refused"


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of a loaded model. `model_path` lets it build the tokeniser itself.

    `num_layers` and `hidden_size` are of the hidden states that it can tell (`EvidenceRequest`): 0 where it is computed
    in a way that tells no evidence. `kv`: what its KV blocks are; None where they cannot be handed over.
    """

    name: str
    model_path: str
    max_context: int
    vocab_size: int
    weight_bytes: int
    compute: str
    num_layers: int = 0
    hidden_size: int = 0
    kv: KVIdentity | None = None


class Hello(msgspec.Struct, tag="hello", kw_only=True):
    """First event of a connection: what this core serves."""

    models: list[ModelInfo]


class Goodbye(msgspec.Struct, tag="goodbye", kw_only=True):
    """Last event of a connection whose core died or shuts down, and why. `died`: nothing told it to end."""

    reason: str
    died: bool = False


class CoreHealth(msgspec.Struct, tag="health", kw_only=True):
    """The core's watchdog speaks: why the core does not advance, or None once it does again."""

    stuck: str | None


Event = (
    SequenceOutput | CoreStats | KnobsSet | AdaptersSet | BlocksExported | BlocksImported | Hello | Goodbye | CoreHealth
)
