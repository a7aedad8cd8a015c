"""Which models this machine's cards hold: groups for a catalogue, decided by the memory planner.

The GPUs that models can run on are read through NVML, or it is said why there are none. The models that `aio init`
proposes for them are ids of the Hugging Face hub, and what its cache has.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path

import msgspec

from gateway.operations.setup.candidate import Candidate, tier_name
from gateway.telemetry.gpus import GpuReading, Gpus
from inference_core.errors import MemoryPlanError, MeshError, ModelFileError
from inference_core.extras import install_command, is_installed
from inference_core.loaders.decoder_tensors import SHAPES
from inference_core.loaders.hub_model import HubModel, downloaded, hub_cache, parse_hub_model
from inference_core.model_config import DECODER_KINDS, ModelConfig
from inference_core.parallel.mesh import Mesh
from inference_core.placement.hardware import MIN_COMPUTE_CAPABILITY, Device, Machines, Workload
from inference_core.placement.planner import place
from inference_core.placement.weight_formats import FORMATS, PlacedDraft, model_weights
from tiers.catalog.gpu_group import GpuGroupSpec, GpuModelSpec, GpuWeights, numbers_of, weight_bytes_of


class Cards(msgspec.Struct, frozen=True, kw_only=True):
    """Equal cards, as a placement is planned for them."""

    name: str = ""
    count: int = 0
    """Number of cards."""
    bytes_each: int = 0
    """Memory of the smallest card, with which each is planned."""
    compute_capability: float = MIN_COMPUTE_CAPABILITY
    note: str = ""
    """What a reader should know of them, in one sentence; "" if nothing."""


def read_cards(environ: Mapping[str, str], gpus: Gpus | None = None, root: Path = Path("/")) -> Cards:
    """Return the cards that CUDA would show this process (`CUDA_VISIBLE_DEVICES`). `root`: where /dev is."""
    readings = _visible((gpus or Gpus()).read(), environ.get("CUDA_VISIBLE_DEVICES"))
    sizes = [reading.memory_bytes for reading in readings]
    known_sizes = [size for size in sizes if size is not None]
    if not readings or len(known_sizes) < len(readings):
        return Cards(note=_why_none(root))
    capability = min(reading.compute_capability or 0.0 for reading in readings)
    names = ", ".join(dict.fromkeys(reading.name for reading in readings))
    if capability < MIN_COMPUTE_CAPABILITY:
        return Cards(
            note=f"no model is proposed for {names}: the kernels need compute capability {MIN_COMPUTE_CAPABILITY:g}, "
            f"and a card has {capability:g}; CUDA_VISIBLE_DEVICES leaves cards out"
        )
    smallest = min(known_sizes)
    return Cards(
        name=names,
        count=len(readings),
        bytes_each=smallest,
        compute_capability=capability,
        note=f"the cards are not equal ({names}): all are planned with the {smallest / 1e9:.1f} GB of the smallest"
        if len(set(known_sizes)) > 1
        else "",
    )


def _visible(readings: list[GpuReading], named: str | None) -> list[GpuReading]:
    """CUDA stops at the first name that it does not know."""
    if named is None:
        return readings
    visible: list[GpuReading] = []
    for part in map(str.strip, named.split(",")):
        match = next(
            (card for card in readings if part and (part == str(card.gpu) or card.uuid.startswith(part))), None
        )
        if match is None or match in visible:
            break
        visible.append(match)
    return visible


def _why_none(root: Path) -> str:
    if (root / "dev/nvidia0").exists():
        if is_installed("pynvml"):
            return "a card of NVIDIA is here, but NVML does not show it: does `nvidia-smi`?"
        return f"a card of NVIDIA is here, but nvidia-ml-py, which reads it, is not: {install_command('gpu')}"
    if (root / "dev/kfd").exists():
        return 'AMD cards are not supported in process; an installed program serves them (engine = "vllm")'
    return ""


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
    """A model that may be placed on cards."""

    name: str
    path: str
    weights: GpuWeights
    config: ModelConfig
    weight_bytes: int
    shape: str | None = None
    """The name of its `config`; None if only its file has it."""

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
    from inference_core.loaders.huggingface.hf_config import read_layer_format
    from inference_core.loaders.huggingface.quantized_layer import GroupFormat
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


GROUPS: dict[int, tuple[int, ...]] = {1: (1,), 2: (1, 1), 4: (1, 1, 2), 8: (1, 1, 2, 4)}
"""How many cards each group gets, cheapest tier first, by the number of cards."""
SEQUENCES, MANY_SEQUENCES = 4, 16
"""Requests of `MAX_CONTEXT` tokens that a group's models together have memory for: at least, and with weights of more
bits than the model's narrowest."""
MIN_RATIO = 2.0
"""How many times the weights of the tier below a tier has, or they would hardly differ in quality and price."""


