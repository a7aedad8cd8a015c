"""Whether an artefact may serve: whole files, finite numbers, the right models, and a policy that keeps its promise."""

import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from classifier.artefact import Tensors, load_manifest, load_model_tensors, model_from_tensors
from classifier.curve import lambda_for, tau_for
from classifier.decision import PolicyInputs, Prediction
from classifier.errors import ArtefactError, PolicyInputsError
from classifier.fallback import fallback_of
from classifier.manifest import CurvePoint, Manifest
from classifier.outcome_model import OutcomeModel
from classifier.policy import decide

# NaN marks an outcome that nobody observed; everywhere else it is damage.
MAY_BE_NAN = ("memory.labels",)
TARGETS = tuple(np.linspace(0.0, 1.0, 41).tolist())
TRIALS = 32


def accepted_artefact(
    folder: Path, catalogue_fingerprint: str = "", *, tiers: int | None = None, must_be_measured: bool = False
) -> OutcomeModel:
    """The model in `folder` after every check; some milliseconds beyond loading it.

    `tiers`: of the serving catalogue, where that is known. A version for another number of tiers is a prior: the
    catalogue is routed by class, and only the version's encoder and memory are used. `must_be_measured`: refuse one
    whose outcomes were measured on other models than the catalogue's. Raises `ArtefactError` with the reason.
    """
    manifest = load_manifest(folder)
    _check_files(folder, manifest)
    tensors = load_model_tensors(folder)
    check_finite(manifest, tensors)
    model = model_from_tensors(manifest, tensors, catalogue_fingerprint, folder.parent)
    if tiers is not None and manifest.tiers != tiers and model.kind == "measured":
        raise _refused(manifest, f"it is for {manifest.tiers} tiers, the catalogue has {tiers}")
    if must_be_measured and model.kind != "measured":
        raise _refused(
            manifest,
            f"its outcomes are those of the models {manifest.catalogue_fingerprint!r}, the catalogue's are "
            f"{catalogue_fingerprint!r}, and a prior is not wanted here",
        )
    check_policy(manifest)
    return model


def check_finite(manifest: Manifest, tensors: Tensors) -> None:
    """Raises `ArtefactError` for a weight that is NaN or infinite, or a probability outside [0, 1]."""
    for name, tensor in tensors.items():
        if not np.issubdtype(tensor.dtype, np.floating):
            continue
        bad = np.isinf(tensor) if name in MAY_BE_NAN else ~np.isfinite(tensor)
        if bad.any():
            raise _refused(manifest, f"{name} holds {int(bad.sum())} numbers that are not finite")
    for name in ("memory.labels", "memory.base_rates"):
        values = tensors[name].astype(np.float32) if name in tensors else np.zeros(0, np.float32)
        if ((values < 0) | (values > 1)).any():
            raise _refused(manifest, f"{name} holds probabilities outside 0 to 1")


def check_policy(manifest: Manifest) -> None:
    """Raises `ArtefactError` if a higher quality target could lower a tier, by the curves of this artefact.

    The parameters read off the curves must go one way, and on random predictions so must the tier that is chosen.
    """
    curves = manifest.curves
    try:
        _check_curve(manifest, "lambda_rule", curves.lambda_rule, lambda_for, falls=True)
        _check_curve(manifest, "tau_rule", curves.tau_rule, tau_for, falls=False)
        _check_choices(manifest)
    except PolicyInputsError as error:
        raise _refused(manifest, str(error)) from error
    fallback = fallback_of(manifest)
    if not (0 <= fallback.threshold <= 1 and 1 <= fallback.tier <= manifest.tiers):
        raise _refused(manifest, f"its fallback for novel prompts is {fallback}")
    if not 0 <= curves.default_quality_target <= 1:
        raise _refused(manifest, f"its quality target is {curves.default_quality_target}; it must lie in 0 to 1")


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Every file of the manifest, those that serving does not read too: retraining would find out too late."""
    if not manifest.files:
        raise _refused(manifest, "its manifest names no files")
    for name, wanted in manifest.files.items():
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise _refused(manifest, f"{folder / name} cannot be read: {error}") from error
        if found != wanted:
            raise _refused(manifest, f"{folder / name} was changed or cut short: its SHA-256 is {found[:12]}…")


def _check_curve(
    manifest: Manifest,
    name: str,
    points: Sequence[CurvePoint],
    read: Callable[[Sequence[CurvePoint], float], float],
    *,
    falls: bool,
) -> None:
    if not points:
        raise _refused(manifest, f"its curve {name} has no points")
    if any(a.parameter >= b.parameter for a, b in pairwise(points)):
        raise _refused(manifest, f"the parameters of its curve {name} do not ascend")
    if not all(0 <= p.no_worse <= 1 and np.isfinite(p.parameter) and p.parameter >= 0 for p in points):
        raise _refused(manifest, f"its curve {name} holds points outside 0 to 1, or parameters that are no parameters")
    for (low, a), (high, b) in pairwise([(t, read(points, t)) for t in TARGETS]):
        if (b > a) if falls else (b < a):
            raise _refused(
                manifest,
                f"its policy is not monotone: by {name} the quality targets {low:.2f} and {high:.2f} give {a:.4g} and "
                f"{b:.4g}, which lowers tiers as the target rises",
            )


def _check_choices(manifest: Manifest) -> None:
    curves, tiers = manifest.curves, manifest.tiers
    rng = np.random.default_rng(0)
    prices = curves.prices or [float(k) for k in range(1, tiers + 1)]
    rules = [(lambda_for(curves.lambda_rule, t), tau_for(curves.tau_rule, t), t) for t in TARGETS]
    for p in rng.uniform(0.005, 0.995, (TRIALS, tiers - 1)).tolist():
        prediction = Prediction(p_ok=[*p, 1.0], kind="prior", novelty=0.0, classifier_version=manifest.version)
        chosen = [
            decide(
                PolicyInputs(
                    prediction=prediction,
                    costs=list(prices),
                    rule=curves.default_rule,
                    quality_target=target,
                    lambda_=lambda_,
                    tau=tau,
                )
            ).tier
            for lambda_, tau, target in rules
        ]
        if chosen != sorted(chosen):
            raise _refused(
                manifest,
                f"its policy is not monotone: for p_ok {[round(x, 3) for x in p]} a higher target lowers the tier",
            )


def _refused(manifest: Manifest, reason: str) -> ArtefactError:
    return ArtefactError(f"artefact {manifest.version} is refused: {reason}. Use another version or train one.")
