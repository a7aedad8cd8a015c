"""The catalogue: which models there are and what the four tiers make of them, as typed data."""

import hashlib

import msgspec

from inference_core.model_spec import CoreSpec
from tiers.gpu_group import GpuGroupSpec
from tiers.tier_spec import Count, TierSpec


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models and tiers of one installation; `tiers[k-1]` is tier k.

    `core` is what this machine's CPU serves; `gpu_groups` are device groups described for planning.
    `reference_prompt_tokens` is the mean prompt length that the prices were derived for.
    """

    name: str
    description: str = ""
    reference_prompt_tokens: Count = 200
    core: CoreSpec = msgspec.field(default_factory=lambda: CoreSpec(models=[]))
    gpu_groups: list[GpuGroupSpec] = []
    tiers: list[TierSpec]

    def tier(self, number: int) -> TierSpec:
        """The spec of tier `number` (1 to 4)."""
        return self.tiers[number - 1]

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides which answers the tiers give (not of prices): labels are valid for one of these."""
        models = {m.name: [m.path, m.compute] for m in self.core.models}
        models |= {m.name: [m.path, m.weights] for group in self.gpu_groups for m in group.models}
        answers = [
            [t.number, models.get(t.model_name), t.remote and [t.remote.base_url, t.remote.model], t.policy]
            for t in self.tiers
        ]
        return hashlib.sha256(msgspec.json.encode(answers)).hexdigest()[:16]
