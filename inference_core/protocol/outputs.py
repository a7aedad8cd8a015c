"""Events out of a core: outputs of requests, answers to commands, statistics, and the state of the connection.

What a choice's steps cost besides computing (waiting, planning, KV blocks, preemptions) travels whole, from the
scheduler to the caller's timings. Errors: the outputs of requests that a core refuses, what clients raise for them,
and how errors that an operator can mend cross to another process.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Literal

import msgspec

from inference_core.errors import (
    CoreError,
    DeviceFailedError,
    DevicesMissingError,
    InvalidEndError,
    InvalidRequestError,
    KVTransferFailure,
    MemoryPlanError,
    MeshError,
    ModelFileError,
    PrefixError,
    QueueFullError,
)
from inference_core.protocol.commands import Evidence, Knobs
from inference_core.protocol.kv_blocks import AdapterInfo, BlockFrame, ModelInfo


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a choice's steps cost besides computing."""

    queue_seconds: float = 0.0
    """Waiting for the first step, and again after each preemption."""
    planning_seconds: float = 0.0
    """Planning the steps of the prompt, up to the first token."""
    kv_seconds: float = 0.0
    """KV blocks up to the first token: look-up, allocation, copies between device and host."""
    preemptions: int = 0

    def merged(self, other: "StepTimes") -> "StepTimes":
        """Return the times of two sequences that ran side by side: the longer seconds, and all preemptions."""
        return StepTimes(
            queue_seconds=max(self.queue_seconds, other.queue_seconds),
            planning_seconds=max(self.planning_seconds, other.planning_seconds),
            kv_seconds=max(self.kv_seconds, other.kv_seconds),
            preemptions=self.preemptions + other.preemptions,
        )

    @classmethod
    def of_all(cls, every: Iterable["StepTimes"]) -> "StepTimes":
        """Return the merged times of any number of sequences; without one `NO_TIMES`."""
        return reduce(cls.merged, every, NO_TIMES)


NO_TIMES = StepTimes()


class Tuning(msgspec.Struct, kw_only=True):
    """The current step limits of a model, tuned or as set, and the tuner's measurements. A step takes about the sum of
    its base, its sequences, its further tokens and its pairs.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    prefill_chunk: int
    decisions: int = 0
    """Changes of its rule since start."""
    reason: str = ""
    """Why the last change was made."""
    decided_at: float | None = None
    """When the last change was made, by the core's clock."""
    itl_p95_seconds: float | None = None
    """95th percentile of the last gaps between tokens; None before there are any."""
    ttft_p95_seconds: float | None = None
    """95th percentile of the last times to first token; None before there are any."""
    margin: float = 1.0
    """Share of the objective that steps aim at."""
    base_seconds: float = 0.0
    sequence_seconds: float = 0.0
    """For each sequence."""
    token_seconds: float = 0.0
    """For each token after a sequence's first one."""
    pair_seconds: float = 0.0
    """For each token that one attends to."""
    tail: float = 1.0
    """95 of 100 steps take at most so many times the sum."""


class JoinStats(msgspec.Struct, frozen=True):
    """First-token latency (SPEC BS-12) of sequences, by how many others decoded when they were admitted."""

    decoding: int
    """From so many to `2 * decoding - 1` others decoded; 0: none."""
    count: int
    seconds_mean: float
    """From admission to the first token."""
    seconds_per_token: float
    """The same, for each computed token of the prompts."""


class SpeculationStats(msgspec.Struct, kw_only=True):
    """Speculation since start."""

    proposed: list[int] = []
    """How many tokens were proposed at each position of a draft."""
    accepted: list[int] = []
    """How many tokens were accepted at each position of a draft."""
    rounds: int = 0
    """Drafts: of a sequence in a step."""
    seconds: float = 0.0
    """What steps with drafts took."""
    plain_seconds: float = 0.0
    """What as many tokens would have taken in steps without drafts, as measured."""


class SwapStats(msgspec.Struct, frozen=True, kw_only=True):
    """KV blocks in host memory (SPEC KV-09). Since start: blocks copied out and back, and blocks not copied because
    computing them is cheaper.
    """

    blocks_total: int = 0
    """Places of `block_bytes`, of which `blocks_kept` are used."""
    blocks_kept: int = 0
    block_bytes: int = 0
    out_blocks: int = 0
    back_blocks: int = 0
    refused_blocks: int = 0
    copying_seconds: float = 0.0
    """What copying took."""
    spared_seconds: float = 0.0
    """What computing the restored blocks would have taken, by the learned step times."""
    out_seconds_per_block: float = 0.0
    """What a block takes by recent copies out; 0 before any."""
    back_seconds_per_block: float = 0.0
    """What a block takes by recent copies back; 0 before any."""


class KVTransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers of KV blocks between cores (SPEC BS-08) since start: blocks exported, blocks imported, and frames
    refused.
    """

    out_blocks: int = 0
    in_blocks: int = 0
    refused_frames: int = 0
    outcomes: dict[str, int] = {}
    """For a core with replicas, it also counts transferred prompts: "done", or why the prompt was computed in place."""
    seconds: float = 0.0
    """Sum over the transfers that are done."""
    tokens: int = 0
    """Sum over the transfers that are done."""


class PipelineStats(msgspec.Struct, kw_only=True):
    """A pipeline of stages, since start."""

    stages: int
    steps: int = 0
    micro_batches: int = 0
    """Of all steps."""
    idle_sum: float = 0.0
    """Sum over the steps of the idle share of the stages' time while the pipeline fills and drains (SPEC PX-03)."""


class PrefixStats(msgspec.Struct, frozen=True, kw_only=True):
    """A pinned prefix (SPEC KV-06)."""

    name: str
    tenant: str | None
    """None for a public one."""
    tokens: int
    blocks: int
    ready: bool
    """Whether prompts find it; until then it waits or is computed."""
    error: str = ""
    """Why it was not computed the last time; "" if nothing went wrong."""


STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the durations by which a model's steps are counted; longer ones are counted last."""


class ModelStats(msgspec.Struct, kw_only=True):
    """One model of a core: current sequences and blocks, and totals since start."""

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
    """Sequences of work without a caller (`AddRequest.idle`), of which `running`, `waiting`, `blocks_in_use` and the
    predicted wait know nothing.
    """
    knobs: Knobs = Knobs()
    """The current knobs."""
    start: Knobs = Knobs()
    """The knobs that the model was started with, before any change."""
    tuning: Tuning | None = None
    queue_alert: bool = False
    step_seconds_counts: list[int] = []
    """Numbers of steps by duration, in the buckets of `STEP_SECONDS`."""
    step_seconds_sum: float = 0.0
    batch_sizes: dict[int, int] = {}
    """Numbers of steps by the number of sequences in them."""
    joins: list[JoinStats] = []
    deadline_refusals: int = 0
    repetitions_ended: int = 0
    speculation: SpeculationStats | None = None
    swap: SwapStats = SwapStats()
    handover: KVTransferStats = KVTransferStats()
    adapters: list[AdapterInfo] = []
    adapter_slots: int = 0
    adapter_installs: int = 0
    """How often an adapter was loaded into one of the `adapter_slots`."""
    adapter_evictions: int = 0
    """How often loading an adapter evicted another one."""
    weight_bytes: int = 0
    """Bytes of weights of all ranks."""
    is_loaded: bool = True
    """Whether the weights are there; until then requests wait."""
    pipeline: PipelineStats | None = None
    """None for a model that is not cut into stages."""
    kv_dtype: str = ""
    """The type of the numbers in its KV cache now."""
    blocks_pinned: int = 0
    """How many of `blocks_in_use` hold pinned prefixes."""
    prefixes: list[PrefixStats] = []
    """Pinned prefixes; of a core with replicas, those of the first."""


class CoreStats(msgspec.Struct, tag="core_stats", kw_only=True):
    """State of a core at one moment."""

    query_id: str
    steps: int
    arena_bytes: int
    slab_bytes: int
    slabs_free: int
    models: list[ModelStats]
    threads: int = 0
    """Threads of its next step on the CPU; 0 where the kernels do not say."""


FinishReason = Literal["stop", "length", "abort", "error"]
ErrorKind = Literal["invalid", "invalid_end", "overloaded", "internal"]


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probability of the drawn token and of the most likely ones, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class SequenceOutput(msgspec.Struct, tag="output", kw_only=True, omit_defaults=True):
    """New tokens of one choice of one request after one step. All counts are set on the choice's last output."""

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    """Set exactly once per choice, on its last output. An error of one choice ends the whole request."""
    stop_token_id: int | None = None
    """The token that ended the choice (EOS or a stop token), which is not in `token_ids`."""
    error: str | None = None
    error_param: str | None = None
    error_kind: ErrorKind | None = None
    """What the caller can do: change the request, try later or elsewhere, or report a bug."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Set on every output, for clients that close a request early (a stop string)."""
    completion_tokens: int = 0
    times: StepTimes = NO_TIMES
    """Times so far. They are on the last output and on each before which they have changed: the first one with tokens,
    and the next one after a preemption (SPEC GW-01).
    """
    prompt_logprobs: list[TokenLogprob] | None = None
    """They come chunk by chunk, in outputs of choice 0 without tokens, all before its first token."""
    evidence: Evidence | None = None
    """What the request asks for about this output's tokens; the first output carries the hidden state."""

    def drop_first(self, count: int) -> None:
        """Leave out the first `count` of its tokens, which have no evidence."""
        del self.token_ids[:count]
        if self.logprobs:
            del self.logprobs[:count]

    def drop_last(self, count: int) -> None:
        """Take back the last `count` of its tokens."""
        del self.token_ids[-count:]
        if self.logprobs:
            del self.logprobs[-count:]
        if self.evidence is not None:
            self.evidence = msgspec.structs.replace(self.evidence, tokens=self.evidence.tokens[:-count])


