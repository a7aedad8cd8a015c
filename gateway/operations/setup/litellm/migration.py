"""One config.yaml of LiteLLM's, migrated: the entries of a catalogue, settings, and the account of every field.

Its names become up to eight tiers, and targets and embedding models for all others; its fallbacks say which names
stand in for a name, in their order. A config of another gateway becomes one of LiteLLM's form first.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.operations.setup.candidate import Candidate, in_order, tier_name
from gateway.operations.setup.found_tiers import SetupError
from gateway.operations.setup.gateways.hosted import is_portkey, presets_of, read_portkey, read_presets
from gateway.operations.setup.gateways.served import read_bifrost, read_tensorzero
from gateway.operations.setup.gateways.translation import Translation
from gateway.operations.setup.litellm.config_file import Account, mapping, read_config, report_lines
from gateway.operations.setup.litellm.deployments import numbered
from gateway.operations.setup.litellm.models import (
    Backend,
    Group,
    ModelsAt,
    Read,
    merged,
    names_used,
    read_models,
    with_credentials,
)
from gateway.operations.setup.litellm.settings import settings_of, without_replicas
from inference_core.io.files import read_text_file
from tiers.catalog.price_list import listed_embedding
from tiers.catalog.tier_spec import MAX_TIERS, MIN_TIERS

# LiteLLM's `max_fallbacks`: the fallbacks of fallbacks are tried so deep.
_DEEPEST = 5
_ANY = "*"
_CARRIED = "`fallback` of the entry"
_OF_ALL = "`fallback` of entries without their own"
_OF_CONTEXT = "the end of the entry's `fallback`, which is tried whatever the failure"
_SECTIONS = ("litellm_settings", "router_settings")
_FIELDS = (("fallbacks", _CARRIED), ("context_window_fallbacks", _OF_CONTEXT))

Resolve = Callable[[str], str | None]
"""The name of the models that a name stands for; None if there are none."""


class Chains:
    """What the file says of fallbacks. Call `of` for each name of the model_list."""

    def __init__(self, config: Mapping[str, Any], resolve: Resolve, account: Account) -> None:
        self._resolve, self._account = resolve, account
        self._paths: dict[str, list[str]] = {}
        self._own: dict[str, dict[str, list[str]]] = {field: {} for field, _ in _FIELDS}
        self._usual: list[str] | None = None
        for section in _SECTIONS:
            values = mapping(config.get(section))
            if "default_fallbacks" in values:
                self._usual = self._known(f"{section}.default_fallbacks", values["default_fallbacks"], _OF_ALL)
            for field, text in _FIELDS:
                self._read(f"{section}.{field}", values.get(field), field, text)

    def of(self, name: str) -> list[str]:
        """Return the names that stand in for `name`, those that stand in for them among them."""
        found: list[str] = []
        self._follow(name, found, 1)
        return [one for one in dict.fromkeys(found) if one != name]

    def leave(self, name: str, why: str) -> None:
        """Note that the chain of `name` became nothing."""
        for path in self._paths.get(name, []):
            self._account.leave(path, why)

    def _follow(self, name: str, found: list[str], depth: int) -> None:
        own = self._own["fallbacks"].get(name, self._usual if depth == 1 else None) or []
        for other in [*own, *self._own["context_window_fallbacks"].get(name, [])]:
            if other in found:
                continue
            found.append(other)
            if depth < _DEEPEST:
                self._follow(other, found, depth + 1)

    def _read(self, path: str, lists: object, field: str, text: str) -> None:
        for place, one in enumerate(lists if isinstance(lists, list) else []):
            for name, names in mapping(one).items():
                where = f"{path}[{place}].{name}"
                if name == _ANY:
                    self._usual = self._known(where, names, _OF_ALL)
                elif (known := self._resolve(str(name))) is None:
                    self._account.leave(where, f"no model has the name {name}")
                elif (stand_ins := self._known(where, names, text)) is not None:
                    self._own[field][known] = stand_ins
                    self._paths.setdefault(known, []).append(where)

    def _known(self, path: str, names: object, text: str) -> list[str] | None:
        """Return what the names of a list stand for, and note those that stand for nothing."""
        given: Sequence[object] = [names] if isinstance(names, str) else names if isinstance(names, list) else [None]
        found = [(name, self._resolve(name) if isinstance(name, str) else None) for name in given]
        unknown = [str(name) for name, known in found if known is None]
        if unknown and len(unknown) == len(found):
            self._account.leave(path, f"no model has the name {', '.join(unknown)}")
            return None
        self._account.carry(path, f"{text}; but for {', '.join(unknown)}, which no model has" if unknown else text)
        return [known for _, known in found if known is not None]


RESERVED = re.compile(r"auto|tier-[0-9]+")
"""Names of models that mean something else here."""
_HAS_MEANING = "AIO gives the name {name} a meaning of its own, and answers it; this model is {entry}"
_TIME_LIMITS = ("read_timeout_seconds", "total_timeout_seconds")
_NO_LIMIT = "limits per minute are of models that chat"


class Entries(msgspec.Struct, kw_only=True):
    """The entries of a catalogue."""

    tiers: list[Candidate]
    """Cheapest first."""
    targets: list[Candidate]
    """Entries that answer by name and are no tiers."""
    embeddings: list[dict[str, Any]]
    """Tables of the catalogue."""
    aliases: dict[str, str]
    """Further names of all."""
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


_HEAD = "# AIO's settings, carried over from {file}; for a shell: set -a; . ./{name}; set +a\n"


class Migration(msgspec.Struct, kw_only=True):
    """What a file of LiteLLM becomes."""

    candidates: list[Candidate]
    """The tiers."""
    targets: list[Candidate]
    """Entries that answer by name and are no tiers."""
    embeddings: list[dict[str, Any]]
    """Entries that embed."""
    aliases: dict[str, str]
    environment: dict[str, str]
    """Settings, whose values may name other variables as a shell does."""
    commands: list[str]
    """Commands for the running gateway."""
    variables: dict[str, str]
    """Variables to set to keys that stand in the file, each with its path there."""
    notes: list[str]
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
        lines = [f"{variable}={_quoted(value)}\n" for variable, value in self.environment.items()]
        return "".join([_HEAD.format(file=file.name, name=name), *lines]) if lines else ""

    def report(self) -> str:
        """Return what became of every field, one line for each kind of field and what became of it."""
        parts = [
            f"{head}:\n" + "\n".join(f"  {line}" for line in report_lines(fields))
            for head, fields in (("carried over", self.carried), ("not carried over", self.left))
            if fields
        ]
        return "\n\n".join(parts)


def migrated(
    path: Path, environ: Mapping[str, str], models_at: ModelsAt = lambda url, key: [], most: int = MAX_TIERS
) -> Migration:
    """Return the migration of a file. `models_at`: which models a server lists; `most`: tiers. Raises `SetupError` if
    the file is none of LiteLLM's."""
    account = Account()
    return migrated_config(read_config(path, account), account, environ, models_at, most)


