"""LiteLLM's names as entries of a catalogue: up to eight tiers, and targets and embedding models for all others."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.operations.setup.candidate import Candidate, in_order, tier_name
from gateway.operations.setup.litellm.config_file import Account
from gateway.operations.setup.litellm.deployments import numbered
from gateway.operations.setup.litellm.models import Backend, Group
from tiers.catalog.price_list import listed_embedding
from tiers.catalog.tier_spec import MIN_TIERS

RESERVED = re.compile(r"auto|tier-[0-9]+")
"""Names of models that mean something else here."""
_HAS_MEANING = "AIO gives the name {name} a meaning of its own, and answers it; this model is {entry}"
_TIME_LIMITS = ("read_timeout_seconds", "total_timeout_seconds")
_NO_LIMIT = "limits per minute are of models that chat"


class Entries(msgspec.Struct, kw_only=True):
    """`tiers`: cheapest first; `targets`; `embeddings`: as tables of the catalogue; `aliases`: further names of all."""

    tiers: list[Candidate]
    targets: list[Candidate]
    embeddings: list[dict[str, Any]]
    aliases: dict[str, str]
    notes: list[str]


def entries_of(groups: Sequence[Group], balancing: Mapping[str, Any], account: Account, most: int) -> Entries:
    """Return the entries of all groups, at most `most` of them tiers."""
    chats = [group for group in groups if group.mode == "chat"]
    tiers = _as_tiers(chats, balancing, most)
    _name(groups, tiers)
    by_name = {name: group for group in groups for name in (group.name, *group.aliases)}
    found = Entries(tiers=[], targets=[], embeddings=[], aliases={}, notes=[])
    for group in groups:
        _add_aliases(group, found, account)
    roles: dict[str, list[str]] = {}
    drafts = {backend.entry: backend.candidate(balancing) for group in chats for backend in group.backends}
    for group in chats:
        for place, backend in enumerate(group.backends):
            stand_ins = _stand_ins(group, place, by_name)
            if stand_ins and (place == 0 or any(backend is one for one in tiers)):
                is_named = any(one.entry in stand_ins for one in tiers)
                chain = {"fallback": stand_ins} | ({"fallback_named": True} if is_named else {})
                one = drafts[backend.entry]
                drafts[backend.entry] = msgspec.structs.replace(one, further=one.further | chain)
            _add_role(roles, backend, _role(group, place, backend, tiers))
    found.tiers = in_order(drafts.pop(backend.entry) for backend in tiers)
    found.targets = [_standing(one, found.tiers) for one in drafts.values()]
    for group in groups:
        if group.mode == "embedding":
            _add_role(roles, group.backends[0], f"embedding model {group.backends[0].entry}")
            found.embeddings.append(_embedding(group.backends[0], found.notes, account))
        elif group.mode != "chat":
            _add_role(roles, group.backends[0], f"target {group.backends[0].entry} for {group.mode}")
            found.targets.append(_passed(group, account))
    for path, said in roles.items():
        named = said[0] if len(said) == 1 else f"{len(said)} entries: " + ", ".join(one.split(":")[0] for one in said)
        account.carry(f"{path}.model_name", named)
    return found


def _as_tiers(chats: Sequence[Group], balancing: Mapping[str, Any], most: int) -> list[Backend]:
    """Return what becomes tiers: different models, those of known price first; of a single name all that it has. Models
    of patterns only where the file names fewer than two, and of each pattern the first two."""
    if len(chats) == 1:
        return chats[0].backends[:most]
    found: list[Backend] = []
    named = [group for group in chats if not group.is_of_pattern]
    for group in named if len(named) >= MIN_TIERS else [*named, *_firsts(chats)]:
        if all(group.backends[0].same != one.same for one in found):
            found.append(group.backends[0])
    return sorted(found, key=lambda one: one.candidate(balancing).lacks_price)[:most]


def _firsts(chats: Sequence[Group]) -> list[Group]:
    """Return the first two groups of each pattern and provider."""
    found: dict[tuple[str, str | None], list[Group]] = {}
    for group in chats:
        if group.is_of_pattern:
            first = group.backends[0].first
            found.setdefault((first.path, first.server.provider), []).append(group)
    return [group for several in found.values() for group in several[:MIN_TIERS]]


def _name(groups: Sequence[Group], tiers: Sequence[Backend]) -> None:
    """Give each backend a name in the catalogue: LiteLLM's for the first of a group, where it can be one."""
    taken = {name for group in groups for name in (group.name, *group.aliases)}
    # A tier answers to its model's name, too, before a target and in the place of an embedding model.
    for group in groups:
        names = (group.name, *group.aliases)
        wanted = next((name for name in names if tier_name(name) == name), tier_name(group.name))
        wanted = f"{wanted}-model" if RESERVED.fullmatch(wanted) else wanted
        for place, backend in enumerate(group.backends):
            is_tier = any(backend is one for one in tiers)
            models = {one.first.server.model for one in tiers if one is not backend}
            is_own = place == 0 and wanted in names and (is_tier or wanted not in models)
            free = (name for name in numbered(wanted) if name not in taken and name not in models)
            backend.entry = wanted if is_own else next(free)
            taken.add(backend.entry)


