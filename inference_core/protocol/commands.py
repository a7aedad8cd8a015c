"""Commands into a core, each a struct with the tag that names it on the wire, and what they carry.

How a request's tokens are drawn; evidence of its computation besides the tokens (hidden states of the prompt, the
certainty of each token); the live knobs of a model, with their bounds and descriptions.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from inference_core.kv_cache.layout import KVDtype
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A constraint on the whole answer (SPEC SO-01)."""

    kind: GrammarKind
    text: str = ""
    """By kind: nothing for any JSON object; a JSON schema; a regular expression in Rust's syntax, for the whole answer;
    a JSON list of the texts to choose from; a grammar in llguidance's dialect of Lark, or in GBNF.
    """
    param: str = "response_format"
    """The field of the caller's request that it came from, for error messages."""
    schemas: tuple[tuple[str, str], ...] = ()
    """The JSON schemas that a Lark text was made from, as pairs of field and text."""
    avoid: tuple[int, ...] = ()
    """The tokens of an earlier answer that could not end valid. At its first choice, from the value that did not hold
    on, another token is drawn.
    """


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one request's tokens are drawn (SPEC GW-04).

    The order of application is: logit bias, repetition / frequency / presence penalties, minimum-length mask,
    temperature, top-k, top-p, min-p. `temperature == 0` is greedy.
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
    """Makes the draw a function of (seed, choice index, position) alone, independent of the batch."""
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """None for none, k >= 0 for the drawn token and the k most likely ones, always of the model's raw distribution
    (before bias, penalties and temperature).
    """
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt except the first; such a prompt is computed in full, without the prefix
    cache.
    """
    grammar: Grammar | None = None
    """Only tokens that it allows are drawn; the answer ends where the grammar allows it."""


Pooling = Literal["last", "mean"]


class EvidenceRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which evidence to return for a request (SPEC RT-04); what is not requested costs nothing."""

    layer: int | None = None
    """After how many of the model's layers the prompt's hidden state is taken, 1 to all of them; None for none."""
    pooling: Pooling = "last"
    """Take the state of the prompt's last token (Kadavath et al. 2022, "Language models (mostly) know what they know"),
    or the mean over its tokens. A prompt to be averaged is computed in full, without the prefix cache.
    """
    tokens: bool = False
    """Return `TokenEvidence` of every token drawn."""


class TokenEvidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How sure the model was of one token, in nats, by its raw distribution over the whole vocabulary, before bias,
    penalties, grammar and temperature.
    """

    logprob: float
    """Log-probability of the drawn token."""
    entropy: float
    """Entropy of the distribution."""
    margin: float
    """The best log-probability minus the second."""


class Evidence(msgspec.Struct, omit_defaults=True):
    """The part of an `EvidenceRequest`'s evidence that one output carries."""

    state: bytes = b""
    """The hidden state, float32 little-endian [hidden], with the first output of choice 0 alone; before the final norm,
    as the layer leaves it.
    """
    tokens: list[TokenEvidence] = []
    """One per token of the output, a stop token that ended it excepted."""


