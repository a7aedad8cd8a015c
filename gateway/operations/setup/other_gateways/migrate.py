"""A configuration of another gateway as the entries of a catalogue, settings, and the account of every field.

Its names become up to eight tiers, and targets and embedding models for all others; its fallbacks say which names
stand in for a name, in their order.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gateway.operations.setup.candidate import Candidate, in_order, tier_name
from gateway.operations.setup.other_gateways.account import Account, Fields
from gateway.operations.setup.other_gateways.models import LIMITS, Backend, Entry, Group, ModelReader, numbered
from tiers.catalog.price_list import listed_embedding
from tiers.catalog.tier_spec import MAX_TIERS, MIN_TIERS

# LiteLLM's `max_fallbacks`: the fallbacks of fallbacks are tried so deep.
_DEEPEST = 5
_CARRIED = "`fallback` of the entry"
RESERVED = re.compile(r"auto|tier-[0-9]+")
"""Names of models that mean something else here."""
_HEAD = "# AIO's settings, carried over from {file}; for a shell: set -a; . ./{name}; set +a\n"


class Fallback(NamedTuple):
    """Names that stand in for a name; `*` is any without its own."""

    name: str
    others: list[str]
    path: str


class Source(msgspec.Struct, kw_only=True):
    """What a file of a gateway says."""

    gateway: str
    document: Mapping[str, Any]
    entries: list[Entry] = []
    fallbacks: list[Fallback] = []
    aliases: dict[str, tuple[str, str]] = {}
    """Each with the name that it stands for, and its path in the file."""
    settings: Fields = msgspec.field(default_factory=Fields)
    """Fields that hold for all entries, settings and commands, by name."""
    environ: dict[str, str] = {}
    """Variables that the file itself declares."""


class Migration(msgspec.Struct, kw_only=True):
    """What a file of another gateway becomes."""

    candidates: list[Candidate] = []
    """The tiers."""
    targets: list[Candidate] = []
    """Entries that answer by name and are no tiers."""
    embeddings: list[dict[str, Any]] = []
    """Tables of embedding models."""
    aliases: dict[str, str] = {}
    environment: dict[str, str] = {}
    """Settings."""
    commands: list[str] = []
    """Commands for the running gateway."""
    variables: dict[str, str] = {}
    """Variables to set to keys that stand in the file, each with its path there."""
    notes: list[str] = []
    """What the operator has to look at."""
    account: Account

    @property
    def carried(self) -> dict[str, str]:
        """The fields that became something, by path, with what they became."""
        return self.account.carried

    @property
    def left(self) -> dict[str, str]:
        """The fields that became nothing, by path, with the reason."""
        return self.account.left

    def settings_text(self, file: Path, name: str) -> str:
        """Return the settings as a file for a shell; empty without any."""
        lines = [f"{variable}={shlex.quote(value)}\n" for variable, value in self.environment.items()]
        return "".join([_HEAD.format(file=file.name, name=name), *lines]) if lines else ""


def migrated(source: Source, account: Account, environ: Mapping[str, str], max_tiers: int = MAX_TIERS) -> Migration:
    """Return the migration of a file that was read; `account` has what its reader noted."""
    migration = Migration(account=account)
    balancing = _apply_settings(source.settings, migration)
    names_used = {name for each in source.fallbacks for name in (each.name, *each.others)}
    names_used |= {name for name, _ in source.aliases.values()}
    reader = ModelReader(source.environ | dict(environ), account, source.settings)
    groups, other = reader.groups(source.entries, frozenset(names_used))
    aliases = _aliases(source, groups, account)
    _add_chains(source, groups, aliases, account)
    if not any(len(backend.replicas) > 1 for group in groups.values() for backend in group.backends):
        for name in (name for name in source.settings if name.startswith("balancing.")):
            account.leave(source.settings.paths[name], "it concerns replicas, and no model has several servers")
    _add_entries(migration, source.gateway, list(groups.values()), balancing, max_tiers)
    for alias, name in aliases.items():
        migration.aliases[alias] = migration.aliases.get(name, name)
    if other is not None:
        migration.aliases["*"] = migration.aliases.get(other, other)
    account.close(source.document)
    used = {replica.key for group in groups.values() for backend in group.backends for replica in backend.replicas}
    migration.variables = {name: path for name, path in reader.variables.items() if name in used}
    return migration


def _apply_settings(settings: Fields, migration: Migration) -> dict[str, Any]:
    """Add the settings and commands; return the fields of balancing."""
    for name, value in settings.items():
        variable, _, text = name.partition("=")
        number = f"{value:g}" if isinstance(value, float) and value < 1e6 else f"{value:.0f}" if "{}" in name else ""
        if name.startswith("aio "):
            migration.commands.append(name.format(number))
        elif name.startswith("AIO_"):
            migration.environment[variable] = (text or str(value)).replace("{}", number)
    balancing = {name.partition(".")[2]: value for name, value in settings.items() if name.startswith("balancing.")}
    if balancing.get("ejection_seconds", 0) > 300:
        balancing["max_ejection_seconds"] = balancing["ejection_seconds"]
    return balancing


def _aliases(source: Source, groups: Mapping[str, Group], account: Account) -> dict[str, str]:
    """Return the file's further names, each with the name of an entry that it stands for."""
    aliases: dict[str, str] = {}
    for alias, (name, path) in source.aliases.items():
        met = {alias}
        while name not in groups and name in source.aliases and name not in met:
            met.add(name)
            name = source.aliases[name][0]
        if name in groups and alias not in groups and not RESERVED.fullmatch(alias):
            aliases[alias] = name
            account.carry(path, f"alias of {name}")
        else:
            account.leave(path, f"{name} is no model here, or {alias} has another meaning")
    return aliases


