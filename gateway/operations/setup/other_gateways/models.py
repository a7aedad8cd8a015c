"""Models of another gateway's file by name: those of one model under one name are replicas, others stand in."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.operations.setup.candidate import PROPOSALS, Candidate, key_variable, tier_name
from gateway.operations.setup.other_gateways.account import Account, Fields, tables, variable_of
from gateway.operations.setup.other_gateways.servers import Server, server_of, split_model
from tiers.catalog.price_list import listed_chat_models, listed_model
from tiers.catalog.providers import PROVIDERS
from tiers.catalog.tier_spec import Capabilities, Price, ProviderName
from tiers.catalog.validate import OF_REQUESTS, check_url

MOST_LISTED = 24
"""Models that one pattern becomes."""
LIMITS = ("read_timeout_seconds", "total_timeout_seconds")
# What `*` reaches by names without a provider.
_USUAL: tuple[ProviderName, ...] = ("openai", "anthropic", "gemini")
# What stands for no key at all, in front of servers that ask for none.
_NO_KEY = re.compile(r"|none|null|n/?a|empty|dummy|not[-_ ]?needed|no[-_ ]?key.*|fake.*|anything", re.IGNORECASE)
# Providers whose APIs have other names for OpenAI's fields.
_NATIVE = ("anthropic", "bedrock", "gemini", "vertex")
_OF_CHATS = ("sampling", "default_max_tokens", "max_output_tokens", "effort", "body")
_NO_SUCH = "no model of this pattern is known here: list its models, each as an entry"
_LEAST_SECONDS = 2.0
"""Of a time limit: the usual objective for the first token."""


class Entry(NamedTuple):
    """A model as a file has it."""

    name: str
    fields: Fields
    path: str
    """Where it stands."""
    name_path: str
    """Where its name does."""


class Replica(NamedTuple):
    """One address of a model with one key, and what may be sent there in a minute."""

    url: str | None
    key: str | None
    weight: float | None
    requests: int | None
    tokens: int | None

    def limited(self, **fields: Any) -> dict[str, Any]:
        present = fields | {"requests_per_minute": self.requests, "tokens_per_minute": self.tokens}
        return {name: value for name, value in present.items() if value is not None}


class Backend(msgspec.Struct, kw_only=True):
    """A model of one or several replicas."""

    name: str
    mode: str
    """`chat`, `embedding` or an endpoint that is passed through."""
    server: Server
    replicas: list[Replica]
    further: dict[str, Any]
    """Fields of its entry in the catalogue."""
    price: Price | None
    capabilities: Capabilities
    max_context: int | None
    base_model: str
    rank: tuple[float, bool]
    """Its place among those of its name."""
    paths: list[str]
    """Where the names of all its entries stand."""
    entry: str = ""
    """Its name in the catalogue."""

    @property
    def model(self) -> tuple[object, ...]:
        """What is the same for all replicas."""
        return self.mode, self.server._replace(url=None, key=None), self.further

    @property
    def same(self) -> tuple[object, ...]:
        """What is equal in backends that are one."""
        return (*self.model, self.replicas)

    def takes(self, other: "Backend") -> bool:
        """Whether another one is a replica: a provider has one address."""
        return self.model == other.model and (self.server.provider is None or self.server.url == other.server.url)

    def candidate(self, gateway: str, balancing: Mapping[str, Any]) -> Candidate:
        """Return it as an entry of the catalogue, without what stands in for it."""
        server = self.server
        listed = listed_model(self.base_model or server.model, provider=server.provider, base_url=server.url or "")
        candidate = Candidate(
            source=f"{gateway}'s {self.name}",
            model=server.model,
            name=self.entry,
            kind="openai" if server.provider else server.kind,
            provider=server.provider or "",
            url=server.url or "",
            api_key_env=self.replicas[0].key,
            max_context=self.max_context or (None if listed is None else listed.max_context),
            capabilities=self.capabilities,
            price=self.price or (None if listed is None else listed.price),
            price_from=f"{gateway}'s config" if self.price is not None else "",
            further=self.further,
        )
        return _spread(candidate, self.replicas, balancing)


class Group(msgspec.Struct, kw_only=True):
    """All that one name stands for."""

    name: str
    backends: list[Backend]
    """In the order in which they stand in for each other."""
    pattern: str = ""
    """The path of the pattern of which it was made; empty for a name of the file."""
    chain: list[str] = []
    """Names that stand in for it."""

    @property
    def mode(self) -> str:
        return self.backends[0].mode


class ModelReader:
    """Reads entries and notes what becomes of them. `variables`: those to set to the values that stand in the file,
    each with its path there."""

    def __init__(self, environ: Mapping[str, str], account: Account, common: Mapping[str, Any]) -> None:
        """`common`: time limits where an entry has none."""
        self._environ, self._account, self._common = environ, account, common
        self._by_value: dict[str, str] = {}
        self.variables: dict[str, str] = {}

    def groups(self, entries: Sequence[Entry], names_used: frozenset[str]) -> tuple[dict[str, Group], str | None]:
        """Return the models by name, and the name, if any, that answers for all that have none. `names_used`: names
        that the rest of the file has, which patterns may mean."""
        exact = frozenset(each.name for each in entries if not _is_pattern(each))
        failures: list[tuple[Entry, str]] = []
        by_name: dict[str, list[Backend]] = {}
        patterns: dict[str, str] = {}
        other: str | None = None
        for entry in sorted(entries, key=_is_pattern):
            several = [entry] if not _is_pattern(entry) else list(_expanded(entry, names_used - exact, self._environ))
            for each in several:
                backend = self._backend(each)
                if isinstance(backend, str):
                    failures.append((each, backend))
                elif each is entry or each.name not in exact:
                    by_name.setdefault(each.name, []).append(backend)
                    patterns.setdefault(each.name, entry.path if each is not entry else "")
            if not several:
                failures.append((entry, _NO_SUCH))
            elif _is_pattern(entry) and entry.name == "*":
                other = other or ("auto" if "*" in entry.fields["server.model"] else several[0].name)
                self._account.carry(f"{entry.name_path}, other names", f"alias * of {other}")
        self._explain(failures, {path for several in by_name.values() for each in several for path in each.paths})
        groups = {name: self._group(name, several) for name, several in by_name.items()}
        for name, group in groups.items():
            group.pattern = "" if name in names_used else patterns[name]
        return groups, other

    def _explain(self, failures: Sequence[tuple[Entry, str]], read: set[str]) -> None:
        for entry, why in failures:
            self._account.leave(f"{entry.path}, {entry.name}" if entry.name_path in read else entry.path, why)

    def _backend(self, entry: Entry) -> Backend | str:
        """Return the model of an entry, or why AIO has nothing like it."""
        fields = entry.fields
        if (mode := _mode_of(fields, self._environ)) is None:
            return f"AIO has no endpoint for models of the mode {fields['mode']}"
        server = server_of(fields, self._environ, mode)
        if not isinstance(server, str) and server.url is not None:
            server = next(check_url("its address", server.url), server)
        if isinstance(server, str):
            return server
        key = self._key(entry, server)
        if server.provider is not None and key is None and PROVIDERS[server.provider].needs_key:
            key = PROVIDERS[server.provider].key_variables[0]
        self._leave_unfit(fields, mode, server)
        price = {name: fields[f"price.{name}"] for name in Price.__struct_fields__ if f"price.{name}" in fields}
        able = {name: fields.get(f"capabilities.{name}") for name in Capabilities.__struct_fields__}
        weight, per_minute = fields.get("weight"), ("requests_per_minute", "tokens_per_minute")
        return Backend(
            name=entry.name,
            mode=mode,
            server=server,
            replicas=[Replica(server.url, key, weight or None, *map(fields.get, per_minute))],
            further=_tree(fields) | time_limits(fields, self._common),
            price=msgspec.convert(price, Price) if price else None,
            capabilities=Capabilities(**able),
            max_context=fields.get("max_context"),
            base_model=fields.get("base_model") or "",
            rank=(fields.get("order") or 1.0, weight == 0),
            paths=[entry.name_path],
        )

    def _leave_unfit(self, fields: Fields, mode: str, server: Server) -> None:
        """Take out the fields that a model of this kind cannot have, and say so."""
        is_priced = {"price.input_usd_per_million", "price.output_usd_per_million"} <= fields.keys()
        for name in list(fields):
            first, _, rest = name.partition(".")
            why = ""
            if mode != "chat" and (first in _OF_CHATS or first.endswith("_per_minute")):
                why = "AIO has it for models that chat"
            elif first == "body" and rest and server.provider in _NATIVE:
                why = f"{server.provider}'s API has no such field under this name: clients send it"
            elif name == "body" and OF_REQUESTS.intersection(fields[name]):
                why = "each request sets some of its fields itself"
            elif first == "price" and not is_priced:
                why = "a price needs those of input and of output"
            if why:
                del fields[name]
                self._account.leave(fields.paths[name], why)

    def _key(self, entry: Entry, server: Server) -> str | None:
        """Return the variable of the key; a key that stands in the file gets one, and is not written."""
        target = "credentials" if server.provider == "vertex" else "key"
        secret, path = entry.fields.get(target), entry.fields.paths.get(target, "")
        if secret is None:
            return server.key
        if (variable := variable_of(secret)) is not None:
            self._account.carry(path, f"api_key_env = {variable}")
            return variable
        if _NO_KEY.fullmatch(secret):
            self._account.carry(path, "none is sent")
            return None
        variable = self._variable(secret, f"{entry.name}_{'CREDENTIALS' if target != 'key' else 'API_KEY'}", path)
        self._account.carry(path, f"api_key_env = {variable}, to be set; the {target} itself is not written")
        return variable

    def _variable(self, value: str, wanted: str, path: str) -> str:
        if value not in self._by_value:
            wanted = re.sub(r"[^A-Za-z0-9]+", "_", wanted).strip("_").upper()
            wanted = f"MODEL_{wanted}" if not wanted[:1].isalpha() else wanted
            variable = next(name for name in numbered(wanted) if name not in self.variables)
            self._by_value[value] = variable
            self.variables[variable] = path
        return self._by_value[value]

    def _group(self, name: str, several: Sequence[Backend]) -> Group:
        base_model = next((each.base_model for each in several if each.base_model), "")
        group = Group(name=name, backends=[])
        for backend in sorted(several, key=lambda each: each.rank):
            if group.backends and (backend.mode != several[0].mode or backend.mode != "chat"):
                self._account.leave(backend.paths[0], "one server answers for such a model, that of the first entry")
                continue
            if backend.server.provider == "azure" and not backend.base_model:
                # A deployment at Azure has any name; another one of the same model may say which that is.
                backend.base_model = base_model
            same = next((each for each in group.backends if each.takes(backend)), None)
            if same is None:
                group.backends.append(backend)
            elif _is_another(backend.replicas[0], same.replicas):
                same.replicas += backend.replicas
                same.paths += backend.paths
            else:
                why = "it is the model above at the same address with the same key, or without one"
                self._account.leave(f"{backend.paths[0]}, again", why)
        return group


def _is_pattern(entry: Entry) -> bool:
    return "*" in entry.name or "*" in str(entry.fields.get("server.model"))


def _expanded(entry: Entry, names_used: frozenset[str], environ: Mapping[str, str]) -> Iterator[Entry]:
    """Yield entries for the names that are known of a pattern's: those that the file itself uses, then those that the
    price list has, the models that `aio init` proposes first."""
    name, model = entry.name, str(entry.fields["server.model"])
    pairs = {used: model.replace("*", part) for used in sorted(names_used) if (part := _part(name, used)) is not None}
    if "*" in model:
        for full in _known_models(model, entry.fields, environ):
            if (part := full if model == "*" else _part(model, full)) is not None and len(pairs) < MOST_LISTED:
                pairs.setdefault(name.replace("*", part), full)
    elif name == "*":
        pairs.setdefault(tier_name(split_model(model, "")[1]), model)
    for own, full in pairs.items():
        fields = Fields()
        fields.update(entry.fields | {"server.model": full})
        fields.paths = entry.fields.paths
        yield Entry(own, fields, entry.path, entry.name_path)


def _known_models(model: str, fields: Fields, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield models of a pattern as `provider/model`; those of `*` are the models whose keys are here."""
    keyed = [name for name in _USUAL if key_variable(name, environ)] or _USUAL
    name, _ = split_model(model, str(fields.get("server.provider") or ""))
    if "server.url" in fields:
        return
    for each in keyed if model == "*" else [name]:
        provider = tables()["servers"].get(each, {}).get("provider")
        proposed = [name for proposal in PROPOSALS if proposal.provider == provider for name in proposal.models]
        listed = [chat_model.model for chat_model in listed_chat_models(provider)] if provider else []
        models = [*proposed, *listed][: MOST_LISTED // (len(keyed) if model == "*" else 1)]
        yield from (f"{each}/{named}" for named in models)


def _part(pattern: str, text: str) -> str | None:
    """Return what the pattern's first star stands for in `text`; None if it does not match."""
    match = re.fullmatch(re.escape(pattern).replace(r"\*", "(.+)"), text)
    return None if match is None or not match.groups() else match[1]


def _mode_of(fields: Fields, environ: Mapping[str, str]) -> str | None:
    """Return what a model serves, as the file or its name says; None for what has no endpoint here."""
    if stated := next((mode for mode, names in tables()["modes"].items() if fields.get("mode") in names), ""):
        return stated if stated != "none" else None
    model = str(fields.get("server.model") or "")
    model = environ.get(variable_of(model) or "", model).lower()
    words = tables()["modes_by_name"].items()
    return next((mode for mode, pattern in words if re.search(pattern, model)), "chat")


def _tree(fields: Fields) -> dict[str, Any]:
    """Return the fields of an entry for values that requests may lack."""
    tree: dict[str, Any] = {}
    for name, value in sorted(fields.items()):
        first, _, rest = name.partition(".")
        if first in _OF_CHATS:
            plain = without_nulls(value)
            tree[first] = (
                (tree.get(first) or {}) | ({rest: plain} if rest else plain) if rest or first == "body" else plain
            )
    return tree


def without_nulls(value: Any) -> Any:
    """Return a value as a catalogue can hold it."""
    if isinstance(value, dict):
        return {str(key): without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value if each is not None]
    return value if isinstance(value, str | int | float) else str(value)


def time_limits(own: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits of a server in seconds: its own precede, and a whole answer's bounds that of a read. Without
    one for reads, a read may take as long as an answer."""
    total = own.get("total_timeout_seconds", common.get("total_timeout_seconds"))
    read = own.get("read_timeout_seconds", common.get("read_timeout_seconds", total))
    if total is not None and read is not None and read > total:
        is_wider = "read_timeout_seconds" in own and "total_timeout_seconds" not in own
        read, total = (read, read) if is_wider else (total, total)
    limits = zip(LIMITS, (read, total), strict=True)
    return {name: max(_LEAST_SECONDS, seconds) for name, seconds in limits if seconds is not None}


def numbered(name: str) -> Iterator[str]:
    """Yield a name and then others like it: `name-2`, or `NAME_2` for a variable."""
    yield name
    count = 2
    while True:
        yield f"{name}-{count}" if not name.isupper() else f"{name}_{count}"
        count += 1


def _is_another(replica: Replica, others: Sequence[Replica]) -> bool:
    """Whether a replica can stand next to others: at another address, or with a key of its own at the same."""
    there = [each.key for each in others if each.url == replica.url]
    return not there or (replica.key is not None and None not in there and replica.key not in there)


def _spread(candidate: Candidate, replicas: Sequence[Replica], balancing: Mapping[str, Any]) -> Candidate:
    """Return the candidate with several servers or keys, or with a limit of its only one."""
    if len(replicas) == 1 and replicas[0].limited() == {}:
        return candidate
    spread = {"balancing": dict(balancing)} if balancing and len(replicas) > 1 else {}
    further = candidate.further
    if len({replica.url for replica in replicas}) == 1 and replicas[0].key is not None:
        keys = {"api_keys": [replica.limited(env=replica.key) for replica in replicas]}
        return msgspec.structs.replace(candidate, api_key_env=None, further=further | keys | spread)
    if candidate.provider:
        # Without keys there is nothing to which a limit belongs.
        return candidate
    of_remote = {name: further[name] for name in ("body", *LIMITS) if name in further}
    remote = {"kind": candidate.kind, "model": candidate.model, **of_remote, **spread}
    remote |= {"max_context": candidate.max_context} if candidate.max_context else {}
    remote["replicas"] = [
        replica.limited(base_url=replica.url, api_key_env=replica.key, weight=replica.weight) for replica in replicas
    ]
    own = {name: value for name, value in further.items() if name not in of_remote}
    return msgspec.structs.replace(candidate, url="", api_key_env=None, remote=remote, further=own)