class KnobsSet(msgspec.Struct, tag="knobs_set", kw_only=True):
    """The answer to `SetKnobs`: the knobs before and after, by model, and why a change was refused, if it was."""

    query_id: str
    before: dict[str, Knobs]
    knobs: dict[str, Knobs]
    error: str | None = None
    error_param: str | None = None


class AdaptersSet(msgspec.Struct, tag="adapters_set", kw_only=True):
    """The answer to `LoadAdapter` and `UnloadAdapter`: the model's adapters now, and why it was refused, if so."""

    query_id: str
    adapters: list[AdapterInfo]
    error: str | None = None
    error_param: str | None = None


class BlocksExported(msgspec.Struct, tag="blocks_exported", kw_only=True):
    """The answer to `ExportBlocks`; a frame without blocks means that none is cached from there on."""

    query_id: str
    frame: BlockFrame | None = None
    error: str | None = None
    reason: KVTransferFailure = "refused"


class BlocksImported(msgspec.Struct, tag="blocks_imported", kw_only=True):
    """The answer to `ImportBlocks`: how many of the chain's blocks, from the first on, are cached now."""

    query_id: str
    held: int = 0
    error: str | None = None
    reason: KVTransferFailure = "refused"


class Hello(msgspec.Struct, tag="hello", kw_only=True):
    """First event of a connection: the models of the core."""

    models: list[ModelInfo]


class Goodbye(msgspec.Struct, tag="goodbye", kw_only=True):
    """Last event of a connection: why the core ends."""

    reason: str
    died: bool = False
    """Whether it ends without having been stopped."""
    error: tuple[str, str] | None = None
    """The class and the message of what ended it, if the operator can mend that (`inference_core.errors`)."""


class CoreHealth(msgspec.Struct, tag="health", kw_only=True):
    """A report of the core's watchdog: why the core does not advance, or None once it does again."""

    stuck: str | None


Event = (
    SequenceOutput | CoreStats | KnobsSet | AdaptersSet | BlocksExported | BlocksImported | Hello | Goodbye | CoreHealth
)


def refusal(request_id: str, error: CoreError) -> SequenceOutput:
    """Return the only output of a refused request."""
    output = SequenceOutput(request_id=request_id, index=0, token_ids=[], finish_reason="error")
    blame(output, error)
    return output


def blame(output: SequenceOutput, error: CoreError) -> None:
    """Set `error` as the reason of an output that ends a request."""
    kind: ErrorKind = "internal"
    if isinstance(error, InvalidEndError):
        kind = "invalid_end"
    elif isinstance(error, InvalidRequestError):
        kind = "invalid"
    elif isinstance(error, QueueFullError):
        kind = "overloaded"
    output.error, output.error_param, output.error_kind = str(error), getattr(error, "param", None), kind


def failure(output: SequenceOutput) -> CoreError:
    """Return the error that an output reports, for a caller that expected a result."""
    message = output.error or f"the core ended {output.request_id}: {output.finish_reason}"
    if output.error_kind == "invalid":
        return InvalidRequestError(message, output.error_param)
    if output.error_kind == "invalid_end":
        return InvalidEndError(message, output.error_param)
    return QueueFullError(message) if output.error_kind == "overloaded" else CoreError(message)


MENDABLE: tuple[type[CoreError], ...] = (
    DeviceFailedError,
    DevicesMissingError,
    MemoryPlanError,
    MeshError,
    ModelFileError,
    PrefixError,
)
"""Logged without a traceback; every other error that ends a core is a bug."""

_BY_NAME = {kind.__name__: kind for kind in MENDABLE}


def sent_error(cause: BaseException | None) -> tuple[str, str] | None:
    """Return the class and the message of a mendable error, of any other None."""
    return (type(cause).__name__, str(cause)) if isinstance(cause, MENDABLE) else None


def received_error(sent: tuple[str, str] | None) -> CoreError | None:
    """Return the error that `sent_error` named; None without one, and for a class that only the sender knows."""
    if sent is None or (kind := _BY_NAME.get(sent[0])) is None:
        return None
    return kind(sent[1])
