"""The artefact folder: safetensors and a manifest, no pickle; loaded only if everything is valid.

With the static encoder it has at most 25 MB; an operator's own transformer may need more.
"""

import hashlib
import os
import shutil
import uuid
from importlib import import_module
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from classifier.encoders.static_encoder import StaticEncoder, StoredEncoder, dequantise, quantise
from classifier.errors import ArtefactError
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.knn_memory import Memory, Novelty
from classifier.model.learned import LearnedHead, learned_head
from classifier.model.outcome_model import SCHEMA_VERSION, Heads, Manifest, OutcomeModel
from classifier.registry.registry import ArtefactRegistry
from inference_core.io.files import prepare_types

MANIFEST = "manifest.json"
MODEL = "model.safetensors"
BASE = "base.safetensors"
MAX_BYTES = 25 * 2**20
# Encoders that need more than numpy, by the name in the manifest. Imported by name when an artefact needs one: the
# request path must run without their dependencies.
PLUGGED_ENCODERS = {
    "transformer": "classifier.encoders.transformer_encoder:TransformerEncoder",
    "hidden-states": "classifier.encoders.hidden_state_encoder:HiddenStateEncoder",
}

Tensors = dict[str, npt.NDArray[np.generic]]


prepare_types(Manifest)


def default_artefact() -> Path:
    """Return the folder of the artefact that ships with this package. Raises `ArtefactError` if it is missing."""
    return ArtefactRegistry(Path(__file__).parents[1] / "artefacts").current()


def load_artefact(folder: Path, catalogue_fingerprint: str = "") -> OutcomeModel:
    """Load the model in `folder`, to predict for the catalogue with that fingerprint.

    Raises `ArtefactError` naming the file and what is wrong with it.
    """
    manifest = load_manifest(folder)
    return model_from_tensors(manifest, _read_tensors(folder, manifest, MODEL), catalogue_fingerprint, folder.parent)


def model_from_tensors(
    manifest: Manifest, tensors: Tensors, catalogue_fingerprint: str = "", registry: Path | None = None
) -> OutcomeModel:
    """Build the model from `tensors` (the content of `model.safetensors`); raise `ArtefactError` if they do not fit.

    `registry`: where an encoder finds its checkpoint; without it the model only predicts for encoded prompts.
    """
    try:
        encoder = _encoder_from(manifest, tensors, registry)
        heads = Heads.from_tensors(tensors)
        memory = Memory(
            dequantise(tensors["memory.vectors"].astype(np.int8), tensors["memory.scale"].astype(np.float32)),
            tensors["memory.labels"].astype(np.float32),
            tensors["memory.weights"].astype(np.float32),
            tensors["memory.base_rates"].astype(np.float32),
            tensors["memory.distances"].astype(np.float32),
            Novelty.from_tensors(tensors),
        )
        learned = learned_head(tensors)
    except (KeyError, ValueError) as error:
        raise ArtefactError(f"artefact {manifest.version}: {error}. Train it again.") from error
    _check_shapes(manifest, encoder, heads, memory, learned)
    return OutcomeModel(manifest, encoder, heads, memory, catalogue_fingerprint, learned)


def load_model_tensors(folder: Path) -> Tensors:
    """Load the tensors of `model.safetensors`, checked against the manifest's hash."""
    return _read_tensors(folder, load_manifest(folder), MODEL)


def load_base(folder: Path) -> Tensors:
    """Load the tensors of `base.safetensors`: the encoded base data of retraining."""
    return _read_tensors(folder, load_manifest(folder), BASE)


def load_manifest(folder: Path) -> Manifest:
    """Load the manifest alone. Raises `ArtefactError` if it is missing, malformed or of another schema."""
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
        version = msgspec.json.decode(raw, type=dict).get("schema_version")
        if version != SCHEMA_VERSION:
            raise ArtefactError(f"{path}: schema version {version}; this program reads {SCHEMA_VERSION}.")
        return msgspec.json.decode(raw, type=Manifest)
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} does not exist; give the folder of a trained artefact.") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise ArtefactError(f"{path}: {error}. Train the artefact again.") from error


