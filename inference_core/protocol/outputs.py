"""Events out of a core: outputs of requests, answers to commands, and the state of the connection."""

from typing import Literal

import msgspec

from inference_core.errors import KVTransferFailure
from inference_core.protocol.evidence import Evidence
from inference_core.protocol.knobs import Knobs
from inference_core.protocol.kv_blocks import BlockFrame
from inference_core.protocol.model_info import AdapterInfo, ModelInfo
from inference_core.protocol.stats import CoreStats
from inference_core.protocol.step_times import NO_TIMES, StepTimes

FinishReason = Literal["stop", "length", "abort", "error"]
ErrorKind = Literal["invalid", "invalid_end", "overloaded", "internal"]


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probability of the drawn token and of the most likely ones, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class SequenceOutput(msgspec.Struct, tag="output", kw_only=True, omit_defaults=True):
    """New tokens of one choice of one request after one step.

    `finish_reason` is set exactly once per choice, on its last output. A token that ended the
    choice (EOS or a stop token) is not in `token_ids`; it is `stop_token_id`.
    All counts are set on the choice's last output, `cached_tokens` on every one, for clients that close a request early
    (a stop string). `times` so far are on the last output and on each before which they have changed: the first one
    with tokens, and the next one after a preemption (SPEC GW-01). An error of one choice ends the whole request.
    `error_kind` says what the caller can do: change the request, try later or elsewhere, or report a bug.
    `prompt_logprobs` come chunk by chunk, in outputs of choice 0 without tokens, all before its first token.
    `evidence`: what the request asks for about this output's tokens; the first output carries the hidden state.
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
    times: StepTimes = NO_TIMES
    prompt_logprobs: list[TokenLogprob] | None = None
    evidence: Evidence | None = None


class KnobsSet(msgspec.Struct, tag="knobs_set", kw_only=True):
    """The answer to `SetKnobs`: the knobs before and after, by model, and why a change was refused, if it was."""

    query_id: str
    before: dict[str, Knobs]
    knobs: dict[str, Knobs]
    error: str | None = None
    error_param: str | None = None


class AdaptersSet(msgspec.Struct, tag="adapters_set", kw_only=True):
    """The answer to `LoadAdapter` and `UnloadAdapter`: the adapters of the model now, and why the command was
    refused, if it was."""

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
    """Last event of a connection: why the core ends. `died`: it ends without having been stopped. `error`: the class
    and the message of what ended it, if the operator can mend that (`inference_core.errors`)."""

    reason: str
    died: bool = False
    error: tuple[str, str] | None = None


class CoreHealth(msgspec.Struct, tag="health", kw_only=True):
    """A report of the core's watchdog: why the core does not advance, or None once it does again."""

    stuck: str | None


Event = (
    SequenceOutput | CoreStats | KnobsSet | AdaptersSet | BlocksExported | BlocksImported | Hello | Goodbye | CoreHealth
)
