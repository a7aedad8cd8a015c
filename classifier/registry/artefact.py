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

from classifier.encoders.static_encoder import StaticEncoder, StoredEncoder
from classifier.errors import ArtefactError
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.learned import LearnedHead, learned_head
from classifier.model.outcome_model import SCHEMA_VERSION, Manifest, OutcomeModel
from classifier.registry.registry import ArtefactRegistry
from inference_core.io.files import atomic_file, prepare_types

MANIFEST = "manifest.json"
MODEL = "weights.safetensors"
MAX_BYTES = 25 * 2**20
# Encoders that need more than numpy, by the name in the manifest. Imported by name when an artefact needs one: the
# request path must run without their dependencies.
PLUGGED_ENCODERS = {
    "transformer": "classifier.encoders.transformer_encoder:TransformerEncoder",
    "hidden-states": "classifier.encoders.hidden_state_encoder:HiddenStateEncoder",
}

Tensors = dict[str, npt.NDArray[np.generic]]

# Releases that wrote schema 1 also kept a predictor by nearest prompts, and the encoded prompts that it was trained on.
EARLIER_SCHEMA, EARLIER_MODEL, EARLIER_ROWS = 1, "model.safetensors", "base.safetensors"
_READ = ("encoder.", "catalogue_head.", "refitted_classes.")
_NO_LONGER_READ = tuple(
    f"encoder.{name}" for name in ("logit_", "tree_", "head_", "support", "weights", "bias", "sharpness")
)

prepare_types(Manifest)


def default_artefact() -> Path:
    """Return the folder of the artefact that ships with this package. Raises `ArtefactError` if it is missing."""
    return ArtefactRegistry(Path(__file__).parents[1] / "artefacts").current()


def load_artefact(folder: Path, catalogue_fingerprint: str = "") -> OutcomeModel:
    """Load the model in `folder`, to predict for the catalogue with that fingerprint.

    Raises `ArtefactError` naming the file and what is wrong with it.
    """
    manifest = load_manifest(folder)
    return model_from_tensors(manifest, _read_tensors(folder, manifest), catalogue_fingerprint, folder.parent)


def model_from_tensors(
    manifest: Manifest, tensors: Tensors, catalogue_fingerprint: str = "", registry: Path | None = None
) -> OutcomeModel:
    """Build the model from `tensors` (the content of `weights.safetensors`); raise `ArtefactError` if they do not fit.

    `registry`: where an encoder finds its checkpoint; without it the model only predicts for encoded prompts.
    """
    try:
        encoder = _encoder_from(manifest, tensors, registry)
        learned = learned_head(tensors)
    except (KeyError, ValueError) as error:
        raise ArtefactError(f"artefact {manifest.version}: {error}. Train it again.") from error
    _check_shapes(manifest, encoder, learned)
    return OutcomeModel(manifest, encoder, catalogue_fingerprint, learned)


def load_model_tensors(folder: Path) -> Tensors:
    """Load the tensors of `weights.safetensors`, checked against the manifest's hash."""
    return _read_tensors(folder, load_manifest(folder))


def load_manifest(folder: Path) -> Manifest:
    """Load the manifest alone. Raises `ArtefactError` if it is missing, malformed or of another schema."""
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
        version = msgspec.json.decode(raw, type=dict).get("schema_version")
        if version not in (EARLIER_SCHEMA, SCHEMA_VERSION):
            raise ArtefactError(
                f"{path}: schema version {version}; this program reads {EARLIER_SCHEMA} and {SCHEMA_VERSION}. "
                "Use another version, or train one with this program."
            )
        return msgspec.json.decode(raw, type=Manifest)
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} does not exist; give the folder of a trained artefact.") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise ArtefactError(f"{path}: {error}. Train the artefact again.") from error


def save_artefact(root: Path, manifest: Manifest, model: Tensors) -> Path:
    """Write `root/<version>/` atomically and return the folder. `manifest.files` is filled in here.

    Saving it again is no error. Raises `ArtefactError` if one with the static encoder exceeds 25 MB.
    """
    blob, text = _contents(manifest, model)
    total = len(text) + len(blob)
    if total > MAX_BYTES and manifest.encoder.get("name") not in PLUGGED_ENCODERS:
        raise ArtefactError(f"artefact {manifest.version} is {total} bytes; at most {MAX_BYTES}. Keep fewer terms.")
    folder = root / manifest.version
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f".incoming-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        for name, content in ((MODEL, blob), (MANIFEST, text)):
            with (temporary / name).open("wb") as file:
                file.write(content)
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


