"""LiteLLM's model_list as tiers: deployments of one model under one name are replicas, others tiers of their own."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.operations.setup.candidate import Candidate, in_order, tier_name
from gateway.operations.setup.litellm.config_file import Account, mapping, number, variable_of
from gateway.operations.setup.litellm.servers import Server, server_of
from tiers.catalog.capabilities import Capabilities
from tiers.catalog.price_list import listed_model
from tiers.catalog.providers import PROVIDERS, provider_remote
from tiers.catalog.tier_spec import MAX_TIERS, Price

# What stands for no key at all, in front of servers that ask for none.
_NO_KEY = re.compile(r"|none|null|n/?a|empty|dummy|not[-_ ]?needed|no[-_ ]?key.*|fake.*|anything", re.IGNORECASE)
_PRICES = {
    "input_cost_per_token": "input_usd_per_million",
    "output_cost_per_token": "output_usd_per_million",
    "cache_read_input_token_cost": "cached_input_usd_per_million",
    "cache_creation_input_token_cost": "cache_write_usd_per_million",
}
_CAPABILITIES = {
    "supports_vision": "vision",
    "supports_audio_input": "audio",
    "supports_pdf_input": "files",
    "supports_function_calling": "tools",
    "supports_response_schema": "json_schema",
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_CHAT_MODES = (None, "chat", "completion", "responses")
WHY_OF_PARAMS = {
    "max_parallel_requests": "AIO limits requests in flight per key (`concurrency`) and in all (AIO_MAX_IN_FLIGHT)",
    "api_version": "AIO uses Azure's v1 API, which has no versions",
    "organization": "AIO sends no organisation; the key's own holds",
    "aws_access_key_id": "AWS credentials are those of the environment (extra `providers`)",
    "aws_secret_access_key": "AWS credentials are those of the environment (extra `providers`)",
    "aws_session_token": "AWS credentials are those of the environment (extra `providers`)",
    "aws_profile_name": "set AWS_PROFILE instead (extra `providers`)",
    "tags": "AIO chooses by quality and cost; a key's `tiers` or `models` bound what answers it",
    "order": "AIO orders tiers by cost",
    "max_retries": "AIO asks another replica, not the same server again",
    "num_retries": "AIO asks another replica, not the same server again",
}


class _Place(NamedTuple):
    """One address of a model with one key, and what may be sent there in a minute."""

    url: str | None
    key: str | None
    weight: float | None
    requests: int | None
    tokens: int | None

    def limited(self, **fields: Any) -> dict[str, Any]:
        """Return the fields and the limits that are set."""
        found = fields | {"requests_per_minute": self.requests, "tokens_per_minute": self.tokens}
        return {name: value for name, value in found.items() if value is not None}


class _Tier(msgspec.Struct):
    """A model at one or several places: `names` are LiteLLM's for it."""

    server: Server
    names: list[str]
    servers: list[_Place]
    further: dict[str, Any]
    remote: dict[str, Any]
    price: Price | None
    capabilities: Capabilities
    max_context: int | None
    base_model: str
    name: str = ""

    @property
    def model(self) -> tuple[Server, dict[str, Any], dict[str, Any]]:
        """What is the same in all replicas."""
        return self.server._replace(url=None), self.further, self.remote


class Models(msgspec.Struct, kw_only=True):
    """Tiers, the names that clients have used for them, and the variables to set to keys that stand in the file."""

    candidates: list[Candidate]
    aliases: dict[str, str]
    variables: dict[str, str]

    @property
    def is_replicated(self) -> bool:
        """Whether any tier has several servers or keys."""
        return any("balancing" in one.remote or "replicas" in one.remote for one in self.candidates)


def models_of(
    config: Mapping[str, Any], environ: Mapping[str, str], account: Account, remote: Mapping[str, Any],
    balancing: Mapping[str, Any],
) -> Models:  # fmt: skip
    """Return the tiers of a config's model_list; `remote` and `balancing` hold where an entry says nothing else."""
    reader = _Reader(environ, account, remote)
    for place, entry in enumerate(config["model_list"]):
        reader.read(f"model_list[{place}]", mapping(entry))
    tiers = reader.named()
    candidates = in_order([_candidate(tier, balancing, environ) for tier in tiers])
    aliases = {name: tier.name for tier in tiers for name in tier.names if name != tier.name}
    used = {key for tier in tiers for key in [place.key for place in tier.servers]}
    variables = {name: path for name, path in reader.variables.items() if name in used}
    return Models(candidates=candidates, aliases=aliases, variables=variables)


