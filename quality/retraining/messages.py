"""The messages between the retraining job and its training process, exchanged as files."""

import msgspec

from quality.comparison.decision_gain import Serving

ORDER, ROWS, RESULT = "order.json", "rows.safetensors", "result.json"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to train. `root_artefact` has the encoder and `incumbent` is the version to beat; both are artefact folders.

    `models`: names of the serving catalogue's models by tier, for the manifest. Window: ISO 8601 or None. `prior`
    [4][tiers]: P(good enough) of the catalogue's tiers by class before learning. `changes`: by tier, the time (epoch
    seconds) since when its answers are different. `serving`: the costs and the target at which decisions are compared.
    """

    root_artefact: str
    incumbent: str
    registry: str
    catalogue_fingerprint: str
    models: dict[str, list[str | None]]
    window_start: str | None
    window_end: str | None
    seed: int
    changes: dict[int, float] = {}
    prior: list[list[float]]
    serving: Serving


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the process's standard output; `share` in [0, 1] of the work is done."""

    step: str
    share: float
