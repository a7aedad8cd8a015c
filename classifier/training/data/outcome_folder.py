"""A folder of collected outcomes: prediction, evidence and result per prompt and tier, without texts."""

import hashlib
import os
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from classifier.errors import TrainingDataError

MANIFEST = "manifest.json"
# 1 had hidden states and summaries of the first tokens.
SCHEMA_VERSION = 2

Tensors = dict[str, npt.NDArray[np.generic]]


class CollectedTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier with outcomes in the folder. Prices are US dollars per million tokens."""

    model: str
    policy: str
    fingerprint: str
    """`Catalog.tier_fingerprint`. Prices: US dollars a million."""
    input_usd_per_million: float
    output_usd_per_million: float


class OutcomesManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Which prompts were asked of which tiers. A run with an equal manifest resumes an interrupted one."""

    schema_version: int
    catalog: str
    catalogue_fingerprint: str
    tiers: dict[str, CollectedTier]
    groups: list[str]
    """Names that the rows' `group` is a number of."""
    seed: int
    max_tokens: int
    """Limit of an answer without reasoning."""
    classifier_version: str
    """The version that made the stored predictions."""
    encoder: str
    """Hash of that version's encoder."""
    feature_names: list[str]
    evidence_names: list[str]
    """Names of the columns of `Outcomes.evidence`."""


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one tier, in the order of `row`. Token counts are int32 [n], as billed, of one sample."""

    row: npt.NDArray[np.int64]
    """int64 [n]: hash of the prompt, the same for all tiers."""
    group: npt.NDArray[np.int16]
    """int16 [n]."""
    level: npt.NDArray[np.int16]
    """int16 [n]."""
    p_ok: npt.NDArray[np.float32]
    """float32 [n, tiers]."""
    features: npt.NDArray[np.float32]
    """[n, f] of the prompt."""
    embedding: npt.NDArray[np.float32]
    """[n, d] of the prompt."""
    evidence: npt.NDArray[np.float32]
    """[n, e] of the answer, without agreement."""
    agreement: npt.NDArray[np.float32]
    """[n]: agreement of a second sample's final answer; NaN without one to compare."""
    prompt_tokens: npt.NDArray[np.int32]
    answer_tokens: npt.NDArray[np.int32]
    correct: npt.NDArray[np.bool_]
    """bool [n]."""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: npt.NDArray[np.integer]) -> "Outcomes":
        """Return the rows at these positions."""
        return Outcomes(**{name: getattr(self, name)[index] for name in self.__struct_fields__})


def row_of(prompt: str) -> int:
    """Return the number of a prompt: a one-way hash, positive, 63 bits."""
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") >> 1


class OutcomeFolder:
    """Shards of rows per tier, each written atomically; an interrupted collection resumes after the last shard.

    Raises `TrainingDataError` if the folder contains something else.
    """

    def __init__(self, root: Path, manifest: OutcomesManifest) -> None:
        self.root, self.manifest = root, manifest

    @classmethod
    def opened(cls, root: Path) -> "OutcomeFolder":
        """Open the folder `root` unchanged."""
        path = root / MANIFEST
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=OutcomesManifest)
        except FileNotFoundError as error:
            raise TrainingDataError(f"{path} does not exist; collect outcomes into {root} first.") from error
        except (OSError, msgspec.MsgspecError) as error:
            raise TrainingDataError(f"{path}: {error}. Collect into another folder.") from error
        if manifest.schema_version != SCHEMA_VERSION:
            raise TrainingDataError(f"{path}: schema {manifest.schema_version}; this program reads {SCHEMA_VERSION}.")
        return cls(root, manifest)

    @classmethod
    def begun(cls, root: Path, manifest: OutcomesManifest) -> "OutcomeFolder":
        """Open the folder to resume, or create one; tiers of `manifest` that are new to it are added."""
        if not (root / MANIFEST).is_file():
            root.mkdir(parents=True, exist_ok=True)
            _write(root / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
            return cls(root, manifest)
        before = cls.opened(root).manifest
        tiers = before.tiers | manifest.tiers
        changed = [k for k in before.tiers if k in manifest.tiers and before.tiers[k] != manifest.tiers[k]]
        if changed or msgspec.structs.replace(before, tiers={}) != msgspec.structs.replace(manifest, tiers={}):
            what = ", ".join(_differences(before, manifest)) or f"tier {changed[0]}"
            raise TrainingDataError(f"{root} holds outcomes of another collection (other {what}); use another folder.")
        merged = msgspec.structs.replace(manifest, tiers=dict(sorted(tiers.items())))
        _write(root / MANIFEST, msgspec.json.format(msgspec.json.encode(merged), indent=1) + b"\n")
        return cls(root, merged)

    def rows_of(self, tier: int) -> set[int]:
        """Return the prompts that `tier` has answered, by `row_of`."""
        return {int(row) for shard in self._shards(tier) for row in _read(shard)["row"]}

    def append(self, tier: int, rows: Outcomes) -> None:
        shards = self._shards(tier)
        number = int(shards[-1].stem.rpartition("-")[2]) + 1 if shards else 0
        tensors = {name: np.ascontiguousarray(getattr(rows, name)) for name in rows.__struct_fields__}
        tensors["correct"] = rows.correct.astype(np.uint8)
        _write(self.root / f"tier-{tier}-{number:05}.safetensors", save(tensors))

    def load(self, tier: int) -> Outcomes:
        shards = [_read(path) for path in self._shards(tier)]
        if not shards:
            raise TrainingDataError(f"{self.root} holds no outcomes of tier {tier}; collect them.")
        try:
            joined = {name: np.concatenate([shard[name] for shard in shards]) for name in Outcomes.__struct_fields__}
        except (KeyError, ValueError) as error:
            raise TrainingDataError(f"{self.root}: the shards of tier {tier} disagree: {error}") from error
        _, first = np.unique(joined["row"], return_index=True)
        joined["correct"] = joined["correct"].astype(np.bool_)
        return Outcomes(**{name: tensor[first] for name, tensor in joined.items()})

    def load_common(self) -> dict[int, Outcomes]:
        """Return the rows that every tier here has answered, aligned, by tier."""
        tiers = {int(k): self.load(int(k)) for k in self.manifest.tiers}
        rows = [outcomes.row for outcomes in tiers.values()]
        common = rows[0]
        for other in rows[1:]:
            common = np.intersect1d(common, other)
        return {k: outcomes.take(np.flatnonzero(np.isin(outcomes.row, common))) for k, outcomes in tiers.items()}

    def _shards(self, tier: int) -> list[Path]:
        return sorted(self.root.glob(f"tier-{tier}-*.safetensors"))


def _differences(before: OutcomesManifest, after: OutcomesManifest) -> list[str]:
    names = (name for name in before.__struct_fields__ if name != "tiers")
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _read(path: Path) -> Tensors:
    try:
        return dict(load(path.read_bytes()))
    except (OSError, SafetensorError, ValueError) as error:
        raise TrainingDataError(f"{path}: {error}. Delete this file; its rows will be collected again.") from error


def _write(path: Path, blob: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
