"""One entry of LiteLLM's model_list: what it serves, where, with which key, limits, defaults and price."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.operations.setup.litellm.config_file import Account, Section, number, variable_of
from gateway.operations.setup.litellm.servers import Server, server_of
from tiers.catalog.providers import PROVIDERS
from tiers.catalog.tier_spec import Capabilities, Price
from tiers.catalog.validate import OF_REQUESTS, check_url

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
# https://docs.litellm.ai/docs/proxy/configs, `model_info.mode`, by what AIO calls it.
_MODES = {
    "chat": "chat", "completion": "chat", "responses": "chat", "embedding": "embedding", "embeddings": "embedding",
    "rerank": "rerank", "moderation": "moderations", "moderations": "moderations", "image_generation": "images",
    "image_edit": "images", "audio_speech": "speech", "audio_transcription": "transcriptions", "tts": "speech",
    "stt": "transcriptions",
}  # fmt: skip
_OTHER_MODES = ("realtime", "video_generation", "ocr", "search", "batch", "vector_store", "container", "guardrail")
# LiteLLM knows the modes of models by their names; these words tell nearly as much.
_MODES_BY_WORDS = (
    ("rerank", re.compile(r"rerank|llama-rank")),
    ("embedding", re.compile(r"embed|(^|[/-])(bge|e5|gte)-|voyage-")),
    ("transcriptions", re.compile(r"whisper|transcribe|(^|[/-])stt\b")),
    ("speech", re.compile(r"(^|[/-])tts\b|-tts$|-tts-")),
    ("images", re.compile(r"dall-e|gpt-image|stable-diffusion|nova-canvas|titan-image|(^|/)(imagen|flux)")),
    ("moderations", re.compile(r"moderation")),
)
WHY_OF_PARAMS = {
    "max_parallel_requests": "AIO limits requests in flight per key (`concurrency`) and in all (AIO_MAX_IN_FLIGHT)",
    "api_version": "AIO uses Azure's v1 API, which has no versions",
    "organization": "AIO sends no organisation; the key's own holds",
    "aws_access_key_id": "AWS credentials are those of the environment (extra `providers`)",
    "aws_secret_access_key": "AWS credentials are those of the environment (extra `providers`)",
    "aws_session_token": "AWS credentials are those of the environment (extra `providers`)",
    "aws_profile_name": "set AWS_PROFILE instead (extra `providers`)",
    "tags": "AIO chooses by quality and cost; a key's `tiers` or `models` bound what answers it",
    "max_retries": "AIO asks another replica or stand-in, not the same server again",
    "num_retries": "AIO asks another replica or stand-in, not the same server again",
}
# Providers whose APIs have other names for these fields of OpenAI's.
_NATIVE = ("anthropic", "bedrock", "gemini", "vertex")
_OF_OPENAI = (
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "parallel_tool_calls",
    "service_tier",
    "verbosity",
)
_UNSET = "the variable that it names is not set here: it is the environment's when the gateway runs"
_LEAST_SECONDS = 2.0
"""Of a time limit: the usual objective for the first token."""


class Place(NamedTuple):
    """One address of a model with one key, and what may be sent there in a minute."""

    url: str | None
    key: str | None
    weight: float | None
    requests: int | None
    tokens: int | None

    def limited(self, **fields: Any) -> dict[str, Any]:
        found = fields | {"requests_per_minute": self.requests, "tokens_per_minute": self.tokens}
        return {name: value for name, value in found.items() if value is not None}


class Deployment(msgspec.Struct, kw_only=True):
    """A deployment in a file of LiteLLM."""

    path: str
    """Where it stands in the file."""
    name: str
    mode: str
    """`chat`, `embedding` or an endpoint that is passed through."""
    server: Server
    place: Place
    further: dict[str, Any]
    """Fields of its entry in the catalogue."""
    price: Price | None
    capabilities: Capabilities
    max_context: int | None
    base_model: str
    rank: tuple[float, bool]
    """Its place among the name's deployments."""


class Entry(NamedTuple):
    """An entry of the model_list, and the two tables in it."""

    own: Section
    params: Section
    info: Section