KnobValue = bool | int | float | str | list[int] | None
MOST_HOST_BLOCKS = 1_048_576


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Live knobs of one model of a core; every one can change while serving (SPEC FR-04).

    The bounds here are the ones that `live_knobs` enforces, and the descriptions the ones that operators are shown.
    """

    max_num_batched_tokens: Annotated[
        int,
        Meta(ge=1, le=65_536, description="The most tokens of a step, decodes and prompt chunks together."),
    ] = 512
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096, description="The most sequences that run at the same time.")] = 64
    prefill_chunk: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="The most prompt tokens of a sequence in one step. From the context's length on, only the "
            "token budget cuts prompts.",
        ),
    ] = 256
    prefix_caching: Annotated[
        bool, Meta(description="Whether prompts share the blocks of equal prefixes. Off empties the cache at once.")
    ] = True
    max_waiting: Annotated[
        int, Meta(ge=1, le=1_000_000, description="The most sequences that wait. One more is refused (503).")
    ] = 1000
    alert_waiting: Annotated[
        int,
        Meta(ge=0, le=1_000_000, description="If more sequences wait than this, there is an alert in log and metrics."),
    ] = 500
    ageing_seconds: Annotated[
        float, Meta(ge=0.001, le=86_400, description="A sequence that waits this long rises by one priority class.")
    ] = 5.0
    threads: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="Threads of the kernels, for all models. 0: one per CPU, and fewer next to busy processes.",
        ),
    ] = 0
    auto_tune: Annotated[
        bool, Meta(description="Whether AIO tunes budget, chunk and sequences by the objectives, within their knobs.")
    ] = False
    itl_objective_ms: Annotated[
        float, Meta(ge=1, le=60_000, description="Milliseconds that 95 of 100 gaps between tokens should not exceed.")
    ] = 100.0
    ttft_objective_ms: Annotated[
        float, Meta(ge=1, le=3_600_000, description="Milliseconds within which most first tokens should come.")
    ] = 1000.0
    batching: Annotated[
        Literal["continuous", "dynamic", "static"],
        Meta(
            description="When waiting sequences join. continuous: at once. dynamic: in batches, by size or delay. "
            "static: when a batch has ended."
        ),
    ] = "continuous"
    max_queue_delay_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=60_000,
            description="Milliseconds that a batch waits for more members. If continuous, only prompts wait, while "
            "others decode.",
        ),
    ] = 0.0
    preferred_batch_sizes: Annotated[
        list[Annotated[int, Meta(ge=1, le=4096)]],
        Meta(description="If this many sequences wait, the queue delay ends at once. max_num_seqs always ends it."),
    ] = []
    max_join_penalty: Annotated[
        float,
        Meta(
            ge=1,
            le=1000,
            description="How many times longer a prompt may take because others decode. They take turns to keep this.",
        ),
    ] = 2.0
    block_moves_per_step: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="The most KV blocks moved in a step, to empty slabs for a model that waits for memory. "
            "0: none.",
        ),
    ] = 64
    prefill_arithmetic: Annotated[
        Literal["fast", "exact"],
        Meta(
            description="How prompts are computed. fast: in the arithmetic that is fastest on the CPU. exact: as "
            "generated tokens are."
        ),
    ] = "fast"
    repetition_guard: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="An answer ends if this many of its last tokens only repeat what was there before. 0: never.",
        ),
    ] = 0
    decode_steps: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description="The most decode steps in one call while nothing waits. They take at most itl_objective_ms, "
            "or an eighth of it if their tokens are sent together. 1: one step in each call.",
        ),
    ] = 4
    speculation: Annotated[
        Literal["off", "prompt_lookup", "draft_model"],
        Meta(
            description="What drafts tokens, so that several are verified at once. prompt_lookup: the text before. "
            "draft_model: a smaller model."
        ),
    ] = "off"
    max_draft_tokens: Annotated[
        int, Meta(ge=0, le=64, description="The most tokens drafted for a sequence in one step.")
    ] = 8
    draft_control: Annotated[
        Literal["adaptive", "fixed"],
        Meta(description="adaptive: as many tokens as pay by measured acceptance and time. fixed: always the most."),
    ] = "adaptive"
    lookup_ngram: Annotated[
        int,
        Meta(ge=1, le=16, description="Tokens that must also stand earlier in the text for prompt_lookup to draft."),
    ] = 3
    draft_acceptance: Annotated[
        Literal["repeatable", "rejection"],
        Meta(
            description="How a draft model's tokens are verified. repeatable: a seed gives the same answer as without "
            "drafts. rejection: more drafts are accepted. The distribution of answers is the model's with both."
        ),
    ] = "repeatable"
    host_cache_blocks: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST_HOST_BLOCKS,
            description="The most evicted KV blocks that are kept in host memory, if copying beats computing. 0: none.",
        ),
    ] = 0
    kv_dtype: Annotated[
        Literal["catalogue", KVDtype],
        Meta(
            description="The type of the numbers in the KV cache. A change empties the prefix cache, and computes "
            "running sequences again. catalogue: as it was loaded."
        ),
    ] = "catalogue"
    handover_min_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1_048_576,
            description="A prompt with at least this many uncached tokens is computed by a replica for prefill, if "
            "there is one. 0: never.",
        ),
    ] = 0


LAST_CLASS = 2
"""The last priority class of what somebody asked for."""


class AddRequest(msgspec.Struct, frozen=True, tag="add", kw_only=True):
    """Generate `n` continuations of one prompt.

    Its fields are flat and have defaults, although a tier's request has seven of them too: while one of both is
    replaced, a gateway and a core of different versions meet, and each leaves out what it does not know.
    """

    request_id: str
    """Unique among live requests."""
    model: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    n: int = 1
    priority: int = 1
    """0 interactive-critical, 1 normal, 2 batch; smaller goes first, and waiting raises a request's priority."""
    idle: bool = False
    """Computed only while the core has no other work (`scheduling.priority`), and no part of its load."""
    arrival: float = 0.0
    deadline: float | None = None
    """When the first token is due; orders requests of one priority."""
    strict_deadline: bool = False
    """Refuse the request, or end it as "overloaded", once its first token cannot come in time."""
    salt: str = ""
    """Separates prefix-cache entries (the tenant); equal salts may share blocks."""
    speculate: bool = True
    """Whether its tokens may be drafted, as far as the model's knobs allow it (SPEC SD-06)."""
    adapter: str = ""
    """The name of a loaded adapter to compute the answer with; "" for the base model. Its content separates
    prefix-cache entries too.
    """
    evidence: EvidenceRequest | None = None
    """What else to return about the prompt and the tokens drawn."""
    embed: bool = False
    """Compute only the layers up to `evidence.layer`, of the prompt alone, and draw no token: the one output, with the
    reason "stop", carries the hidden state.
    """
    prefill: bool = False
    """Compute only the prompt's full blocks that the prefix cache can hold, and draw no token: after the one output,
    with the reason "stop", `ExportBlocks` finds them (SPEC BS-08).
    """
    drawn_from: int | None = None
    """The position in the prompt from which on this model drew its tokens before; None: it drew none. These are
    computed as they were then, so that their cached blocks are found where prompts have an arithmetic of their own.
    """
    drawn_token_ids: list[int] = []
    """What this model drew of the answer before its core was lost: it goes on after them, as after a preemption, and
    puts out what follows. Goes with n = 1, without evidence (`ModelInfo.resumes`).
    """


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """Forget a request; its memory is free before the next step. Unknown or ended requests are ignored."""

    request_id: str
    index: int | None = None
    """The choice to abort alone, which gets a last output with the reason "abort". A request aborted as a whole gets no
    more outputs.
    """


