"""P(an answer is good) from the prompt's own probability and the answer's evidence: one logistic per judged tier.

Evidence is a fixed vector: token uncertainty, length, form, agreement (RT-11). Text alone is enough: values that a
server does not report are marked as unknown. Quantiles of token uncertainty over the whole answer rank right answers
better than means do (Gupta et al. 2024, "Language model cascades: token-level uncertainty and beyond"); agreement of
samples: Wang et al. 2023, "Self-consistency". A model belongs to one tier's model under one decoding policy and is
refused for any other (`EvidenceModels.model`). The folder of models, `probes.safetensors` and a manifest, stands in a
registry of its own.
"""

import hashlib
import math
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from classifier.errors import ArtefactError
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.answer_length import AnswerLength
from inference_core.io.files import prepare_types
from inference_core.tokenization.prompt_size import FITTED_CHARS_PER_TOKEN

Float = npt.NDArray[np.float32]

EVIDENCE_NAMES = (
    "uncertainty_known",
    "uncertainty_p10",
    "uncertainty_p50",
    "uncertainty_p90",
    "uncertainty_worst",
    "log_length",
    "is_empty",
    "cut_off",
    "hedges",
    "refusal",
    "ends_mid_sentence",
    "repetition",
    "code_unclosed",
    "json_invalid",
    "has_number",
    "agreement_known",
    "agreement",
)
"""What each number of the vector is; models fitted on other names are refused."""

# In a longer text only the start and the end are searched for phrases and repetition.
MAX_CHARS = 6_000
NGRAM = 4
MAX_HEDGES = 4

_HEDGE = re.compile(
    r"\b(?:i(?:'m| am) not (?:entirely |completely |quite )?(?:sure|certain)|i think|i believe|i guess|it seems"
    r"|it is (?:possible|unclear)|probably|possibly|perhaps|might be|may be|not enough information|hard to say"
    r"|wait,|actually,|let me (?:re-?check|reconsider|try again)"
    r"|vielleicht|vermutlich|ich (?:glaube|vermute)|nicht sicher|peut-être|je (?:pense|crois)|probablement|pas sûre?"
    r"|quizás?|tal vez|creo que|probablemente|no estoy segur[oa]|talvez|acho que|forse|credo che)(?!\w)"
    r"|也许|可能是|我不确定|たぶん|かもしれ|возможно|наверное",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) sorry|i apologi[sz]e|i (?:can(?:no|')t|am (?:not able|unable) to|do(?:n't| not) (?:know|have))"
    r"|as an? (?:ai|language model)|unable to (?:answer|help|assist|provide)"
    r"|es tut mir leid|ich kann (?:leider |das )?nicht|je suis désolée?|je ne (?:peux|sais) pas"
    r"|lo siento|no puedo|não posso|mi dispiace|non posso)(?!\w)"
    r"|抱歉|对不起|我无法|申し訳|できません|извините|я не могу",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d")
# A text with fewer words has no sentence.
_SENTENCE_WORDS = 8


