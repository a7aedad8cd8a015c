"""What a machine needs to serve a catalogue: the files of its models, and the cards of its GPU groups."""

from collections.abc import Collection, Iterator
from pathlib import Path

from inference_core.errors import DevicesMissingError, ModelFileError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_config import ModelConfig
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.catalog.gpu_group import GpuGroupSpec, GpuModelSpec
from tiers.catalog.tier_spec import MIN_TIERS
from tiers.errors import CatalogError


def require_servable(catalog: Catalog, cards: int, cores: Collection[str] | None = None) -> None:
    """Raise DevicesMissingError if a machine with `cards` CUDA devices lacks some that a core needs.

    `cores` names the cores to serve here; None is all of the catalogue's.
    """
    lacking = [
        _need(catalog, group)
        for group in _groups(catalog, cores)
        if group.device == "cuda" and catalog.cards_of(group).stop > cards
    ]
    if lacking:
        there = "none" if not cards else "card 0 alone" if cards == 1 else f"cards 0 to {cards - 1}"
        raise DevicesMissingError(
            f"catalogue '{catalog.name}' cannot be served on this machine, which has {cards} CUDA device(s) ({there}): "
            f"{'; '.join(lacking)}. Serve it where these cards are, use the catalogue 'laptop', or give these tiers a "
            "[tiers.remote] table that names an OpenAI-compatible server with such cards"
        )


def instead_of(catalog: Catalog, group: str) -> str:
    """Return which tiers run on `group`, which do not, and what else may serve the former."""
    models = {model.name for model in catalog.group(group).models}
    lost = [tier.name for tier in catalog.tiers if tier.model in models]
    kept = [tier.name for tier in catalog.tiers if tier.model not in models]
    others = f"; without them {', '.join(kept)} serve" if len(kept) >= MIN_TIERS else ""
    return (
        f"On group {group} run the tiers {', '.join(lost)}. Instead of it: a [tiers.remote] table that names an "
        'OpenAI-compatible server, engine = "vllm" or another program that AIO starts, other cards (first_card), or, '
        f"slowly, device = \"cpu\" of the group{others}. The catalogue 'laptop' needs no card"
    )


def validate_files(catalog: Catalog, cores: Collection[str] | None = None) -> None:
    """Raise CatalogError naming every missing model file of `cores` (None: of all that serve)."""
    models = [("core.models", m.name, m.path) for m in catalog.core.models if cores is None or CPU_CORE in cores]
    for group in _groups(catalog, cores):
        models += [(f"gpu_groups '{group.name}'.models", m.name, m.path) for m in group.models]
    problems = []
    for where, name, path in models:
        try:
            resolve_model_path(path)
        except ModelFileError as error:
            problems.append(f"  - {where} '{name}': {error}")
    if problems:
        raise CatalogError(f"catalogue '{catalog.name}' names files that are missing:\n" + "\n".join(problems))


def require_plans(catalog: Catalog, cache_dir: Path, cores: Collection[str] | None = None) -> None:
    """Raise CatalogError if files of GPU groups differ from their plan, or cannot be split over the cards.

    Raises ModelFileError for a file that cannot be read.
    """
    problems = [
        f"  - gpu_groups '{group.name}'.models '{model.name}'{problem}"
        for group in _groups(catalog, cores)
        for model in group.models
        for problem in _differences(group, model, open_checkpoint(resolve_model_path(model.path), cache_dir).config)
    ]
    if problems:
        raise CatalogError(
            f"catalogue '{catalog.name}' plans with other numbers than its files have:\n" + "\n".join(problems)
        )


def _groups(catalog: Catalog, cores: Collection[str] | None) -> list[GpuGroupSpec]:
    return [group for group in catalog.served_groups if cores is None or group.name in cores]


def _need(catalog: Catalog, group: GpuGroupSpec) -> str:
    taken = catalog.cards_of(group)
    which = f"card {taken.start}" if len(taken) == 1 else f"cards {taken.start} to {taken.stop - 1}"
    names = {m.name for m in group.models}
    users = ", ".join(f"{t.name}: {t.model}" for t in catalog.tiers if t.model in names)
    return f"group {group.name} ({users}) needs {group.cards}, {which}"


def _differences(group: GpuGroupSpec, model: GpuModelSpec, config: ModelConfig) -> Iterator[str]:
    for field in ("num_layers", "num_kv_heads", "head_dim"):
        stated, true = getattr(model, field), getattr(config, field)
        if stated != true:
            yield f".{field} = {stated}: {model.path} has {true}"
    if model.max_context > config.max_position:
        yield f".max_context = {model.max_context}: {model.path} was trained for {config.max_position} tokens"
    if config.num_heads % group.tensor:
        yield f": {config.num_heads} query heads cannot be split over {group.tensor} cards: choose a divisor"