def plan_cards(cards: Cards, models: Sequence[CardModel]) -> tuple[list[GpuGroupSpec], str]:
    """Return groups, cheapest first, and a note, "" without one. From the largest group down, each gets the strongest
    model that fits with memory for `SEQUENCES`, in the widest format that leaves it for `MANY_SEQUENCES`, and a smaller
    one than the group above it; the only group of one card gets two."""
    if not cards.count:
        return [], ""
    planned = max(size for size in GROUPS if size <= cards.count)
    ordered = sorted(models, key=lambda model: (model.billions, FORMATS[model.weights].bits), reverse=True)
    if planned == 1:
        pair = _pair(cards, ordered)
        groups = [] if pair is None else [_group(cards, 0, 1, pair)]
    else:
        groups = _ladder(cards, ordered, GROUPS[planned])
    used = sum(group.cards for group in groups)
    if not groups:
        return [], f"no two models of AIO's table fit {cards.count} x {cards.bytes_each / 1e9:.1f} GB together"
    idle = cards.count - used
    return groups, f"{idle} of {cards.count} cards get no model: groups of 1, 2 and 4 are proposed" if idle else ""


def card_candidates(cards: Cards, groups: Sequence[GpuGroupSpec], models: Sequence[CardModel]) -> list[Candidate]:
    billions = {model.name: model.billions for model in models}
    return [
        Candidate(
            source=f"{group.cards} x {cards.name} ({group.name}), {group.kv_bytes / 1e9:.1f} GB for keys and values",
            model=model.name,
            name=model.name,
            group=group,
            max_context=model.max_context,
            billions=billions[model.name],
        )
        for group in groups
        for model in group.models
    ]


def _ladder(cards: Cards, ordered: Sequence[CardModel], sizes: Sequence[int]) -> list[GpuGroupSpec]:
    chosen: list[tuple[int, int, CardModel]] = []
    above: CardModel | None = None
    first_cards = [0, *accumulate(sizes)]
    for first, size in reversed(list(zip(first_cards, sizes, strict=False))):
        choices = _choices(_below(above, ordered))
        model = next((choice for choice, sequences in choices if _fits(cards, size, [choice], sequences)), None)
        if model is not None:
            chosen.insert(0, (first, size, model))
            above = model
    return [_group(cards, first, size, [model]) for first, size, model in chosen]


def _pair(cards: Cards, ordered: Sequence[CardModel]) -> list[CardModel] | None:
    pairs = (
        ([small, large], sequences)
        for large, sequences in _choices(ordered)
        for small, same in _choices(_below(large, ordered))
        if same == sequences
    )
    return next((pair for pair, sequences in pairs if _fits(cards, 1, pair, sequences)), None)


def _choices(ordered: Sequence[CardModel]) -> Iterator[tuple[CardModel, int]]:
    """Each model with the sequences that it must leave memory for, in the order of preference."""
    for _, formats in groupby(ordered, key=lambda model: model.billions):
        widest_first = list(formats)
        yield from ((model, MANY_SEQUENCES) for model in widest_first)
        yield from ((model, SEQUENCES) for model in reversed(widest_first))


def _below(above: CardModel | None, ordered: Sequence[CardModel]) -> list[CardModel]:
    """The models that make a cheaper tier than `above`: a fraction of its weights, in no more bytes."""
    if above is None:
        return list(ordered)
    return [
        model
        for model in ordered
        if model.billions * MIN_RATIO <= above.billions and model.weight_bytes <= above.weight_bytes
    ]


def _fits(cards: Cards, size: int, models: Sequence[CardModel], sequences: int) -> bool:
    """Whether `size` cards can share every layer and hold the models, each with its part of the sequences."""
    *others, model = models
    # A catalogue splits heads over its cards and copies none.
    if any(held.config.num_heads % size or held.config.num_kv_heads % size for held in models):
        return False
    device = Device(
        name=cards.name, kind="gpu", memory_bytes=cards.bytes_each, compute_capability=cards.compute_capability
    )
    # A second model is counted as a draft is: its weights, and its keys and values of as many tokens.
    second = [PlacedDraft(name=draft.name, config=draft.config, form=FORMATS[draft.weights]) for draft in others]
    workload = Workload(length=min(MAX_CONTEXT, model.config.max_position), batch=sequences // len(models))
    try:
        place(
            model.config,
            Machines(device=device, devices_per_node=size),
            workload,
            FORMATS[model.weights],
            Mesh(tensor=size),
            second[0] if second else None,
        )
    except (MemoryPlanError, MeshError):
        return False
    # A file may store more than the format's plain arithmetic.
    group = _group(cards, 0, size, models)
    return group.kv_bytes // sum(spec.kv_bytes_per_token for spec in group.models) >= workload.tokens


def _group(cards: Cards, first: int, size: int, models: Sequence[CardModel]) -> GpuGroupSpec:
    name = f"card-{first}" if size == 1 else f"cards-{first}-{first + size - 1}"
    return GpuGroupSpec(name=name, cards=size, card_bytes=cards.bytes_each, models=[model.spec() for model in models])