class _Reader:
    def __init__(self, environ: Mapping[str, str], account: Account, remote: Mapping[str, Any]) -> None:
        self._environ, self._account, self._remote = environ, account, remote
        self._tiers: list[_Tier] = []
        self._paths: dict[int, list[str]] = {}
        self._by_secret: dict[str, str] = {}
        self.variables: dict[str, str] = {}

    def read(self, path: str, entry: dict[str, Any]) -> None:
        """Add a deployment to the tier that it belongs to, or a new one."""
        name = entry.get("model_name")
        params, info = mapping(entry.get("litellm_params")), mapping(entry.get("model_info"))
        why = self._refusal(name, info)
        server = server_of(params, self._environ) if why is None else why
        if isinstance(server, str):
            self._account.leave(path, server)
            return
        name = str(name)
        key = self._key(f"{path}.litellm_params", name, params, server)
        tier = _Tier(
            server=server,
            names=[name],
            servers=[self._place(path, server, key, params, entry)],
            further=self._further(path, params, info),
            remote=self._timeouts(path, params),
            price=self._price(path, params, info),
            capabilities=self._capabilities(path, info),
            max_context=self._whole(f"{path}.model_info.max_input_tokens", info, "max_context"),
            base_model=str(info.get("base_model") or ""),
        )
        same = next((one for one in self._tiers if one.names == tier.names and one.model == tier.model), None)
        if same is None:
            self._tiers.append(tier)
        elif not _is_another(tier.servers[0], same.servers):
            self._account.leave(path, "it is the model above at the same address with the same key, or without one")
            return
        elif server.provider is not None and server.url != same.servers[0].url:
            # A provider's tier has one address.
            self._tiers.append(tier)
        else:
            same.servers += tier.servers
            tier = same
        self._paths.setdefault(id(tier), []).append(path)
        self._note(path, params, info, entry)

    def named(self) -> list[_Tier]:
        """Return the tiers with their names, at most as many as a catalogue may have; note what became of each."""
        tiers: list[_Tier] = []
        for tier in self._tiers:
            same = next((one for one in tiers if one.model == tier.model and one.servers == tier.servers), None)
            if same is None:
                tiers.append(tier)
            else:
                same.names += tier.names
                self._paths[id(same)] += self._paths[id(tier)]
        for tier in tiers[MAX_TIERS:]:
            for path in self._paths[id(tier)]:
                self._account.leave(path, f"a catalogue has at most {MAX_TIERS} tiers: delete another model to keep it")
        groups = {name for tier in tiers for name in tier.names}
        claimed: set[str] = set()
        for tier in tiers[:MAX_TIERS]:
            tier.names = [name for name in tier.names if name not in claimed]
            wanted = tier_name(tier.names[0] if tier.names else tier.server.model)
            free = (name for name in _numbered(wanted) if name not in claimed and name not in groups - {*tier.names})
            tier.name = next(free)
            claimed |= {tier.name, *tier.names}
            for path in self._paths[id(tier)]:
                where = tier.server.provider or tier.server.kind
                text = f"tier {tier.name}: {tier.server.model} ({where})"
                if not tier.names:
                    text += "; the first model of this model_name keeps the name, as replicas are one model's"
                self._account.carry(f"{path}.model_name", text)
        return tiers[:MAX_TIERS]

    def _refusal(self, name: object, info: Mapping[str, Any]) -> str | None:
        if not isinstance(name, str) or not name:
            return "it has no model_name"
        if "*" in name:
            return "AIO serves the models that its catalogue names, and this one is a pattern: list the models"
        if name == "auto" or re.fullmatch(r"tier-[0-9]+", name):
            return f"the name {name} has a meaning of its own in AIO: choose another"
        if info.get("mode") not in _CHAT_MODES or "embedding" in name.lower():
            kind = info.get("mode") or "embedding"
            add = ": add it as [[embeddings]], by provider or url (docs/embeddings.md)" if kind == "embedding" else ""
            return f"tiers answer chats, and this is a model of the mode {kind}{add}"
        return None

    def _place(
        self, path: str, server: Server, key: str | None, params: Mapping[str, Any], entry: Mapping[str, Any]
    ) -> _Place:
        """Return where a deployment is; its limits stand in litellm_params or next to it."""
        limits: dict[str, int | None] = {"rpm": None, "tpm": None}
        if server.provider is not None and key is None:
            key = next(iter(PROVIDERS[server.provider].key_variables), None)
        for name, text in (("rpm", "requests_per_minute"), ("tpm", "tokens_per_minute")):
            for section, values in (("litellm_params.", params), ("", entry)):
                value = number(values.get(name))
                if value is not None and value == int(value) < 2**31:
                    limits[name] = int(value)
                    self._account.carry(f"{path}.{section}{name}", f"{text} of the key or server")
        return _Place(server.url, key, number(params.get("weight")), limits["rpm"], limits["tpm"])

    def _key(self, path: str, name: str, params: Mapping[str, Any], server: Server) -> str | None:
        """Return the variable of the key; a key that stands in the file gets one, and is not written."""
        given = params.get("api_key")
        if given is None:
            return server.key
        if (variable := variable_of(given)) is not None:
            self._account.carry(f"{path}.api_key", f"api_key_env = {variable}")
            return variable
        if not isinstance(given, str) or _NO_KEY.fullmatch(given):
            self._account.carry(f"{path}.api_key", "none is sent")
            return None
        if given not in self._by_secret:
            wanted = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()
            wanted = f"MODEL_{wanted}" if wanted[:1].isdigit() else wanted
            variable = next(one for one in _numbered(f"{wanted}_API_KEY") if one not in self.variables)
            self._by_secret[given] = variable
            self.variables[variable] = f"{path}.api_key"
        variable = self._by_secret[given]
        self._account.carry(f"{path}.api_key", f"api_key_env = {variable}, to be set; the key itself is not written")
        return variable

    def _further(self, path: str, params: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a tier's entry for values that requests may lack."""
        found: dict[str, Any] = {}
        sampling = {}
        for name, most in (("temperature", 2.0), ("top_p", 1.0)):
            value = params.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
                sampling[name] = float(value)
                self._account.carry(f"{path}.litellm_params.{name}", f"sampling.{name}")
        if sampling:
            found["sampling"] = sampling
        if (limit := self._whole(f"{path}.litellm_params.max_tokens", params, "default_max_tokens")) is not None:
            found["default_max_tokens"] = limit
        if (longest := self._whole(f"{path}.model_info.max_output_tokens", info, "max_output_tokens")) is not None:
            found["max_output_tokens"] = longest
        if (effort := params.get("reasoning_effort")) in _EFFORTS:
            found["effort"] = effort
            self._account.carry(f"{path}.litellm_params.reasoning_effort", "effort")
        return found

    def _timeouts(self, path: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the time limits of the server, or those that hold for all."""
        found = dict(self._remote)
        for name, field in (("timeout", "total_timeout_seconds"), ("stream_timeout", "read_timeout_seconds")):
            if (seconds := number(params.get(name))) is not None:
                found[field] = seconds
                self._account.carry(f"{path}.litellm_params.{name}", f"remote.{field}")
        return found

    def _price(self, path: str, params: Mapping[str, Any], info: Mapping[str, Any]) -> Price | None:
        """Return the price where the file has both parts of it."""
        found, notes = {}, {}
        for name, field in _PRICES.items():
            for section, values in (("model_info", info), ("litellm_params", params)):
                value = values.get(name)
                if isinstance(value, int | float | str) and not isinstance(value, bool) and _usd(value) is not None:
                    found[field] = _usd(value)
                    notes[f"{path}.{section}.{name}"] = f"price.{field}"
        if None in (found.get("input_usd_per_million"), found.get("output_usd_per_million")):
            return None
        for place, text in notes.items():
            self._account.carry(place, text)
        return msgspec.convert(found, Price)

    def _capabilities(self, path: str, info: Mapping[str, Any]) -> Capabilities:
        found = {field: info[name] for name, field in _CAPABILITIES.items() if isinstance(info.get(name), bool)}
        for name, field in _CAPABILITIES.items():
            if field in found:
                self._account.carry(f"{path}.model_info.{name}", f"capabilities.{field}")
        return Capabilities(**found)

    def _whole(self, path: str, values: Mapping[str, Any], field: str) -> int | None:
        """Return a whole number above 1 of the last part of `path`."""
        value = number(values.get(path.rpartition(".")[2]))
        if value is None or value < 2 or value != int(value):
            return None
        self._account.carry(path, field)
        return int(value)

    def _note(self, path: str, params: Mapping[str, Any], info: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
        for name in ("model", "custom_llm_provider", "api_base", "base_url", "weight", "aws_region_name"):
            if name in params:
                self._account.carry(f"{path}.litellm_params.{name}", "the tier's server")
        for section, values in (("litellm_params.", params), ("", entry)):
            for name, why in WHY_OF_PARAMS.items():
                if name in values:
                    self._account.leave(f"{path}.{section}{name}", why)
        for name, text in (("base_model", "the model whose price holds"), ("mode", "tiers answer chats")):
            if name in info:
                self._account.carry(f"{path}.model_info.{name}", text)
        if "id" in info:
            self._account.leave(f"{path}.model_info.id", "answers name the tier (x-aio-tier)")


def _candidate(tier: _Tier, balancing: Mapping[str, Any], environ: Mapping[str, str]) -> Candidate:
    server, url, key = tier.server, tier.server.url, tier.servers[0].key
    price, context = tier.price, tier.max_context
    listed = listed_model(tier.base_model or server.model, provider=server.provider, base_url=url or "")
    if listed is not None:
        price, context = price or listed.price, context or listed.max_context
    found = Candidate(
        source=f"LiteLLM's {tier.names[0] if tier.names else server.model}",
        model=server.model,
        name=tier.name,
        kind=server.kind,
        provider=server.provider or "",
        url=url or "",
        api_key_env=key,
        max_context=context,
        capabilities=tier.capabilities,
        price=price,
        price_from="LiteLLM's config" if tier.price is not None else "",
        further=tier.further,
    )
    remote = tier.remote | _places(tier.servers, balancing)
    if not remote:
        return found
    if server.provider is not None:
        remote = provider_remote(server.provider, server.model, url, key, environ) | remote
        remote.pop("max_context")
    else:
        remote = {"kind": server.kind, "model": server.model} | remote
        if "replicas" not in remote:
            remote |= {"base_url": url} | ({"api_key_env": key} if key else {})
    if "api_keys" in remote:
        remote.pop("api_key_env", None)
    remote |= {"max_context": context} if context else {}
    return msgspec.structs.replace(found, url="", provider="", remote=remote)


def _is_another(place: _Place, known: Sequence[_Place]) -> bool:
    """Whether a place can stand next to others: at another address, or with a key of its own at the same."""
    there = [one.key for one in known if one.url == place.url]
    return not there or (place.key is not None and None not in there and place.key not in there)


def _places(places: Sequence[_Place], balancing: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a remote table for several servers or keys, or for one with a limit; else none."""
    is_one = len({place.url for place in places}) == 1
    if len(places) == 1 and places[0].limited() == {}:
        return {}
    if is_one and places[0].key is not None:
        found: dict[str, Any] = {"api_keys": [place.limited(env=place.key) for place in places]}
    else:
        found = {
            "replicas": [
                place.limited(
                    base_url=place.url,
                    api_key_env=place.key,
                    weight=None if place.weight is None else min(place.weight, 1000.0),
                )
                for place in places
            ]
        }
    return found | ({"balancing": dict(balancing)} if balancing and len(places) > 1 else {})


def _usd(value: float | str) -> float | None:
    try:
        found = float(value) * 1e6
    except ValueError:
        return None
    return round(found, 6) if 0 <= found < float("inf") else None


def _numbered(name: str) -> Any:
    yield name
    count = 2
    while True:
        yield f"{name}-{count}" if "_API_KEY" not in name else f"{name}_{count}"
        count += 1