def _add_chains(source: Source, groups: Mapping[str, Group], aliases: Mapping[str, str], account: Account) -> None:
    """Give each group the names that stand in for it, those that stand in for them among them."""
    own: dict[str, list[str]] = {}
    for name, others, path in source.fallbacks:
        entry = aliases.get(name, name)
        unknown = [other for other in others if aliases.get(other, other) not in groups]
        if name != "*" and entry not in groups:
            account.leave(path, f"no model has the name {name}")
        elif name != "*" and groups[entry].mode != "chat":
            account.leave(path, f"nothing stands in for a model of the mode {groups[entry].mode}")
        elif unknown and len(unknown) == len(others):
            account.leave(path, f"no model has the name {', '.join(unknown)}")
        else:
            text = _CARRIED if name != "*" else "`fallback` of entries without their own"
            account.carry(path, f"{text}; but for {', '.join(unknown)}, which no model has" if unknown else text)
            own.setdefault(entry, []).extend(aliases.get(other, other) for other in others if other not in unknown)

    def follow(name: str, chain: list[str], depth: int) -> list[str]:
        for other in own.get(name, own.get("*", []) if depth == 1 else []):
            if other not in chain:
                chain.append(other)
                if depth < _DEEPEST:
                    follow(other, chain, depth + 1)
        return chain

    for group in groups.values():
        group.chain = [name for name in follow(group.name, [], 1) if name != group.name]


def _add_entries(
    migration: Migration, gateway: str, groups: Sequence[Group], balancing: Mapping[str, Any], max_tiers: int
) -> None:
    """Add the entries of all groups, at most `max_tiers` of them tiers."""
    chats = [group for group in groups if group.mode == "chat"]
    tiers = _tiers_of(chats, gateway, max_tiers)
    tier_entries = _name_entries(groups, tiers, migration)
    by_name = {group.name: group for group in chats}
    drafts = {backend.entry: backend.candidate(gateway, balancing) for group in chats for backend in group.backends}
    roles: dict[str, list[str]] = {}
    for group in chats:
        for backend in group.backends:
            index = group.backends.index(backend)
            stand_ins = _stand_ins(group, index, by_name)
            if stand_ins and (index == 0 or backend.entry in tier_entries):
                chain = {"fallback": stand_ins} | ({"fallback_named": True} if tier_entries & {*stand_ins} else {})
                draft = drafts[backend.entry]
                drafts[backend.entry] = msgspec.structs.replace(draft, further=draft.further | chain)
            kind = "tier" if backend.entry in tier_entries else "target"
            _add_role(roles, backend, f"{kind} {backend.entry}" + (f", a stand-in of {group.name}" if index else ""))
    migration.candidates = in_order(drafts.pop(backend.entry) for backend in tiers)
    migration.targets = [_standing(draft, migration.candidates) for draft in drafts.values()]
    for group in groups:
        backend = group.backends[0]
        if group.mode == "embedding":
            _add_role(roles, backend, f"embedding model {backend.entry}")
            migration.embeddings.append(_embedding(backend, gateway, migration.notes))
        elif group.mode != "chat":
            _add_role(roles, backend, f"target {backend.entry} for {group.mode}")
            candidate = backend.candidate(gateway, {})
            further = {name: candidate.further[name] for name in LIMITS if name in candidate.further} | {
                "serves": [group.mode]
            }
            migration.targets.append(msgspec.structs.replace(candidate, max_context=None, further=further))
    for path, texts in roles.items():
        listed = ", ".join(text.partition(":")[0] for text in texts)
        migration.account.carry(path, texts[0] if len(texts) == 1 else f"{len(texts)} entries: {listed}")