def evidence_features(
    text: str, finish_reason: str | None = None, uncertainty: Sequence[float] = (), agreement: float | None = None
) -> Float:
    """Return the evidence of an answer, float32 [len(EVIDENCE_NAMES)], finite for any text.

    `uncertainty`: of each token of the answer in nats, at least 0: the entropy of its distribution if the model reports
    it, else its negative log-probability; empty if unknown. `agreement`: in [0, 1], of another answer's final result
    with this one's; None without another answer.
    """
    shown = text if len(text) <= MAX_CHARS else text[: MAX_CHARS // 2] + text[-MAX_CHARS // 2 :]
    last_line = shown.rstrip().rpartition("\n")[2]
    values = (
        *_quantiles(uncertainty),
        math.log1p(len(text) / FITTED_CHARS_PER_TOKEN),
        not text.strip(),
        finish_reason == "length",
        min(len(_HEDGE.findall(shown)), MAX_HEDGES),
        _REFUSAL.search(shown) is not None,
        _ends_mid_sentence(last_line),
        _repetition(shown),
        text.count("```") % 2,
        _is_broken_json(text),
        _NUMBER.search(last_line) is not None,
        agreement is not None,
        agreement or 0.0,
    )
    return np.asarray(values, np.float32)


def with_agreement(evidence: Float, agreement: npt.NDArray[np.floating] | float) -> Float:
    """Return `evidence` [..., e] with the known `agreement` [...] of another answer."""
    filled = evidence.copy()
    filled[..., EVIDENCE_NAMES.index("agreement_known")] = 1.0
    filled[..., EVIDENCE_NAMES.index("agreement")] = agreement
    return filled


def _quantiles(uncertainty: Sequence[float]) -> tuple[float, ...]:
    """Return a flag, the 10th, 50th, 90th percentile and the maximum, on a log scale: few tokens are very uncertain."""
    values = np.nan_to_num(np.asarray(uncertainty, np.float64), nan=0.0, posinf=1e6, neginf=0.0)
    if not len(values):
        return (0.0,) * 5
    quantiles = np.quantile(np.clip(values, 0.0, 1e6), (0.1, 0.5, 0.9, 1.0))
    return (1.0, *np.log1p(quantiles).tolist())


def _ends_mid_sentence(last_line: str) -> bool:
    return len(_WORD.findall(last_line)) >= _SENTENCE_WORDS and (last_line[-1].isalpha() or last_line[-1] in ",;:-(")


def _repetition(text: str) -> float:
    """Return the share of `NGRAM`-word runs that occurred before."""
    words = _WORD.findall(text.casefold())
    runs = list(zip(*(words[offset:] for offset in range(NGRAM)), strict=False))
    return 1.0 - len(set(runs)) / len(runs) if runs else 0.0


def _is_broken_json(text: str) -> bool:
    """Return whether a text looks like a JSON object or array but does not parse."""
    stripped = text.strip()
    if not stripped.startswith(("{", '["', "[{")):
        return False
    try:
        msgspec.json.decode(stripped)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return True
    return False


Tensors = dict[str, npt.NDArray[np.generic]]
Label = Literal["no_worse", "correct"]

P_MIN, P_MAX = 0.005, 0.995
CLIP = 5.0  # standard deviations


class EvidenceHead(NamedTuple):
    """Logistic regressions over standardised evidence and the logit of the prompt's own probability. The t columns are
    the judged tiers.
    """

    mean: Float
    """[e]."""
    scale: Float
    """[e]."""
    coef: Float
    """[e, t]."""
    before: Float
    """[t]: the weight of the prompt's logit of the same column."""
    bias: Float
    """[t]."""

    def logits(self, evidence: Float, prompt: Float) -> Float:
        """Return logits [..., t] from `evidence` [..., e] and the prompt's logits [..., t]."""
        logits: Float = standardised(evidence, self.mean, self.scale) @ self.coef + prompt * self.before + self.bias
        return logits


class JudgedTier(msgspec.Struct, frozen=True, kw_only=True):
    """The tier whose answers a model judges, and its `Catalog.tier_fingerprint`."""

    tier: int
    model: str
    fingerprint: str
    judges: list[int]
    """The tiers of the columns, its own first; a bad answer is also evidence about the prompt, and so about the answers
    of the tiers above.
    """
    reads_agreement: bool = False
    """Whether it was fitted with second samples."""


class EvidenceModel:
    """The judge of one tier's answers. Immutable; thread-safe."""

    def __init__(self, spec: JudgedTier, head: EvidenceHead) -> None:
        self.spec = spec
        self._head = head

    def p_ok(self, evidence: Float, prior: list[float]) -> list[float]:
        """Update `prior`, P(good) by tier from the prompt alone, by `evidence` [e] for the judged tiers."""
        before = np.asarray([logit(prior[tier - 1]) for tier in self.spec.judges], np.float32)
        p = list(prior)
        for tier, value in zip(self.spec.judges, self._head.logits(evidence, before).tolist(), strict=True):
            p[tier - 1] = min(max(1.0 / (1.0 + math.exp(-value)), P_MIN), P_MAX)
        return p

    def p_ok_by_agreement(self, evidence: Float, prior: list[float]) -> tuple[list[float], list[float]]:
        """Return `p_ok` if a second sample disagreed, and if it agreed."""
        disagreed, agreed = (self.p_ok(with_agreement(evidence, value), prior) for value in (0.0, 1.0))
        return disagreed, agreed


class EvidenceModels:
    """The evidence models of a catalogue's tiers and the answer-length model, from one artefact.

    `label`: what the probabilities are of; `no_worse` if the strongest tier's outcomes were collected too.
    `length_fingerprints`: of the tiers of `lengths`, in order.
    """

    def __init__(
        self,
        version: str,
        label: Label,
        models: list[EvidenceModel],
        lengths: AnswerLength | None,
        length_fingerprints: Sequence[str] = (),
    ) -> None:
        self.version, self.label, self.lengths = version, label, lengths
        self._length_fingerprints = list(length_fingerprints)
        self.tiers = {model.spec.tier: model for model in models}

    def model(self, tier: int, fingerprint: str) -> EvidenceModel | None:
        """Return the model of `tier`, or None. Raises `ArtefactError` if it belongs to another model or policy."""
        model = self.tiers.get(tier)
        if model is not None and model.spec.fingerprint != fingerprint:
            raise ArtefactError(
                f"probes {self.version}: tier {tier}'s was fitted on '{model.spec.model}' ({model.spec.fingerprint}), "
                f"which is not what answers there now ({fingerprint}). Collect outcomes and fit them again."
            )
        return model

    def lengths_for(self, fingerprints: Mapping[int, str]) -> AnswerLength | None:
        """Return the answer-length model for the tiers unchanged since it was measured; `fingerprints` by tier."""
        if self.lengths is None:
            return None
        measured = zip(self.lengths.tiers, self._length_fingerprints, strict=False)
        return self.lengths.of_tiers([tier for tier, print_ in measured if fingerprints.get(tier) == print_])


def standardised(evidence: Float, mean: Float, scale: Float) -> Float:
    """Return evidence [..., e] in standard deviations, clipped so that outliers do not extrapolate."""
    clipped: Float = np.minimum(np.maximum((evidence - mean) / scale, -CLIP), CLIP)
    return clipped


def head_tensors(tier: int, head: EvidenceHead) -> Tensors:
    """Return the parameters of the head of `tier` by name, float32."""
    return {f"tier_{tier}.{field}": np.asarray(value, np.float32) for field, value in head._asdict().items()}


def model_from(spec: JudgedTier, tensors: Tensors) -> EvidenceModel:
    """Build the model of `spec` from an artefact's tensors. Raises `ArtefactError` for missing or unusable ones."""
    name = f"tier_{spec.tier}"
    try:
        head = EvidenceHead(*(tensors[f"{name}.{field}"].astype(np.float32) for field in EvidenceHead._fields))
    except KeyError as error:
        raise ArtefactError(f"{error} is missing. Fit the probes again.") from error
    e, t = len(EVIDENCE_NAMES), len(spec.judges)
    wanted = ((e,), (e,), (e, t), (t,), (t,))
    shapes = tuple(part.shape for part in head)
    if shapes != wanted:
        raise ArtefactError(f"{name} has shapes {shapes}, expected {wanted}. Fit the probes again.")
    if not all(np.isfinite(part).all() for part in head) or not (head.scale > 0).all():
        raise ArtefactError(f"{name} holds values that are not finite, or scales not above 0. Fit the probes again.")
    return EvidenceModel(spec, head)


def logit(p: float) -> float:
    """Return the logit of `p`, clipped away from 0 and 1."""
    clipped = min(max(p, P_MIN), P_MAX)
    return math.log(clipped / (1 - clipped))


MANIFEST = "manifest.json"
PROBES = "probes.safetensors"
# 1 had linear probes on hidden states and summaries of the first tokens.
SCHEMA_VERSION = 2


class ProbeManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of evidence models."""

    schema_version: int
    version: str
    catalog: str
    label: Label
    models: list[JudgedTier]
    lengths: list[int]
    """Tiers whose answer lengths are predicted, with the `encoder` and `feature_names` that this needs; empty if none.
    """
    length_fingerprints: list[str] = []
    """Fingerprints of the tiers in `lengths`."""
    encoder: str
    feature_names: list[str]
    evidence_names: list[str]
    classifier_version: str
    """The version whose probabilities they start from."""
    rows: int
    """The number of prompts they were fitted on."""
    seed: int
    metrics: dict[str, Any]
    """The report as data."""
    sha256: str = ""


class _Version(msgspec.Struct):
    schema_version: int


prepare_types(ProbeManifest, _Version)


def load_probes(folder: Path) -> EvidenceModels:
    """Load the models in `folder`. Raises `ArtefactError` naming the file and what is wrong with it."""
    manifest = load_probe_manifest(folder)
    path = folder / PROBES
    try:
        blob = path.read_bytes()
        sha256 = hashlib.sha256(blob).hexdigest()
        if sha256 != manifest.sha256:
            raise ArtefactError(f"{path}: SHA-256 is {sha256[:12]}…, the manifest says {manifest.sha256[:12]}….")
        tensors = dict(load(blob))
    except (OSError, SafetensorError, ValueError) as error:
        raise ArtefactError(f"{path}: {error}. Fit the probes again.") from error
    try:
        models = [model_from(spec, tensors) for spec in manifest.models]
        lengths = None
        if manifest.lengths and tuple(manifest.feature_names) == FEATURE_NAMES:
            lengths = AnswerLength.from_tensors(manifest.encoder, manifest.lengths, tensors)
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}") from error
    return EvidenceModels(manifest.version, manifest.label, models, lengths, manifest.length_fingerprints)


def save_probes(root: Path, manifest: ProbeManifest, tensors: Tensors) -> Path:
    """Write `root/<version>/` atomically and return the folder. The hash is filled in here.

    Saving identical probes again is no error.
    """
    blob = save(dict(sorted(tensors.items())))
    manifest = msgspec.structs.replace(manifest, sha256=hashlib.sha256(blob).hexdigest())
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f".incoming-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        for name, content in ((PROBES, blob), (MANIFEST, text)):
            with (temporary / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        folder = root / manifest.version
        if not folder.exists():
            temporary.rename(folder)
        elif (folder / MANIFEST).read_bytes() != text:
            raise ArtefactError(f"{folder} exists with other content; versions are never overwritten.")
        return folder
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_probe_manifest(folder: Path) -> ProbeManifest:
    """Load the manifest alone. Raises `ArtefactError` if it is missing, malformed or of another program."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            raise ArtefactError(
                f"{path}: schema version {version}; this program reads {SCHEMA_VERSION}. Run `aio classifier collect` "
                "into a new folder and `aio classifier probes` on it again."
            )
        manifest = msgspec.json.decode(content, type=ProbeManifest)
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} does not exist; give the folder of fitted probes.") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise ArtefactError(f"{path}: {error}. Fit the probes again.") from error
    if manifest.evidence_names != list(EVIDENCE_NAMES):
        raise ArtefactError(f"{path}: fitted on other evidence than this program reads. Fit them again.")
    return manifest
