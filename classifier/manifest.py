"""manifest.json of an artefact: what was trained, on what, how well it does, and the hashes that hold it together."""

from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One operating point of a rule on the valid split, at the reference prices.

    `parameter`: lambda or tau; `no_worse`: share of answers no worse than the strongest tier's; `quality`: mean score
    of the answers; `cost_share`: cost relative to always using the strongest tier.
    """

    parameter: float
    no_worse: float
    quality: float
    cost_share: float


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """Cost-quality curves of both rules, parameters ascending, and the default read off them."""

    rows: int
    prices: list[float]
    lambda_rule: list[CurvePoint]
    tau_rule: list[CurvePoint]
    default_rule: Literal["lambda", "tau"]
    default_quality_target: float


class TrainingWindow(msgspec.Struct, frozen=True, kw_only=True):
    """When the outcomes were collected (ISO 8601; None where the source does not say) and where they come from."""

    start: str | None
    end: str | None
    source: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about an artefact but its numbers.

    `tiers`: of the catalogue that it learned of, else of the outcomes that it was trained on. `heads`: names of the
    outcomes in the tensors' order ("no_worse_1", …, "correct_1", …). `catalogue_fingerprint`: of the models whose
    outcomes were measured; predictions for any other catalogue are a prior. `files`: name → SHA-256. `groups`: names of
    the clusters that `base.safetensors` numbers. `metrics`: the report as data. `adequacy`: P(tier k's answer is as
    good as the strongest's) of a prompt of each complexity class, as learned of this catalogue, [4][tiers - 1]; None:
    nothing was learned, and a prior stands for it. `ordinal`: the heads are thresholds of one score.
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
    curves: Curves
    metrics: dict[str, Any]
    files: dict[str, str]
    ordinal: bool = False
    adequacy: list[list[float]] | None = None