def _tiers_of(chats: Sequence[Group], gateway: str, most: int) -> list[Backend]:
    """Return what becomes tiers: different models, those of known price first; of a single name all that it has. Models
    of patterns only where the file names fewer than two, and of each pattern the first two."""
    if len(chats) == 1:
        return chats[0].backends[:most]
    named, of_patterns = [group for group in chats if not group.pattern], dict[str, list[Group]]()
    for group in chats:
        if group.pattern:
            of_patterns.setdefault(f"{group.pattern} {group.backends[0].server.provider}", []).append(group)
    firsts = [group for several in of_patterns.values() for group in several[:MIN_TIERS]]
    tiers: list[Backend] = []
    for group in named if len(named) >= MIN_TIERS else [*named, *firsts]:
        if all(group.backends[0].same != tier.same for tier in tiers):
            tiers.append(group.backends[0])
    return sorted(tiers, key=lambda backend: backend.candidate(gateway, {}).lacks_price)[:most]


def _name_entries(groups: Sequence[Group], tiers: Sequence[Backend], migration: Migration) -> set[str]:
    """Give each backend a name in the catalogue: the file's for the first of a group, where it can be one. Return the
    names of the tiers."""
    names = {group.name for group in groups}
    tier_entries = set[str]()
    # A tier answers to its model's name, too, before a target and in the place of an embedding model.
    for group in groups:
        wanted = tier_name(group.name)
        wanted = f"{wanted}-model" if RESERVED.fullmatch(wanted) else wanted
        for index, backend in enumerate(group.backends):
            is_tier = any(backend is tier for tier in tiers)
            models = {tier.server.model for tier in tiers if tier is not backend}
            is_own = index == 0 and wanted == group.name and (is_tier or wanted not in models)
            free = (name for name in numbered(wanted) if name not in names and name not in models)
            backend.entry = wanted if is_own else next(free)
            names.add(backend.entry)
            tier_entries |= {backend.entry} if is_tier else set()
        entry = group.backends[0].entry
        if RESERVED.fullmatch(group.name):
            why = f"AIO gives the name {group.name} a meaning of its own, and answers it; this model is {entry}"
            migration.account.leave(f"{group.backends[0].paths[0]}, {group.name}", why)
        elif group.name != entry:
            migration.aliases[group.name] = entry
    return tier_entries


def _stand_ins(group: Group, index: int, by_name: Mapping[str, Group]) -> list[str]:
    """Return the entries that stand in for one of a group: the others of the group, then those of its chain."""
    own = [backend.entry for backend in (*group.backends[index + 1 :], *group.backends[:index])]
    chained = [backend.entry for name in group.chain if name in by_name for backend in by_name[name].backends]
    return [name for name in dict.fromkeys([*own, *chained]) if name != group.backends[index].entry]


def _add_role(roles: dict[str, list[str]], backend: Backend, role: str) -> None:
    for path in backend.paths:
        server = backend.server
        roles.setdefault(path, []).append(f"{role}: {server.model} ({server.provider or server.kind})")


def _standing(target: Candidate, tiers: Sequence[Candidate]) -> Candidate:
    """Return the target as one that counts as the dearest tier that costs no more."""
    cheaper = [tier for tier in tiers if tier.cost_usd <= target.cost_usd]
    counts_as = cheaper[-1] if cheaper else tiers[0]
    return msgspec.structs.replace(target, further=target.further | {"stands_for": counts_as.name})


def _embedding(backend: Backend, gateway: str, notes: list[str]) -> dict[str, Any]:
    """Return a table of [[embeddings]]."""
    server, key = backend.server, backend.replicas[0].key
    listed = listed_embedding(server.model, provider=server.provider, base_url=server.url or "")
    table: dict[str, Any] = {
        "name": backend.entry, "provider": server.provider, "url": server.url, "model": server.model,
        "api_key_env": key, "timeout_seconds": backend.further.get("total_timeout_seconds"),
    }  # fmt: skip
    if backend.price is not None:
        table["input_usd_per_million"] = backend.price.input_usd_per_million
    elif listed is None:
        table["input_usd_per_million"] = 0.0
        if not backend.candidate(gateway, {}).is_own:
            notes.append(f"{backend.entry}: its price is unknown, and 0 stands in the catalogue. Write its price")
    return {name: value for name, value in table.items() if value is not None}


def doubled(tiers: Iterable[Candidate]) -> list[Candidate]:
    """Return the tiers, a single one twice: a catalogue has two at least, and `auto` is that model then."""
    listed = list(tiers)
    if len(listed) == 1:
        again = f"{listed[0].name}-again"
        listed.append(msgspec.structs.replace(listed[0], name=again, source=f"{listed[0].source}, again"))
    return listed
