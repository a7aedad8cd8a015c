"""A draft model that is placed with its target: loaded into the same core, divided over the same devices."""

import msgspec

from inference_core.kv_cache.layout import KVDtype
from inference_core.model_config import ModelConfig
from inference_core.parallel.topology.mesh import Mesh
from inference_core.parallel.topology.splits import RankShare, divide
from inference_core.placement.weight_formats import WeightFormat, split_units_of


class PlacedDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the target's, every device holds its share of the draft's weights, and of the draft's own keys and values
    for every token."""

    name: str
    config: ModelConfig
    form: WeightFormat
    kv_dtype: KVDtype = "float16"

    def shares(self, mesh: Mesh, *, uneven: bool) -> list[RankShare]:
        """What each rank of `mesh` holds of it. Raises MeshError if it cannot be divided so."""
        return divide(self.config, mesh, split_units_of(self.config, self.form), uneven=uneven)
