"""Which models a machine's cards hold: groups for a catalogue, decided by the memory planner."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from gateway.operations.setup.candidate import Candidate
from gateway.operations.setup.card_inventory import Cards
from gateway.operations.setup.card_models import MAX_CONTEXT, CardModel
from inference_core.errors import MemoryPlanError, MeshError
from inference_core.parallel.mesh import Mesh
from inference_core.placement.hardware import Device
from inference_core.placement.machines import Machines, Workload
from inference_core.placement.planner import place
from inference_core.placement.weight_formats import FORMATS, PlacedDraft
from tiers.catalog.gpu_group import GpuGroupSpec

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
    ordered = sorted(models, key=lambda one: (one.billions, FORMATS[one.weights].bits), reverse=True)
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
    """Return the groups' models as candidates."""
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
        model = next((one for one, sequences in choices if _fits(cards, size, [one], sequences)), None)
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
    for _, formats in groupby(ordered, key=lambda one: one.billions):
        widest_first = list(formats)
        yield from ((one, MANY_SEQUENCES) for one in widest_first)
        yield from ((one, SEQUENCES) for one in reversed(widest_first))


def _below(above: CardModel | None, ordered: Sequence[CardModel]) -> list[CardModel]:
    """The models that make a cheaper tier than `above`: a fraction of its weights, in no more bytes."""
    if above is None:
        return list(ordered)
    return [
        one for one in ordered if one.billions * MIN_RATIO <= above.billions and one.weight_bytes <= above.weight_bytes
    ]


def _fits(cards: Cards, size: int, models: Sequence[CardModel], sequences: int) -> bool:
    """Whether `size` cards can share every layer and hold the models, each with its part of the sequences."""
    *others, model = models
    # A catalogue splits heads over its cards and copies none.
    if any(one.config.num_heads % size or one.config.num_kv_heads % size for one in models):
        return False
    device = Device(
        name=cards.name, kind="gpu", memory_bytes=cards.bytes_each, compute_capability=cards.compute_capability
    )
    # A second model is counted as a draft is: its weights, and its keys and values of as many tokens.
    second = [PlacedDraft(name=one.name, config=one.config, form=FORMATS[one.weights]) for one in others]
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
    return group.kv_bytes // sum(one.kv_bytes_per_token for one in group.models) >= workload.tokens


def _group(cards: Cards, first: int, size: int, models: Sequence[CardModel]) -> GpuGroupSpec:
    name = f"card-{first}" if size == 1 else f"cards-{first}-{first + size - 1}"
    return GpuGroupSpec(name=name, cards=size, card_bytes=cards.bytes_each, models=[one.spec() for one in models])
