"""What a client has to know of a loaded model and its adapters."""

import msgspec

from inference_core.protocol.kv_blocks import KVIdentity


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of a loaded model. `model_path` lets it build the tokeniser itself.

    `num_layers` and `hidden_size` are of the hidden states that it can return (`EvidenceRequest`); 0 if its runner
    returns no evidence. `weights`: content hash of the model's files (`loaders.fingerprint`). `kv`: the identity of its
    KV blocks; None if they cannot be transferred. `adapters`: content hashes of the adapters that were loaded when the
    client connected, by name.
    """

    name: str
    model_path: str
    max_context: int
    vocab_size: int
    weight_bytes: int
    compute: str
    weights: str = ""
    num_layers: int = 0
    hidden_size: int = 0
    kv: KVIdentity | None = None
    adapters: dict[str, str] = {}


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter: `rank` is the largest of its layers', `bytes` its size in a slot.

    `resident`: whether it is in a slot; `running`: how many sequences run with it; `leaving`: whether it is unloaded
    when the last request with it ends; `listed`: whether the core's specification names it.
    """

    name: str
    path: str
    rank: int
    bytes: int
    resident: bool
    running: int
    leaving: bool
    listed: bool = False
