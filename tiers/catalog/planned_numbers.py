"""The numbers that determine the memory of a GPU group's model, where a catalogue leaves them out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inference_core.errors import ModelFileError
from inference_core.loaders.decoder_tensors import SHAPES
from inference_core.model_config import ModelConfig
from inference_core.placement.weight_formats import FORMATS, model_weights

if TYPE_CHECKING:
    from inference_core.loaders.checkpoint import Checkpoint

_OF_SHAPE = ("num_layers", "num_kv_heads", "head_dim")


def with_planned_numbers(table: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Complete every `[[gpu_groups.models]]` of a decoded TOML document: by the shape that it names, else by the
    headers of its file, which must be here. Append to `problems` what cannot be known."""
    groups = table.get("gpu_groups")
    if not isinstance(groups, list):
        return dict(table)
    return {**table, "gpu_groups": [_group(group, f"gpu_groups[{i}]", problems) for i, group in enumerate(groups)]}


def weight_bytes_of(config: ModelConfig, weights: str) -> int:
    """Return the bytes of a model's weights in a format, computed from the shapes of its tensors."""
    return model_weights(config).num_bytes(FORMATS[weights])


def numbers_of(checkpoint: "Checkpoint") -> dict[str, int]:
    """Return the numbers as a file's headers state them."""
    return _numbers(checkpoint.config) | {"weight_bytes": checkpoint.stored_bytes}


def _group(group: Any, where: str, problems: list[str]) -> Any:
    models = group.get("models") if isinstance(group, Mapping) else None
    if not isinstance(models, list):
        return group
    return {**group, "models": [_model(one, f"{where}.models[{i}]", problems) for i, one in enumerate(models)]}


def _model(entry: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(entry, Mapping) or all(name in entry for name in (*_OF_SHAPE, "weight_bytes")):
        return entry
    shape, path, weights = entry.get("shape"), entry.get("path"), entry.get("weights")
    if isinstance(shape, str) and shape in SHAPES and isinstance(weights, str) and weights in FORMATS:
        config = SHAPES[shape]
        return {**_numbers(config), "weight_bytes": weight_bytes_of(config, weights), **entry}
    if not isinstance(path, str):
        return entry  # reported when it is converted
    # Imported here: most catalogues are read without the readers of model files.
    from inference_core.loaders.hub_model import resolve_model_path
    from inference_core.loaders.open_checkpoint import open_checkpoint

    try:
        return {**numbers_of(open_checkpoint(resolve_model_path(path))), **entry}
    except ModelFileError as error:
        problems.append(f"{where}: the numbers that it leaves out are those of its file: {error}; or name its shape")
        return entry


def _numbers(config: ModelConfig) -> dict[str, int]:
    return {name: getattr(config, name) for name in _OF_SHAPE}