def migrated_config(
    config: Mapping[str, Any], account: Account, environ: Mapping[str, str], models_at: ModelsAt, most: int
) -> Migration:
    """Return the migration of the content of a file, as `migrated` does; `account` gets every field."""
    declared = mapping(config.get("environment_variables"))
    known = {str(name): str(value) for name, value in declared.items() if value is not None} | dict(environ)
    settings = settings_of(config, known, account)
    models = with_credentials(config, account)
    read = read_models(models, frozenset(names_used(config)), known, account, settings.limits, models_at)
    aliases = _aliases(config, read, settings.aliases, account)
    chains = Chains(config, lambda name: aliases.get(name, name if name in read.groups else None), account)
    for group in read.groups.values():
        if group.mode == "chat":
            group.chain = chains.of(group.name)
        else:
            chains.leave(group.name, f"nothing stands in for a model of the mode {group.mode}")
    groups = merged(read.groups)
    if not any(len(backend.places) > 1 for group in groups for backend in group.backends):
        without_replicas(account)
    found = entries_of(groups, settings.balancing, account, most)
    for alias, name in aliases.items():
        found.aliases[alias] = found.aliases.get(name, name)
    if read.other is not None:
        found.aliases["*"] = found.aliases.get(read.other, read.other)
    account.close(config)
    used = {place.key for group in groups for backend in group.backends for place in backend.places}
    return Migration(
        candidates=found.tiers,
        targets=found.targets,
        embeddings=found.embeddings,
        aliases=found.aliases,
        environment=read.reader.environment | settings.environment,
        commands=settings.commands,
        variables={name: place for name, place in read.reader.variables.items() if name in used},
        notes=found.notes,
        account=account,
    )