class QueryStats(msgspec.Struct, frozen=True, tag="stats"):
    """Ask for a `CoreStats` event carrying the same `query_id`."""

    query_id: str


class SetKnobs(msgspec.Struct, frozen=True, tag="knobs"):
    """Change the named knobs of `model`, or of every model; answered by `KnobsSet`."""

    query_id: str
    changes: dict[str, KnobValue]
    """All apply between two steps, or none. None resets a knob to its start value. Empty changes query the current
    knobs.
    """
    model: str | None = None
    keep: bool = False
    """Store the change for later processes of the core."""


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
    """Return the content of the chain's blocks from block `first` on that are cached on the device, up to `most_bytes`
    but at least one; answered by `BlocksExported`. Blocks are not kept: an eviction in between ends it."""

    query_id: str
    chain: BlockChain
    first: int
    most_bytes: int


class ImportBlocks(msgspec.Struct, frozen=True, tag="import_blocks"):
    """Cache the blocks of `frame` as if they had been computed here; answered by `BlocksImported`.

    The core computes their digests from `chain` itself, and imports all of them or none. Without a frame, the answer
    says how many blocks of the chain are cached.
    """

    query_id: str
    chain: BlockChain
    frame: BlockFrame | None = None


Command = AddRequest | AbortRequest | QueryStats | SetKnobs | LoadAdapter | UnloadAdapter | ExportBlocks | ImportBlocks