def drop_rows(registry: ArtefactRegistry) -> list[str]:
    """Rewrite the versions of earlier releases without the prompts that they keep, encoded; return their names.

    What decides stays, and so do the versions' names. It may be interrupted and repeated at any point. Raises
    `ArtefactError` for one that cannot be read or written, after the others.
    """
    rewritten: list[str] = []
    unread: list[ArtefactError] = []
    for version in registry.versions():
        try:
            if _drop_rows(registry.folder(version)):
                rewritten.append(version)
        except ArtefactError as error:
            unread.append(error)
        except OSError as error:
            unread.append(ArtefactError(f"{registry.root / version} cannot be rewritten: {error}."))
    if unread:
        raise unread[0]
    return rewritten


def _drop_rows(folder: Path) -> bool:
    manifest = load_manifest(folder)
    is_earlier = manifest.schema_version == EARLIER_SCHEMA
    if is_earlier:
        tensors = _read_tensors(folder, manifest)
        blob, text = _contents(msgspec.structs.replace(manifest, schema_version=SCHEMA_VERSION), tensors)
        mode = (folder / MANIFEST).stat().st_mode & 0o777
        # The manifest last: until then the old one names the old file, which is still there.
        for name, content in ((MODEL, blob), (MANIFEST, text)):
            with atomic_file(folder / name) as file:
                file.write(content)
            (folder / name).chmod(mode)
    for name in (EARLIER_MODEL, EARLIER_ROWS):
        (folder / name).unlink(missing_ok=True)
    return is_earlier


def _contents(manifest: Manifest, model: Tensors) -> tuple[bytes, bytes]:
    """Return the content of the file of tensors, and of the manifest with its hash."""
    blob = save(dict(sorted(model.items())))
    named = msgspec.structs.replace(manifest, files={MODEL: hashlib.sha256(blob).hexdigest()})
    return blob, msgspec.json.format(msgspec.json.encode(named), indent=1) + b"\n"


def _read_tensors(folder: Path, manifest: Manifest) -> Tensors:
    """Return the tensors that this program reads."""
    name = EARLIER_MODEL if manifest.schema_version == EARLIER_SCHEMA else MODEL
    path = folder / name
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read: {error}.") from error
    sha256 = hashlib.sha256(blob).hexdigest()
    if sha256 != manifest.files.get(name):
        raise ArtefactError(
            f"{path}: SHA-256 is {sha256[:12]}…, the manifest says {str(manifest.files.get(name))[:12]}…; "
            "the file was changed or cut short. Restore it or use another version."
        )
    try:
        tensors = load(blob)
    except (SafetensorError, ValueError) as error:
        raise ArtefactError(f"{path}: not a safetensors file ({error}).") from error
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith(_READ) and not name.startswith(_NO_LONGER_READ)
    }


def _encoder_from(manifest: Manifest, tensors: Tensors, registry: Path | None) -> StoredEncoder:
    plugged = PLUGGED_ENCODERS.get(str(manifest.encoder.get("name")))
    if plugged is None:
        return StaticEncoder.from_tensors(tensors)
    module, name = plugged.split(":")
    encoder: StoredEncoder = getattr(import_module(module), name).from_tensors(tensors, registry)
    return encoder


def _check_shapes(manifest: Manifest, encoder: StoredEncoder, learned: LearnedHead | None) -> None:
    if tuple(manifest.feature_names) != FEATURE_NAMES:
        raise ArtefactError(
            f"artefact {manifest.version}: trained on {len(manifest.feature_names)} surface features "
            f"that are not this program's {len(FEATURE_NAMES)}. Train it again."
        )
    wanted = (4 + encoder.dim + len(FEATURE_NAMES), manifest.tiers - 1)
    if learned is not None and learned.shape != wanted:
        raise ArtefactError(
            f"artefact {manifest.version}: learned head has shape {learned.shape}, expected {wanted}. Train it again."
        )