def doubled(tiers: Sequence[Candidate]) -> list[Candidate]:
    """Return the tiers, a single one twice: a catalogue has two at least, and `auto` is that model then."""
    if len(tiers) != 1:
        return list(tiers)
    again = msgspec.structs.replace(tiers[0], name=f"{tiers[0].name}-again", source=f"{tiers[0].source}, again")
    return [*tiers, again]


def _aliases(config: Mapping[str, Any], read: Read, given: Mapping[str, str], account: Account) -> dict[str, str]:
    """Return the aliases of the file, each with the name of the model_list that it stands for."""
    found: dict[str, str] = {}
    of_router = mapping(mapping(config.get("router_settings")).get("model_group_alias"))
    for alias, model in given.items():
        section = "router_settings.model_group_alias"
        place = f"{section}.{alias}" if alias in of_router else f"litellm_settings.model_alias_map.{alias}"
        while model in given and model not in read.groups and given[model] != model:
            model = given[model]
        if model in read.groups and alias not in read.groups and not RESERVED.fullmatch(alias):
            found[alias] = model
        else:
            del account.carried[place]
            account.leave(place, f"{model} is no model here, or {alias} has another meaning")
    return found


def _quoted(value: str) -> str:
    """Quote a value for a shell; one that names variables stays open to them."""
    if "${" not in value:
        return shlex.quote(value)
    escaped = re.sub(r'(["\\`]|\$(?!\{[A-Za-z_][A-Za-z0-9_]*\}))', r"\\\1", value)
    return f'"{escaped}"'


def migrated_file(
    path: Path, environ: Mapping[str, str], models_at: ModelsAt = lambda url, key: [], most: int = MAX_TIERS
) -> Migration:
    """Return the migration of LiteLLM's config.yaml, Portkey's or Bifrost's JSON, TensorZero's tensorzero.toml or
    presets of OpenRouter, as the content tells. Raises `SetupError`."""
    translation = _translated(path)
    if translation is None:
        return migrated(path, environ, models_at, most)
    account = Account()
    found = migrated_config(translation.config, account, environ, models_at, most)
    found.account = translation.renamed(account)
    found.candidates = [translation.named(one) for one in found.candidates]
    found.targets = [translation.named(one) for one in found.targets]
    found.variables = {name: translation.place_of(place) or place for name, place in found.variables.items()}
    return found


def _translated(path: Path) -> Translation | None:
    """None for LiteLLM's YAML."""
    if path.suffix not in (".json", ".toml"):
        return None
    try:
        text = read_text_file(path)
        found: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    document = mapping(found)
    if path.suffix == ".toml":
        if not document.keys() & {"models", "functions", "embedding_models"}:
            raise SetupError(f"{path} has no models and no functions: give a tensorzero.toml")
        return read_tensorzero(document)
    if isinstance(document.get("providers"), dict):
        return read_bifrost(document)
    if is_portkey(document):
        return read_portkey(document)
    if presets_of(found):
        return read_presets(found)
    raise SetupError(f"{path} is no config of Portkey or Bifrost, and has no presets of OpenRouter")
