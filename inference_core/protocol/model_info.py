"""What a client has to know of a loaded model and its adapters."""

import msgspec

from inference_core.protocol.kv_blocks import KVIdentity


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
