"""manifest.json of an artefact: how it was trained, its metrics, and the hashes of its files."""

from typing import Any

import msgspec

SCHEMA_VERSION = 1


class TrainingWindow(msgspec.Struct, frozen=True, kw_only=True):
    """When the outcomes were collected (ISO 8601; None if the source does not say) and their source."""

    start: str | None
    end: str | None
    source: str


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What one level of retraining learned, on `labels` labels that it was not fitted on: `gain`, the reduction of
    squared error (in [0, 1]) against the table, of the table against the prior, and `utility` of its decisions
    likewise, with one-sided bounds of 95%. The last `adopted` one decides. Older versions have no utility."""

    name: str
    labels: int
    gain: float
    low: float
    high: float
    adopted: bool
    utility: float = 0.0
    utility_low: float = 0.0
    utility_high: float = 0.0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an artefact.

    `tiers`: of the catalogue that it learned from, else of the outcomes that it was trained on. `heads`: names of the
    outcomes in the tensors' order ("no_worse_1", …, "correct_1", …). `catalogue_fingerprint`: of the models whose
    outcomes were measured; predictions for any other catalogue are a prior. `files`: name → SHA-256. `groups`: names of
    the clusters that `base.safetensors` numbers. `metrics`: numbers, such as the count of erased rows. `adequacy`:
    P(tier k's answer is as good as the strongest's) by complexity class, as learned for this catalogue, [4][tiers - 1];
    None: nothing was learned, and a prior replaces it. `levels`: of the retraining that made it, simplest first.
    """

    schema_version: int
    version: str
    parent: str | None
    tiers: int
    heads: list[str]
    feature_names: list[str]
    encoder: dict[str, Any]
    catalogue_fingerprint: str
    models: dict[str, list[str | None]]
    training_window: TrainingWindow
    counts: dict[str, int]
    data_sha256: str
    seed: int
    groups: list[str]
    metrics: dict[str, Any]
    files: dict[str, str]
    adequacy: list[list[float]] | None = None
    levels: list[Level] = []
