"""A core without models' weights, for benchmarks of pages: it says what it serves and refuses every request."""

from collections.abc import Mapping, Sequence

from inference_core.errors import InvalidRequestError, KVTransferError
from inference_core.protocol import (
    AdapterInfo,
    AddRequest,
    CoreStats,
    Knobs,
    KnobValue,
    ModelInfo,
    ModelStats,
    SequenceOutput,
)
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame


class IdleCore:
    """Names its models, computes nothing."""

    def __init__(self, models: Sequence[ModelInfo]) -> None:
        self.model_infos = list(models)

    @property
    def has_work(self) -> bool:
        return False

    @property
    def pause_seconds(self) -> float:
        return 0.0

    @property
    def knobs(self) -> dict[str, Knobs]:
        return {info.name: Knobs() for info in self.model_infos}

    def set_knobs(self, changes: Mapping[str, KnobValue], model: str | None, keep: bool) -> None:
        """There is nothing to change."""

    def load_adapter(self, model: str, name: str, path: str) -> None:
        raise InvalidRequestError(f"{model} computes nothing and takes no adapters", "adapter")

    def unload_adapter(self, model: str, name: str) -> None:
        raise InvalidRequestError(f"{model} has no adapter {name!r}", "adapter")

    def adapters(self, model: str) -> list[AdapterInfo]:
        return []

    def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        raise KVTransferError(f"{chain.model} computes nothing that could be handed over", "incompatible")

    def import_blocks(self, chain: BlockChain, frame: BlockFrame | None) -> int:
        return 0

    def close(self) -> None:
        """There is nothing to let go of."""

    def add(self, request: AddRequest) -> None:
        raise InvalidRequestError(f"{request.model} computes nothing", "model")

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        return []

    def step(self) -> list[SequenceOutput]:
        return []

    def stats(self, query_id: str) -> CoreStats:
        models = [
            ModelStats(
                name=info.name,
                running=0,
                waiting=0,
                blocks_in_use=0,
                blocks_cached=0,
                blocks_total=0,
                prompt_tokens=0,
                generated_tokens=0,
                prefix_hit_tokens=0,
                prefix_query_tokens=0,
                preemptions=0,
                step_seconds_mean=0.0,
                predicted_wait_seconds=0.0,
                knobs=Knobs(),
            )
            for info in self.model_infos
        ]
        return CoreStats(query_id=query_id, steps=0, arena_bytes=0, slab_bytes=0, slabs_free=0, models=models)