def model_tensors(encoder: Tensors, heads: Heads, memory: Memory) -> Tensors:
    """Return the content of `model.safetensors`; of `encoder` only its own tensors are kept, bit for bit."""
    vectors, scale = quantise(memory.vectors)
    return {
        **{name: tensor for name, tensor in encoder.items() if name.startswith("encoder.")},
        **heads.tensors(),
        "memory.vectors": vectors,
        "memory.scale": scale,
        "memory.labels": memory.labels.astype(np.float16),
        "memory.weights": memory.weights.astype(np.float32),
        "memory.base_rates": memory.base_rates.astype(np.float32),
        "memory.distances": memory.distances.astype(np.float32),
        **({} if memory.novelty is None else memory.novelty.tensors()),
    }


def save_artefact(root: Path, manifest: Manifest, model: Tensors, base: Tensors) -> Path:
    """Write `root/<version>/` atomically and return the folder. `manifest.files` is filled in here.

    Saving it again is no error. Raises `ArtefactError` if one with the static encoder exceeds 25 MB.
    """
    blobs = {MODEL: save(dict(sorted(model.items()))), BASE: save(dict(sorted(base.items())))}
    files = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
    text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)), indent=1) + b"\n"
    total = len(text) + sum(map(len, blobs.values()))
    if total > MAX_BYTES and manifest.encoder.get("name") not in PLUGGED_ENCODERS:
        raise ArtefactError(f"artefact {manifest.version} is {total} bytes; at most {MAX_BYTES}. Keep fewer base rows.")
    folder = root / manifest.version
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f".incoming-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        for name, blob in (*blobs.items(), (MANIFEST, text)):
            with (temporary / name).open("wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
        if folder.exists():
            if (folder / MANIFEST).read_bytes() != text:
                raise ArtefactError(f"{folder} exists with other content; versions are never overwritten.")
            return folder
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _read_tensors(folder: Path, manifest: Manifest, name: str) -> Tensors:
    path = folder / name
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read: {error}.") from error
    found = hashlib.sha256(blob).hexdigest()
    if found != manifest.files.get(name):
        raise ArtefactError(
            f"{path}: SHA-256 is {found[:12]}…, the manifest says {str(manifest.files.get(name))[:12]}…; "
            "the file was changed or cut short. Restore it or use another version."
        )
    try:
        return dict(load(blob))
    except (SafetensorError, ValueError) as error:
        raise ArtefactError(f"{path}: not a safetensors file ({error}).") from error


def _encoder_from(manifest: Manifest, tensors: Tensors, registry: Path | None) -> StoredEncoder:
    plugged = PLUGGED_ENCODERS.get(str(manifest.encoder.get("name")))
    if plugged is None:
        return StaticEncoder.from_tensors(tensors)
    module, name = plugged.split(":")
    encoder: StoredEncoder = getattr(import_module(module), name).from_tensors(tensors, registry)
    return encoder


def _check_shapes(
    manifest: Manifest, encoder: StoredEncoder, heads: Heads, memory: Memory, learned: LearnedHead | None
) -> None:
    if tuple(manifest.feature_names) != FEATURE_NAMES:
        raise ArtefactError(
            f"artefact {manifest.version}: trained on {len(manifest.feature_names)} surface features "
            f"that are not this program's {len(FEATURE_NAMES)}. Train it again."
        )
    outcomes = len(manifest.heads)
    inputs = len(FEATURE_NAMES) + encoder.dim + 2 * outcomes
    found = {
        "linear heads": (heads.coef.shape, (inputs, outcomes)),
        "input means": (heads.mean.shape, (inputs,)),
        "word logits": (encoder.logit_bias.shape, (outcomes,)),
        "centres of domains": ((memory.novelty.dim if memory.novelty else encoder.dim,), (encoder.dim,)),
        "memory vectors": (memory.vectors.shape, (len(memory), encoder.dim)),
        "memory labels": (memory.labels.shape, (len(memory), outcomes)),
        "base rates": (memory.base_rates.shape, (outcomes,)),
    }
    if learned is not None:
        found["learned head"] = learned.shape, (4 + encoder.dim + len(FEATURE_NAMES), manifest.tiers - 1)
    for name, (shape, wanted) in found.items():
        if shape != wanted:
            raise ArtefactError(
                f"artefact {manifest.version}: {name} have shape {shape}, expected {wanted}. Train it again."
            )
