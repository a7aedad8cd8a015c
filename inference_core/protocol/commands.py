"""Commands into a core, each a struct with the tag that names it on the wire."""

import msgspec

from inference_core.protocol.evidence import EvidenceRequest
from inference_core.protocol.knobs import KnobValue
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.protocol.sampling_params import SamplingParams


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


Command = AddRequest | AbortRequest | QueryStats | SetKnobs | LoadAdapter | UnloadAdapter | ExportBlocks | ImportBlocks
