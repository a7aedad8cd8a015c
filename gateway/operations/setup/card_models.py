"""The models that `aio init` proposes for cards: ids of the Hugging Face hub, and what its cache has."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from gateway.operations.setup.candidate import tier_name
from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import HubModel, downloaded, hub_cache, parse_hub_model
from inference_core.loaders.known_shapes import SHAPES
from inference_core.model_config import DECODER_KINDS, ModelConfig
from inference_core.placement.weight_formats import model_weights
from tiers.catalog.gpu_group import GpuModelSpec, GpuWeights
from tiers.catalog.planned_numbers import numbers_of, weight_bytes_of

# Nothing that asks for terms to be accepted, and only what the kernels of cards compute.
TABLE: tuple[tuple[str, str, GpuWeights], ...] = (
    ("Qwen/Qwen3-0.6B", "qwen3-0.6b", "bfloat16"),
    ("Qwen/Qwen3-1.7B", "qwen3-1.7b", "bfloat16"),
    ("Qwen/Qwen3-4B-AWQ", "qwen3-4b", "awq-int4"),
    ("Qwen/Qwen3-4B", "qwen3-4b", "bfloat16"),
    ("Qwen/Qwen3-8B-AWQ", "qwen3-8b", "awq-int4"),
    ("Qwen/Qwen3-8B", "qwen3-8b", "bfloat16"),
    ("Qwen/Qwen3-14B-AWQ", "qwen3-14b", "awq-int4"),
    ("Qwen/Qwen3-14B", "qwen3-14b", "bfloat16"),
    ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "awq-int4"),
    ("Qwen/Qwen3-32B", "qwen3-32b", "bfloat16"),
    ("casperhansen/llama-3.3-70b-instruct-awq", "llama-3.3-70b", "awq-int4"),
    ("unsloth/Llama-3.3-70B-Instruct", "llama-3.3-70b", "bfloat16"),
)
MAX_CONTEXT = 8192
"""Tokens that a proposal is planned with; the catalogue's reader may raise it."""


class CardModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be placed on cards. `shape`: the name of `config`; None if only its file has it."""

    name: str
    path: str
    weights: GpuWeights
    config: ModelConfig
    weight_bytes: int
    shape: str | None = None

    @property
    def billions(self) -> float:
        return model_weights(self.config).total / 1e9

    def spec(self) -> GpuModelSpec:
        return GpuModelSpec(
            name=self.name,
            path=self.path,
            weights=self.weights,
            shape=self.shape,
            weight_bytes=self.weight_bytes,
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            max_context=min(MAX_CONTEXT, self.config.max_position),
        )


def known_models() -> list[CardModel]:
    """Return the models of the table, downloaded or not."""
    return [
        CardModel(
            name=tier_name(repo),
            path=f"hf:{repo}",
            weights=weights,
            config=SHAPES[shape],
            shape=shape,
            weight_bytes=weight_bytes_of(SHAPES[shape], weights),
        )
        for repo, shape, weights in TABLE
    ]


def cached_models() -> list[CardModel]:
    """Return the folders of the Hugging Face cache that cards can serve, whatever program downloaded them; their
    numbers are read from their headers."""
    return [model for repo, folder in _snapshots() if (model := _cached(repo, folder)) is not None]


def _snapshots() -> Iterator[tuple[str, Path]]:
    for folder in sorted(hub_cache().glob("models--*--*")):
        try:
            commit = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        snapshot = folder / "snapshots" / commit
        if (snapshot / "config.json").is_file():
            yield folder.name.removeprefix("models--").replace("--", "/", 1), snapshot


def _cached(repo: str, folder: Path) -> CardModel | None:
    from inference_core.loaders.huggingface.group_format import GroupFormat
    from inference_core.loaders.huggingface.hf_config import read_layer_format
    from inference_core.loaders.open_checkpoint import open_checkpoint

    try:
        checkpoint, form = open_checkpoint(folder), read_layer_format(folder)
    except ModelFileError:
        return None
    weights: GpuWeights
    if form is None:
        weights = "bfloat16"
    elif isinstance(form, GroupFormat) and form.bits == 4:
        weights = "awq-int4" if form.method == "awq" else "gptq-int4"
    else:
        return None
    if any(checkpoint.config.not_computed_by(where) for where in DECODER_KINDS):
        return None
    named: HubModel | None = parse_hub_model(f"hf:{repo}")
    path = f"hf:{repo}" if named is not None and downloaded(named) is not None else str(folder)
    return CardModel(
        name=tier_name(repo),
        path=path,
        weights=weights,
        config=checkpoint.config,
        weight_bytes=numbers_of(checkpoint)["weight_bytes"],
    )
