"""The folder of evidence models: `probes.safetensors` and a manifest, in a registry of its own."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.numpy import load, save

from classifier.errors import ArtefactError
from classifier.evidence.features import EVIDENCE_NAMES
from classifier.evidence.model import EvidenceModels, JudgedTier, Label, Tensors, model_from
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.answer_length import AnswerLength

MANIFEST = "manifest.json"
PROBES = "probes.safetensors"
# 1 had linear probes on hidden states and summaries of the first tokens.
SCHEMA_VERSION = 2


class ProbeManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of evidence models.

    `classifier_version`: the version whose probabilities they start from. `lengths`: tiers whose answer lengths are
    predicted, with the `encoder` and `feature_names` that this needs; empty if none. `length_fingerprints`: of those
    tiers. `rows`: the number of prompts they were fitted on. `metrics`: the report as data.
    """

    schema_version: int
    version: str
    catalog: str
    label: Label
    models: list[JudgedTier]
    lengths: list[int]
    length_fingerprints: list[str] = []
    encoder: str
    feature_names: list[str]
    evidence_names: list[str]
    classifier_version: str
    rows: int
    seed: int
    metrics: dict[str, Any]
    sha256: str = ""


class _Version(msgspec.Struct):
    schema_version: int


def load_probes(folder: Path) -> EvidenceModels:
    """Load the models in `folder`. Raises `ArtefactError` naming the file and what is wrong with it."""
    manifest = load_probe_manifest(folder)
    path = folder / PROBES
    try:
        blob = path.read_bytes()
        found = hashlib.sha256(blob).hexdigest()
        if found != manifest.sha256:
            raise ArtefactError(f"{path}: SHA-256 is {found[:12]}…, the manifest says {manifest.sha256[:12]}….")
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
    temporary = Path(tempfile.mkdtemp(dir=root, prefix=".incoming-"))
    try:
        for name, content in ((PROBES, blob), (MANIFEST, text)):
            with (temporary / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        temporary.chmod(0o755)
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
        found = msgspec.json.decode(content, type=_Version).schema_version
        if found != SCHEMA_VERSION:
            raise ArtefactError(
                f"{path}: schema version {found}; this program reads {SCHEMA_VERSION}. Run `aio classifier collect` "
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