class DeploymentReader:
    """Reads entries and notes what becomes of each field. `variables`: those to set to the values that stand in the
    file, each with its path there; `environment`: settings that are no secrets."""

    def __init__(self, environ: Mapping[str, str], account: Account, limits: Mapping[str, float]) -> None:
        """`limits`: the time limits in seconds where an entry has none."""
        self._environ, self._account, self._limits = environ, account, limits
        self._by_value: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self.environment: dict[str, str] = {}

    def read(self, path: str, entry: Mapping[str, Any]) -> Deployment | None:
        """Return the deployment of an entry; None if AIO has nothing like it, which is noted."""
        own, name = Section(path, entry, self._account), entry.get("model_name")
        part = Entry(own, own.section("litellm_params"), own.section("model_info"))
        params, info = part.params.values, part.info.values
        if not isinstance(name, str) or not name:
            self._account.leave(path, "it has no model_name")
            return None
        mode = mode_of(params, info, self._environ)
        if mode is None:
            self._account.leave(path, f"AIO has no endpoint for models of the mode {info.get('mode')}")
            return None
        server = server_of(params, self._environ, mode)
        if not isinstance(server, str) and server.url is not None:
            server = next(check_url("its api_base", server.url), server)
        if isinstance(server, str):
            self._account.leave(path, server)
            return None
        key = self._key(name, part.params, server)
        found = Deployment(
            path=path,
            name=name,
            mode=mode,
            server=server._replace(unset=()),
            place=_place(part, server, key),
            further=self._further(part, mode, server),
            price=_price(part),
            capabilities=_capabilities(part.info),
            max_context=part.info.whole("max_input_tokens", "max_context", least=2),
            base_model=str(info.get("base_model") or ""),
            rank=(part.params.number("order", "the order of what stands in") or 1.0, params.get("weight") == 0),
        )
        _note(part, server)
        return found

    def _key(self, name: str, params: Section, server: Server) -> str | None:
        """Return the variable of the key; a key that stands in the file gets one, and is not written."""
        if server.provider == "vertex":
            return self._credentials(params)
        given = params.get("api_key")
        if given is None:
            return server.key
        if (variable := variable_of(given)) is not None:
            params.carry("api_key", f"api_key_env = {variable}")
            return variable
        if not isinstance(given, str) or _NO_KEY.fullmatch(given):
            params.carry("api_key", "none is sent")
            return None
        variable = self._variable(given, f"{name}_API_KEY", f"{params.path}.api_key")
        params.carry("api_key", f"api_key_env = {variable}, to be set; the key itself is not written")
        return variable

    def _credentials(self, params: Section) -> str | None:
        """Return the variable with the path of a service account's file; None: what is there where AIO runs."""
        name = next((one for one in ("vertex_credentials", "vertex_ai_credentials") if params.get(one)), None)
        if name is None:
            return None
        given = params.get(name)
        if (variable := variable_of(given)) is not None:
            params.carry(name, f"api_key_env = {variable}, the path of the file")
            return variable
        if not isinstance(given, str) or given.lstrip().startswith("{"):
            why = "the credentials themselves are not written: set GOOGLE_APPLICATION_CREDENTIALS to the path of a file"
            params.leave(name, f"{why} with them")
            return None
        free = (one for one in numbered("GOOGLE_APPLICATION_CREDENTIALS") if self.environment.get(one, given) == given)
        variable = next(free)
        self.environment[variable] = given
        params.carry(name, f"{variable}, the path of the file")
        return None if variable == "GOOGLE_APPLICATION_CREDENTIALS" else variable

    def _variable(self, value: str, wanted: str, path: str) -> str:
        if value not in self._by_value:
            wanted = re.sub(r"[^A-Za-z0-9]+", "_", wanted).strip("_").upper()
            wanted = f"MODEL_{wanted}" if not wanted[:1].isalpha() else wanted
            variable = next(one for one in numbered(wanted) if one not in self.variables)
            self._by_value[value] = variable
            self.variables[variable] = path
        return self._by_value[value]

    def _further(self, entry: Entry, mode: str, server: Server) -> dict[str, Any]:
        """Return the fields of an entry for values that requests may lack, and its time limits."""
        params, found = entry.params, dict[str, Any]()
        for name, most in (("temperature", 2.0), ("top_p", 1.0)):
            value = params.get(name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and 0 <= value <= most and (value or name == "temperature"):
                found.setdefault("sampling", {})[name] = float(value)
                params.carry(name, f"sampling.{name}")
        limits = (
            (params, "max_tokens", "default_max_tokens"),
            (params, "max_completion_tokens", "default_max_tokens"),
            (entry.info, "max_output_tokens", "max_output_tokens"),
        )
        for section, name, field in limits:
            if (limit := section.whole(name, field, least=2)) is not None:
                found[field] = limit
        if (effort := params.get("reasoning_effort")) in _EFFORTS:
            found["effort"] = effort
            params.carry("reasoning_effort", "effort")
        if mode == "chat" and (body := _body(params, server)):
            found["body"] = body
        return found | self._time_limits(params)

    def _time_limits(self, params: Section) -> dict[str, float]:
        """Return an entry's time limits in seconds; its own precede those that hold for all."""
        fields = (("timeout", "total_timeout_seconds"), ("stream_timeout", "read_timeout_seconds"))
        own = {field: seconds for name, field in fields if (seconds := params.number(name, field)) is not None}
        return time_limits(own, self._limits)


def _place(entry: Entry, server: Server, key: str | None) -> Place:
    """Return where a deployment is; its limits stand in litellm_params or next to it."""
    if server.provider is not None and key is None:
        key = next(iter(PROVIDERS[server.provider].key_variables), None)
        key = key if PROVIDERS[server.provider].needs_key else None
    limits = []
    for name, field in (("rpm", "requests_per_minute"), ("tpm", "tokens_per_minute")):
        own, param = (one.whole(name, f"{field} of the key or server") for one in (entry.own, entry.params))
        limits.append(own or param)
    return Place(server.url, key, number(entry.params.get("weight")), *limits)


def _body(params: Section, server: Server) -> dict[str, Any]:
    """Return the fields that the server gets where a request has none, of those that only it has to know."""
    found: dict[str, Any] = {}
    given = _plain(params.get("extra_body"))
    if given and not OF_REQUESTS.intersection(given):
        found |= given
        params.carry("extra_body", "body")
    if server.provider not in _NATIVE:
        for name, value in _plain({name: params.get(name) for name in _OF_OPENAI}).items():
            found[name] = value
            params.carry(name, f"body.{name}")
    return found


def _price(entry: Entry) -> Price | None:
    """Return the price where the file has both parts of it."""
    given = [
        (section, name, field, usd)
        for name, field in _PRICES.items()
        for section in (entry.info, entry.params)
        if (usd := _usd(section.get(name))) is not None
    ]
    found = {field: usd for _, _, field, usd in given}
    if not {"input_usd_per_million", "output_usd_per_million"} <= found.keys():
        return None
    for section, name, field, _ in given:
        section.carry(name, f"price.{field}")
    return msgspec.convert(found, Price)


def _capabilities(info: Section) -> Capabilities:
    found = {name: info.get(name) for name in _CAPABILITIES if isinstance(info.get(name), bool)}
    for name in found:
        info.carry(name, f"capabilities.{_CAPABILITIES[name]}")
    return Capabilities(**{_CAPABILITIES[name]: able for name, able in found.items()})


def _note(entry: Entry, server: Server) -> None:
    """Note the fields of which the server is made, and those that become nothing."""
    named = ("model", "custom_llm_provider", "api_base", "base_url", "weight", "aws_region_name", "vertex_project",
             "vertex_ai_project", "vertex_location", "vertex_ai_location")  # fmt: skip
    for name in named:
        if name in entry.params.values:
            entry.params.carry(name, "its server")
    for name in server.unset:
        entry.params.leave(name, _UNSET)
    for section in (entry.params, entry.own):
        for name, why in WHY_OF_PARAMS.items():
            if name in section.values:
                section.leave(name, why)
    for name, text in (("base_model", "the model whose price holds"), ("mode", "the endpoint that it serves")):
        if name in entry.info.values:
            entry.info.carry(name, text)
    if "id" in entry.info.values:
        entry.info.leave("id", "answers name the entry (x-aio-tier, x-aio-target)")


def mode_of(params: Mapping[str, Any], info: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Return what a model serves: `chat`, `embedding`, an endpoint that is passed through, or None for another mode."""
    if isinstance(given := info.get("mode"), str) and (given in _MODES or given in _OTHER_MODES):
        return _MODES.get(given)
    model = str(params.get("model") or "")
    if (variable := variable_of(model)) is not None:
        model = environ.get(variable, "")
    by_words = (mode for mode, words in _MODES_BY_WORDS if words.search(model.lower()))
    return next(by_words, "chat")


def time_limits(own: Mapping[str, float], common: Mapping[str, float]) -> dict[str, float]:
    """Return the limits of a server: its own precede, and a whole answer's bounds that of a read. Without one for
    reads, a read may take as long as an answer, as with LiteLLM."""
    total = own.get("total_timeout_seconds", common.get("total_timeout_seconds"))
    read = own.get("read_timeout_seconds", common.get("read_timeout_seconds", total))
    if total is not None and read is not None and read > total:
        is_wider = "read_timeout_seconds" in own and "total_timeout_seconds" not in own
        read, total = (read, read) if is_wider else (total, total)
    found = {"read_timeout_seconds": read, "total_timeout_seconds": total}
    return {name: max(_LEAST_SECONDS, seconds) for name, seconds in found.items() if seconds is not None}


def numbered(name: str) -> Any:
    """Yield a name and then others like it: `name-2`, or `NAME_2` for a variable."""
    yield name
    count = 2
    while True:
        yield f"{name}-{count}" if not name.isupper() else f"{name}_{count}"
        count += 1


def _plain(value: object) -> dict[str, Any]:
    """Return a mapping as a catalogue can hold it, without nulls; empty for anything else."""
    try:
        found = msgspec.json.decode(msgspec.json.encode(value)) if isinstance(value, dict) else {}
    except (TypeError, ValueError):
        return {}
    plain: dict[str, Any] = _without_nulls(found)
    return plain


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value if each is not None] if isinstance(value, list) else value


def _usd(value: object) -> float | None:
    """Return US dollars per million tokens, of a price per token; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value) * 1e6
    except ValueError:
        return None
    return round(found, 6) if 0 <= found < float("inf") else None
