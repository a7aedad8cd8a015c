"""What follows when an encoder is ready: heads and memory above it, curves, the report, and the artefact on disk."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from classifier.artefact import model_from_tensors, model_tensors, save_artefact
from classifier.encoder import StoredEncoder
from classifier.routing_input import RoutingInput
from classifier.training.dataset import OutcomeRow
from classifier.training.encoded_rows import EncodedRows
from classifier.training.fit import fit_heads
from classifier.training.train import Candidate, Progress, first_manifest, report_on, with_curves


def train_over_encoder(
    encoder: StoredEncoder,
    encoded: dict[str, EncodedRows],
    prompts: dict[str, list[RoutingInput]],
    root: Path,
    *,
    used: Sequence[OutcomeRow],
    groups: list[str],
    fit_on: str = "train",
    counts: Mapping[str, int] | None = None,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """The artefact `root/<version>/` over a frozen `encoder`: heads of the rows `fit_on`, calibrated on "valid",
    measured on "test" and, where there is one, on "unseen" beside what "train" says of the domains.

    `encoded` and `prompts` hold the same rows; `used` are those whose hash the manifest keeps, `groups` the domains by
    their numbers, `counts` what else the manifest counts.
    """
    progress("fitting the heads", 0.85)
    base = encoded[fit_on].joined(encoded["valid"])
    heads, memory = fit_heads(base, seed=seed)
    tensors = model_tensors(encoder.tensors(), heads, memory)
    manifest = first_manifest(encoder, tensors, base, groups, list(used), seed)
    manifest = msgspec.structs.replace(manifest, counts={**manifest.counts, **(counts or {})})
    manifest = with_curves(manifest, tensors, encoded["valid"])
    model = model_from_tensors(manifest, tensors, registry=root)
    progress("evaluating", 0.9)
    measured = report_on(model, encoded, prompts, "test")
    unseen = report_on(model, encoded, prompts, "unseen") if "unseen" in encoded else None
    manifest = msgspec.structs.replace(manifest, metrics=msgspec.to_builtins(measured))
    folder = save_artefact(root, manifest, tensors, base.tensors())
    progress("done", 1.0)
    return Candidate(folder, model_from_tensors(manifest, tensors, registry=root), measured, unseen)
