"""Commands into a core, each a struct with the tag that names it on the wire."""

import msgspec

from inference_core.protocol.evidence import EvidenceRequest
from inference_core.protocol.knobs import KnobValue
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.protocol.sampling_params import SamplingParams

LAST_CLASS = 2
"""The last priority class of what somebody asked for."""


class AddRequest(msgspec.Struct, frozen=True, tag="add", kw_only=True):
    """Generate `n` continuations of one prompt. `request_id` is unique among live requests.

    Its fields are flat and have defaults, although a tier's request has seven of them too: while one of both is
    replaced, a gateway and a core of different versions meet, and each leaves out what it does not know.

    `priority`: 0 interactive-critical, 1 normal, 2 batch; smaller goes first, and waiting raises a request's priority.
    `idle`: computed only while the core has no other work (`scheduling.priority`), and no part of its load.
    `deadline`: when the first token is due; orders requests of one priority. If `strict_deadline`, the request is
    refused, or ended as "overloaded", once its first token cannot come in time.
    `salt`: separates prefix-cache entries (the tenant); equal salts may share blocks.
    `adapter`: the name of a loaded adapter to compute the answer with; "" for the base model. Its content separates
    prefix-cache entries too.
    `speculate`: whether its tokens may be drafted, as far as the model's knobs allow it (SPEC SD-06).
    `drawn_from`: the position in the prompt from which on this model drew its tokens before; None: it drew none. These
    are computed as they were then, so that their cached blocks are found where prompts have an arithmetic of their own.
    `evidence`: what else to return about the prompt and the tokens drawn. `embed`: compute only the layers up to
    `evidence.layer`, of the prompt alone, and draw no token: the one output, with the reason "stop", carries the hidden
    state. `prefill`: compute only the prompt's full blocks that the prefix cache can hold, and draw no token: after the
    one output, with the reason "stop", `ExportBlocks` finds them (SPEC BS-08).
    """

    request_id: str
    model: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    n: int = 1
    priority: int = 1
    idle: bool = False
    arrival: float = 0.0
    deadline: float | None = None
    strict_deadline: bool = False
    salt: str = ""
    speculate: bool = True
    adapter: str = ""
    evidence: EvidenceRequest | None = None
    embed: bool = False
    prefill: bool = False
    drawn_from: int | None = None


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """Forget a request, or its choice `index` alone; its memory is free before the next step.

    A choice aborted alone gets a last output with the reason "abort"; a request aborted as a whole gets no more
    outputs. Unknown or ended ones are ignored.
    """

    request_id: str
    index: int | None = None


class QueryStats(msgspec.Struct, frozen=True, tag="stats"):
    """Ask for a `CoreStats` event carrying the same `query_id`."""

    query_id: str


class SetKnobs(msgspec.Struct, frozen=True, tag="knobs"):
    """Change the named knobs of `model`, or of every model; answered by `KnobsSet`.

    All of `changes` apply between two steps, or none. None resets a knob to its start value. `keep` stores the change
    for later processes of the core. Empty `changes` query the current knobs.
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
    """Return the content of the chain's blocks from block `first` on that are cached on the device, up to `most_bytes`
    but at least one; answered by `BlocksExported`. No block is kept for it: an eviction between two of these ends the
    copy."""

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