def _add_aliases(group: Group, found: Entries, account: Account) -> None:
    entry = group.backends[0].entry
    for name in (group.name, *group.aliases):
        if RESERVED.fullmatch(name):
            path = f"{group.backends[0].paths[0]}.model_name, {name}"
            account.leave(path, _HAS_MEANING.format(name=name, entry=entry))
        elif name != entry:
            found.aliases[name] = entry


def _stand_ins(group: Group, place: int, by_name: Mapping[str, Group]) -> list[str]:
    """Return the entries that stand in for one of a group: the others of the group, then those of its chain."""
    own = [backend.entry for backend in (*group.backends[place + 1 :], *group.backends[:place])]
    others = [by_name[name] for name in group.chain if by_name[name].mode == "chat"]
    chained = [backend.entry for other in others for backend in other.backends]
    return [name for name in dict.fromkeys([*own, *chained]) if name != group.backends[place].entry]


def _role(group: Group, place: int, backend: Backend, tiers: Iterable[Backend]) -> str:
    kind = "tier" if any(backend is one for one in tiers) else "target"
    return f"{kind} {backend.entry}" + (f", which stands in for {group.name}" if place else "")


def _add_role(roles: dict[str, list[str]], backend: Backend, role: str) -> None:
    server = backend.first.server
    for path in backend.paths:
        roles.setdefault(path, []).append(f"{role}: {server.model} ({server.provider or server.kind})")


def _standing(target: Candidate, tiers: Sequence[Candidate]) -> Candidate:
    """Return the target as one that counts as the dearest tier that costs no more."""
    cheaper = [tier for tier in tiers if tier.cost_usd <= target.cost_usd]
    counts_as = cheaper[-1] if cheaper else tiers[0]
    return msgspec.structs.replace(target, further=target.further | {"stands_for": counts_as.name})


def _passed(group: Group, account: Account) -> Candidate:
    """Return the target for an endpoint that is passed through."""
    backend = group.backends[0]
    one = _without_limits(backend, account).candidate({})
    further = {name: one.further[name] for name in _TIME_LIMITS if name in one.further}
    return msgspec.structs.replace(one, max_context=None, further=further | {"serves": [group.mode]})


def _embedding(backend: Backend, notes: list[str], account: Account) -> dict[str, Any]:
    """Return a table of [[embeddings]]."""
    one, server = _without_limits(backend, account).first, backend.first.server
    price = one.price or listed_embedding(server.model, provider=server.provider, base_url=server.url or "")
    found: dict[str, Any] = {"name": backend.entry}
    found |= {"provider": server.provider} if server.provider else {}
    found |= {"url": server.url} if server.url else {}
    found["model"] = server.model
    found |= {"api_key_env": backend.places[0].key} if backend.places[0].key else {}
    if (seconds := one.further.get("total_timeout_seconds")) is not None:
        found["timeout_seconds"] = seconds
    if price is None:
        found["input_usd_per_million"] = 0.0
        if not backend.candidate({}).is_own:
            notes.append(f"{backend.entry}: its price is unknown, and 0 stands in the catalogue. Write its price")
    elif one.price is not None:
        found["input_usd_per_million"] = price.input_usd_per_million
    return found


def _without_limits(backend: Backend, account: Account) -> Backend:
    """Return the backend without limits per minute, which are noted."""
    for path in backend.paths:
        for name in ("rpm", "tpm"):
            for place in (f"{path}.{name}", f"{path}.litellm_params.{name}"):
                if account.carried.pop(place, None) is not None:
                    account.leave(place, _NO_LIMIT)
    places = [backend.places[0]._replace(requests=None, tokens=None)]
    return msgspec.structs.replace(backend, places=places)
