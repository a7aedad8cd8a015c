"""What the retraining job asks of its training process, and the files in which they exchange it."""

import msgspec

ORDER, ROWS, RESULT = "order.json", "rows.safetensors", "result.json"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to train. `root_artefact` has the encoder, `incumbent` is to be beaten; both are artefact folders.

    `models`: names of the serving catalogue's models by tier, as the manifest keeps them. Window: ISO 8601 or None.
    `prior` [4][tiers]: P(good enough) of the catalogue's tiers by class before anything was learned of them. `changes`:
    by tier, since when its answers are others, in epoch seconds.
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


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the process's standard output; `share` in [0, 1] of the work is done."""

    step: str
    share: float
