"""LiteLLM's model_list as models by name: deployments of one model under one name are replicas, others stand in. Of
names that are patterns, as `openai/*`, it is looked up which models are known of them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.operations.setup.candidate import PROPOSALS, Candidate, key_variable, tier_name
from gateway.operations.setup.litellm.config_file import Account, mapping, variable_of
from gateway.operations.setup.litellm.deployments import Deployment, DeploymentReader, Place
from gateway.operations.setup.litellm.servers import PROVIDERS, SERVERS, split_model
from tiers.catalog.price_list import listed_chat_models, listed_model
from tiers.catalog.replica_spec import server_key

MOST_LISTED = 24
"""Models that one pattern becomes."""
# What LiteLLM's `*` reaches by names without a provider.
_USUAL = ("openai", "anthropic", "gemini")

ModelsAt = Callable[[str, str], list[str]]
"""The models that a server at an address lists; it gets the key, "" for none. Empty if it lists none."""


def is_pattern(entry: Mapping[str, Any]) -> bool:
    """Whether an entry has a pattern in the place of a name or a model."""
    model = mapping(entry.get("litellm_params")).get("model")
    return any(isinstance(one, str) and "*" in one for one in (entry.get("model_name"), model))


def expanded(
    entry: Mapping[str, Any], named: frozenset[str], environ: Mapping[str, str], models_at: ModelsAt
) -> list[dict[str, Any]]:
    """Return entries for the names that are known of a pattern's: those that the file itself uses (`named`), then those
    that its server or the price list has, the models that `aio init` proposes first."""
    params = mapping(entry.get("litellm_params"))
    name, model = str(entry.get("model_name")), str(params.get("model"))
    pairs: dict[str, str] = {}
    for asked in sorted(named):
        if (part := _part(name, asked)) is not None:
            pairs[asked] = model.replace("*", part)
    if "*" not in model:
        pairs |= dict.fromkeys(_names_like(name), model)
        # What has any name needs one of its own, too.
        pairs |= {} if pairs else {tier_name(split_model(model, None)[1]): model}
    else:
        for full in _known(model, params, environ, models_at):
            if len({*pairs.values()}) >= MOST_LISTED:
                break
            for own in _names_of(name, model, full):
                pairs.setdefault(own, full)
    return [
        {**entry, "model_name": own, "litellm_params": {**params, "model": full}, "model_info": _info(entry)}
        for own, full in pairs.items()
    ]


def _names_like(pattern: str) -> list[str]:
    """Return names of well-known models that a pattern matches; none for `*`."""
    if pattern == "*":
        return []
    names = [one.model for provider in _USUAL for one in listed_chat_models(provider)]
    return [name for name in names if _part(pattern, name) is not None][:MOST_LISTED]


def _info(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping(entry.get("model_info")).items() if key != "id"}


def _part(pattern: str, text: str) -> str | None:
    """Return what the pattern's first star stands for in `text`; None if it does not match."""
    found = re.fullmatch(re.escape(pattern).replace(r"\*", "(.+)"), text)
    return None if found is None or not found.groups() else found[1]


def _names_of(name: str, model: str, full: str) -> Iterator[str]:
    """Yield the names by which a pattern reaches the model `provider/model`."""
    provider, _, bare = full.partition("/")
    if model == "*":
        if (part := full if name == "*" else _part(name, full)) is not None:
            yield full if name == "*" else name.replace("*", part)
        if name == "*" and provider in ("openai", "anthropic"):
            yield bare
    elif (part := _part(model, full)) is not None:
        yield name.replace("*", part)


def _known(
    model: str, params: Mapping[str, Any], environ: Mapping[str, str], models_at: ModelsAt
) -> Iterator[str]:  # fmt: skip
    """Yield models of a pattern as `provider/model`."""
    provider, _ = split_model(model, params.get("custom_llm_provider"))
    url = params.get("api_base") or params.get("base_url")
    if (variable := variable_of(url)) is not None:
        url = environ.get(variable, "").strip()
    if isinstance(url, str) and url and PROVIDERS.get(provider, "openai") == "openai":
        path = SERVERS[provider].path if provider in SERVERS else ""
        address = url.rstrip("/")
        key = params.get("api_key")
        if (variable := variable_of(key)) is not None:
            key = server_key(environ, variable)
        listed = models_at(address if address.endswith(path) else address + path, key if isinstance(key, str) else "")
        yield from (f"{provider}/{one}" for one in listed)
        return
    if "*" in model and model != "*":
        yield from _listed(provider)
        return
    # Those whose keys are here; without any, all.
    usual = [one for one in _USUAL if key_variable(PROVIDERS[one], environ)] or list(_USUAL)
    for one in usual:
        yield from list(_listed(one))[: MOST_LISTED // len(usual)]


def _listed(provider: str) -> Iterator[str]:
    known = PROVIDERS.get(provider)
    for proposal in PROPOSALS:
        if proposal.provider == known:
            yield from (f"{provider}/{model}" for model in proposal.models)
    if known is not None:
        yield from (f"{provider}/{one.model}" for one in listed_chat_models(known))


_NO_SUCH = "no model of this pattern is known here: run this again where its server answers, or list the models"
_NO_OTHERS = "AIO serves models by name: add others as [[targets]] of the catalogue"
_AGAIN = "it is the model above at the same address with the same key, or without one"
_ALONE = "one server answers for such a model, that of the first entry"


class Backend(msgspec.Struct, kw_only=True):
    """A model at one or several places."""

    first: Deployment
    """Its first deployment."""
    places: list[Place]
    paths: list[str]
    """Where its deployments stand."""
    entry: str = ""
    """Its catalogue name."""

    @property
    def model(self) -> tuple[object, ...]:
        """What is the same at all places."""
        return self.first.mode, self.first.server._replace(url=None), self.first.further

    @property
    def same(self) -> tuple[object, ...]:
        """What is equal in backends that are one."""
        return (*self.model, self.places)

    def takes(self, one: Deployment) -> bool:
        """Whether another deployment is a replica."""
        is_alike = self.model == Backend(first=one, places=[], paths=[]).model
        # A provider has one address.
        return is_alike and (one.server.provider is None or one.server.url == self.first.server.url)

    def candidate(self, balancing: Mapping[str, Any]) -> Candidate:
        """Return it as an entry of the catalogue, without what stands in for it."""
        one, server = self.first, self.first.server
        listed = listed_model(one.base_model or server.model, provider=server.provider, base_url=server.url or "")
        price, context = one.price, one.max_context
        if listed is not None:
            price, context = price or listed.price, context or listed.max_context
        found = Candidate(
            source=f"LiteLLM's {one.name}",
            model=server.model,
            name=self.entry,
            kind="openai" if server.provider else server.kind,
            provider=server.provider or "",
            url=server.url or "",
            api_key_env=self.places[0].key,
            max_context=context,
            capabilities=one.capabilities,
            price=price,
            price_from="LiteLLM's config" if one.price is not None else "",
            further=one.further,
        )
        return _placed(found, self.places, balancing)


class Group(msgspec.Struct, kw_only=True):
    """All that one of LiteLLM's names stands for: `backends` in the order in which they stand in for each other."""

    name: str
    mode: str
    backends: list[Backend]
    is_of_pattern: bool = False
    """Whether the file does not name it."""
    chain: list[str] = []
    aliases: list[str] = []
    """Other names that stand for the same."""


class Read(msgspec.Struct, kw_only=True):
    """The file's models: `groups` by name, and the `other` name, if any, that answers for all that have none."""

    groups: dict[str, Group]
    other: str | None
    reader: DeploymentReader


def read_models(
    config: Mapping[str, Any], named: frozenset[str], environ: Mapping[str, str], account: Account,
    limits: Mapping[str, float], models_at: ModelsAt,
) -> Read:  # fmt: skip
    """Return the models of a config's model_list. `named`: names that the rest of the file uses; `limits`: the time
    limits in seconds of those without their own; `models_at`: which models a server lists."""
    reader = DeploymentReader(environ, account, limits)
    entries = [(f"model_list[{place}]", mapping(entry)) for place, entry in enumerate(config["model_list"])]
    found = [reader.read(path, entry) for path, entry in entries if not is_pattern(entry)]
    deployments = [one for one in found if one is not None]
    exact, other = frozenset(one.name for one in deployments), None
    for path, entry in entries:
        if not is_pattern(entry):
            continue
        known = [one for one in expanded(entry, named - exact, environ, models_at) if one["model_name"] not in exact]
        more = _of_pattern(reader, account, path, known)
        name, is_open = str(entry.get("model_name")), "*" in str(mapping(entry.get("litellm_params")).get("model"))
        if not more:
            account.left.setdefault(path, _NO_SUCH)
        elif name != "*" and is_open:
            account.leave(f"{path}.model_name, other names", _NO_OTHERS)
        if name == "*" and (more or deployments):
            other = other or ("auto" if is_open or not more else more[0].name)
            account.carry(f"{path}.model_name, other names", f"alias * of {other}")
        deployments += more
    groups = _grouped(deployments, account)
    for group in groups.values():
        group.is_of_pattern = group.name not in exact | named
    return Read(groups=groups, other=other, reader=reader)


def _of_pattern(
    reader: DeploymentReader, account: Account, path: str, entries: Sequence[Mapping[str, Any]]
) -> list[Deployment]:
    """Read the entries that one pattern became; some may be none."""
    found, fit = [], None
    for entry in entries:
        if (one := reader.read(path, entry)) is not None:
            found.append(one)
            fit = entry
    if fit is not None and account.left.pop(path, None) is not None:
        # The refusal of one took back what was said of the others.
        reader.read(path, fit)
    return found


def _grouped(deployments: Sequence[Deployment], account: Account) -> dict[str, Group]:
    by_name: dict[str, list[Deployment]] = {}
    for one in deployments:
        by_name.setdefault(one.name, []).append(one)
    groups = {}
    for name, several in by_name.items():
        mode, base_model = several[0].mode, next((one.base_model for one in several if one.base_model), "")
        group = groups[name] = Group(name=name, mode=mode, backends=[])
        for one in sorted(several, key=lambda each: each.rank):
            if one.mode != mode:
                account.leave(one.path, f"another entry of this name is a model of the mode {mode}")
            elif mode != "chat" and group.backends:
                account.leave(one.path, _ALONE)
            else:
                # A deployment at Azure has any name; another one of the same model may say which that is.
                unnamed = one.server.provider == "azure" and not one.base_model
                _add(group, msgspec.structs.replace(one, base_model=base_model) if unnamed else one, account)
    return groups


def _add(group: Group, one: Deployment, account: Account) -> None:
    same = next((backend for backend in group.backends if backend.takes(one)), None)
    if same is None:
        group.backends.append(Backend(first=one, places=[one.place], paths=[one.path]))
    elif _is_another(one.place, same.places):
        same.places.append(one.place)
        same.paths.append(one.path)
    else:
        account.leave(one.path, _AGAIN)


def merged(groups: Mapping[str, Group]) -> list[Group]:
    """Return the groups, those that are alike and have the same stand-ins as one with several names."""
    found: list[Group] = []
    for group in groups.values():
        alike = next((one for one in found if _is_alike(one, group)), None)
        if alike is None:
            found.append(group)
            continue
        alike.aliases.append(group.name)
        alike.is_of_pattern &= group.is_of_pattern
        for one, other in zip(alike.backends, group.backends, strict=True):
            one.paths += [path for path in other.paths if path not in one.paths]
    return found


def _is_alike(one: Group, other: Group) -> bool:
    same = [backend.same for backend in one.backends] == [backend.same for backend in other.backends]
    return same and one.mode == other.mode and one.chain == other.chain


def _is_another(place: Place, known: Sequence[Place]) -> bool:
    """Whether a place can stand next to others: at another address, or with a key of its own at the same."""
    there = [one.key for one in known if one.url == place.url]
    return not there or (place.key is not None and None not in there and place.key not in there)


def _placed(found: Candidate, places: Sequence[Place], balancing: Mapping[str, Any]) -> Candidate:
    """Return the candidate with several servers or keys, or with a limit of its only one."""
    if len(places) == 1 and places[0].limited() == {}:
        return found
    spread = {"balancing": dict(balancing)} if balancing and len(places) > 1 else {}
    further = found.further
    if len({place.url for place in places}) == 1 and places[0].key is not None:
        keys = {"api_keys": [place.limited(env=place.key) for place in places]}
        return msgspec.structs.replace(found, api_key_env=None, further=further | keys | spread)
    if found.provider:
        # Without keys there is nothing to which a limit belongs.
        return found
    of_remote = {name: further[name] for name in _OF_REMOTE if name in further}
    remote = {"kind": found.kind, "model": found.model, **of_remote}
    remote |= {"max_context": found.max_context} if found.max_context else {}
    remote["replicas"] = [
        place.limited(
            base_url=place.url,
            api_key_env=place.key,
            weight=None if place.weight is None else min(place.weight, 1000.0),
        )
        for place in places
    ]
    left = {name: value for name, value in further.items() if name not in of_remote}
    return msgspec.structs.replace(found, url="", api_key_env=None, remote=remote | spread, further=left)


_OF_REMOTE = ("body", "read_timeout_seconds", "total_timeout_seconds")


def with_credentials(config: Mapping[str, Any], account: Account) -> Mapping[str, Any]:
    """Return the config with the values of its `credential_list` where an entry names one of them."""
    values: dict[object, dict[str, Any]] = {}
    for place, one in enumerate(map(mapping, config.get("credential_list") or [])):
        values[one.get("credential_name")] = mapping(one.get("credential_values"))
        account.carry(f"credential_list[{place}]", "the entries that name it")
    entries = []
    for place, entry in enumerate(map(mapping, config["model_list"])):
        params = mapping(entry.get("litellm_params"))
        if (name := params.get("litellm_credential_name")) in values:
            account.carry(f"model_list[{place}].litellm_params.litellm_credential_name", "its server")
            entry = {**entry, "litellm_params": values[name] | params}
        entries.append(entry)
    return {**config, "model_list": entries}


def names_used(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the models that the file names outside its model_list: in fallbacks and as what aliases stand for."""
    for section in ("litellm_settings", "router_settings"):
        values = mapping(config.get(section))
        for field in ("fallbacks", "context_window_fallbacks", "default_fallbacks"):
            yield from _texts(values.get(field))
        for field in ("model_group_alias", "model_alias_map"):
            for target in mapping(values.get(field)).values():
                yield from _texts(target.get("model") if isinstance(target, dict) else target)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _texts(name)
            yield from _texts(one)
