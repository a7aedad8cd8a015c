"""What a provider bills besides tokens at the price list's price: searches and other tools that it runs, classes of
service, audio. One table says what each costs, and what asks for it; the bound that is held for a request and the bill
of its answer both follow from the table.

What has no known price, or no bound on how often it is used, is refused to callers with a budget or a maximum cost.
Others may use it, and their record says that it is unpriced. The catalogue's `extra_prices` give a tier prices of its
own.
"""

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from tiers.catalog.tier_spec import TierSpec
from tiers.dialects.chat_opaque import PART_TYPES
from tiers.dialects.rules import FORWARDED, server_of
from tiers.tier import GenerationRequest, ModelRequest, Usage

ROUNDS = 10
"""How often a provider reads the prompt again where its tools may be used any number of times: Anthropic pauses a turn
after so many (https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons, read 2026-11)."""
USES = 10
"""The most uses of a tool that a caller with a budget gets where the request sets no bound."""
MOST_USES = 2**31 - 1


class Extra(NamedTuple):
    """A row of the table. The first row of a field that matches is the one that holds.

    Where there is a `bound` and no `most`, the server is sent `USES` for a caller with a budget. With neither `usd` nor
    `factor` the price is not known.
    """

    name: str
    """The name in the catalogue's `extra_prices`."""
    source: str
    servers: tuple[str, ...] = ()
    """Servers that have it (`rules.server_of`); empty for all."""
    models: str = ""
    """A regular expression for the models that have it; empty for all."""
    asked: str = ""
    """A field of the request. After `=`, a regular expression for its value, and for `type`, `id` or the value itself
    of each element of a list. If empty, every request uses it.
    """
    where: str = ""
    """A regular expression that is found in the JSON of the element."""
    counted: tuple[str, ...] = ()
    """Names in `Usage.extras` of its uses, or of the value that the answer reports for the field. If empty, each call
    of the server is a use.
    """
    usd: float | None = None
    """US dollars of a use."""
    factor: float | None = None
    """What the prices of all tokens are multiplied by."""
    listed: str = ""
    """The field of the price list with the price per million uses, which are tokens that are counted at the usual
    price, too.
    """
    bound: str = ""
    """The field that limits the uses; of the element itself where it begins with the name of the asking field."""
    most: int | None = None
    """The uses without such a field."""
    reads: bool = False
    """Whether each use makes the server read the prompt again."""

    @property
    def field(self) -> str:
        """The name of the asking field."""
        return self.asked.partition("=")[0]


OPENAI = ("openai", "azure")
_PRIORITY = "https://openai.com/api-priority-processing/"
_FLEX = "https://platform.openai.com/docs/guides/flex-processing"
_OPENAI = "https://platform.openai.com/docs/pricing"
_CLAUDE = "https://platform.claude.com/docs/en/about-claude/pricing"
_FAST = "https://platform.claude.com/docs/en/build-with-claude/fast-mode"
_BEDROCK = "https://aws.amazon.com/bedrock/pricing/"
_XAI = "https://docs.x.ai/developers/pricing"
_OPENROUTER = "https://openrouter.ai/docs/web-search"
_OPENROUTER_PDF = "https://openrouter.ai/docs/features/multimodal/pdfs"
_PERPLEXITY = "https://docs.perplexity.ai/getting-started/pricing"
_GROQ = "https://console.groq.com/docs/compound"
_TIER, _SPEED, _GEO = "service_tier=priority", "speed=fast", "inference_geo=us"
_NO_PRICE = "no published price that follows from the request"


def _priority(
    models: str, factor: float | None, servers: tuple[str, ...] = ("openai",), source: str = _PRIORITY
) -> Extra:
    return Extra("priority", source, servers, models, _TIER, counted=(_TIER,), factor=factor)


def _tool(name: str, servers: tuple[str, ...], types: str, source: str, **more: Any) -> Extra:
    return Extra(name, source, servers, asked=f"tools={types}", **more)


_SEARCHES: dict[str, Any] = {"counted": ("web_search_call",), "bound": "max_tool_calls", "reads": True}
_CONTAINER: dict[str, Any] = {"counted": ("code_interpreter_container",), "most": 1, "reads": True}

# Sources are published pages, read 2026-11.
EXTRAS: tuple[Extra, ...] = (
    # Classes of service.
    _priority(r"^gpt-5\.5(?!-pro)", 2.5),
    _priority(r"^gpt-5-mini", 1.8),
    _priority(r"^gpt-5(\.[124])?(-codex|-mini|-20|-chat|$)", 2.0),
    _priority(r"^gpt-4\.1-nano", 2.0),
    _priority(r"^(gpt-4\.1|o3(?!-(pro|deep|mini)))", 1.75),
    _priority(r"^gpt-4o-mini(?!-)|^gpt-4o-mini-20", 1.6667),
    _priority(r"^gpt-4o-2024-05", 1.75),
    _priority(r"^gpt-4o(-20|$)", 1.7),
    _priority(r"^o4-mini(?!-deep)", 1.8182),
    _priority("", 1.75, ("bedrock",), _BEDROCK),
    _priority("", 2.5, ("openrouter",), "https://openrouter.ai/docs/guides/features/service-tiers"),
    _priority("", 1.0, ("anthropic",), "https://platform.claude.com/docs/en/api/service-tiers"),
    _priority("", None, ("openai", "azure", "xai", "fireworks", "together", "provider"), _NO_PRICE),
    Extra("flex", _FLEX, ("openai",), "^(gpt-[5-9]|o3|o4-mini)", "service_tier=flex",
          counted=("service_tier=flex",), factor=0.5),
    Extra("flex", _BEDROCK, ("bedrock",), "", "service_tier=flex", factor=0.5),
    Extra("fast", _FAST, ("anthropic",), "opus-4-[67]", _SPEED, counted=(_SPEED,), factor=6.0),
    Extra("fast", _FAST, ("anthropic",), r"opus-5(?:[-@]20\d+)?$", _SPEED, counted=(_SPEED,), factor=2.0),
    Extra("fast", _NO_PRICE, ("anthropic",), "", _SPEED, counted=(_SPEED,)),
    Extra("inference_geo", "https://platform.claude.com/docs/en/manage-claude/data-residency", ("anthropic",), "", _GEO,
          counted=(_GEO,), factor=1.1),
    Extra("inference_geo", _NO_PRICE, ("anthropic",), "", "inference_geo=(?!global$).*"),
    # Tools that Anthropic runs, and the caller's own of its types.
    _tool("caller's tools", ("anthropic",), "(bash|text_editor|computer|memory)_.*", _CLAUDE, usd=0.0, most=0),
    _tool("web_search", ("anthropic",), "web_search_.*", _CLAUDE, usd=0.01, counted=("web_search_requests",),
          bound="tools.max_uses", reads=True),
    _tool("web_fetch", ("anthropic",), "web_fetch_.*", _CLAUDE, usd=0.0, counted=("web_fetch_requests",),
          bound="tools.max_uses", most=ROUNDS, reads=True),
    _tool("tool_search", ("anthropic",), "tool_search_tool_.*", _CLAUDE, usd=0.0, counted=("tool_search_requests",),
          most=ROUNDS, reads=True),
    _tool("code_execution", ("anthropic",), "code_execution_.*", _CLAUDE),
    Extra("code_execution", _CLAUDE, ("anthropic",), asked="container"),
    Extra("mcp", _NO_PRICE, ("anthropic",), asked="mcp_servers"),
    Extra("compaction", "https://platform.claude.com/docs/en/build-with-claude/compaction", ("anthropic",), "",
          "context_management", where='"compact_', usd=0.0, most=1, reads=True),
    # Tools that OpenAI runs.
    _tool("web_search_preview", OPENAI, "web_search_preview.*", _OPENAI, usd=0.025, models="^gpt-4", **_SEARCHES),
    _tool("web_search", OPENAI, "web_search.*", _OPENAI, usd=0.01, **_SEARCHES),
    _tool("file_search", OPENAI, "file_search", _OPENAI, usd=0.0025, counted=("file_search_call",),
          bound="max_tool_calls", reads=True),
    _tool("code_interpreter 4g", OPENAI, "code_interpreter", _OPENAI, where='"4g"', usd=0.12, **_CONTAINER),
    _tool("code_interpreter 16g", OPENAI, "code_interpreter", _OPENAI, where='"16g"', usd=0.48, **_CONTAINER),
    _tool("code_interpreter 64g", OPENAI, "code_interpreter", _OPENAI, where='"64g"', usd=1.92, **_CONTAINER),
    _tool("code_interpreter", OPENAI, "code_interpreter", _OPENAI, where='"auto"', usd=0.03, **_CONTAINER),
    _tool("caller's tools", OPENAI, "computer.*", _OPENAI, usd=0.0, most=0),
    # Searches of chats.
    Extra("web_search", _OPENAI, OPENAI, "search-preview", usd=0.025),
    Extra("web_search", _OPENAI, OPENAI, "search-api", usd=0.01),
    Extra("web_search", _OPENAI, OPENAI, "search-(preview|api)", "web_search_options", usd=0.0),
    Extra("live_search", _XAI, ("xai",), "", "search_parameters", where='"mode": ?"off"', usd=0.0),
    Extra("live_search", _XAI, ("xai",), "", "search_parameters", usd=0.025, counted=("num_sources_used",),
          bound="search_parameters.max_search_results", most=20),
    Extra("web", _OPENROUTER, ("openrouter",), "", "plugins=web", where='"engine": ?"exa"', usd=0.004,
          counted=("web_results",), bound="plugins.max_results", most=5),
    Extra("plugin", _OPENROUTER_PDF, ("openrouter",), "", "plugins=file-parser",
          where='"engine": ?"(pdf-text|native|cloudflare-ai)"', usd=0.0),
    Extra("plugin", _OPENROUTER_PDF, ("openrouter",), "", "plugins=response-healing|context-compression", usd=0.0),
    Extra("provider", _NO_PRICE, ("openrouter",), "", "provider"),
    Extra("search", _PERPLEXITY, (), "(^|/)sonar(-reasoning)?$", usd=0.012),
    Extra("search", _PERPLEXITY, (), "(^|/)sonar(-reasoning)?-pro$", usd=0.014),
    Extra("search", _PERPLEXITY, (), "(^|/)sonar-deep-research"),
    Extra("compound", _GROQ, ("groq",), "compound"),
    *(Extra(name, _NO_PRICE, (), "", name) for name in (
        "web_search_options", "search_parameters", "plugins", "enable_search", "search_options", "search_settings",
        "compound_custom")),
    # Audio and images, in tokens that are counted as text, too.
    Extra("audio input", _OPENAI, OPENAI, "", "parts=input_audio", counted=("audio_prompt_tokens",),
          listed="input_audio_mtok"),
    Extra("audio input", "https://ai.google.dev/gemini-api/docs/pricing", ("gemini",), "", "parts=input_audio",
          usd=0.0, counted=("audio_prompt_tokens",), listed="input_audio_mtok"),
    Extra("audio output", _OPENAI, (), "", "modalities=audio", counted=("audio_completion_tokens",),
          listed="output_audio_mtok"),
    Extra("image output", "https://ai.google.dev/gemini-api/docs/pricing", (), "", "modalities=image",
          counted=("image_completion_tokens",), listed="output_image_mtok"),
)  # fmt: skip
_LISTS = ("tools", "plugins")
"""Fields whose elements are billed where no row knows them."""


class Asked(NamedTuple):
    """An extra that a request uses."""

    extra: Extra
    param: str
    """The field of the request that uses it."""
    most: int | None
    """The most uses; None for any number."""
    usd: float | None


class ExtraCosts(NamedTuple):
    """What the extras of a request may cost."""

    usd: float = 0.0
    """US dollars besides tokens."""
    factor: float = 1.0
    """What the prices of all tokens are multiplied by."""
    reads: int = 0
    """How often the prompt may be read again."""
    notes: tuple[str, ...] = ()
    """Each extra in words, for the record."""


NOTHING = ExtraCosts()


class UnboundedCostError(ValueError):
    """The cost of a request at a tier has no bound. `param`: the field because of which; "" for the model itself."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def asked_extras(spec: TierSpec, request: ModelRequest) -> list[Asked]:
    """Return the extras that `request` uses at the tier of `spec`; those of a tier in process are none."""
    if spec.remote is None:
        return []
    extras = []
    server = server_of(spec.remote, spec.provider)
    rows, sent = _rows_of(server, spec.model_name), FORWARDED.get(server)
    for field, elements in _fields(request):
        if field in request.extra and sent is not None and field not in sent and field not in spec.remote.forward:
            # The server does not get it.
            continue
        for element in elements:
            row = next((row for row in rows if row.field == field and _matches(row, element)), None)
            if row is None and field in _LISTS:
                row = Extra(_value(element), _NO_PRICE, asked=field)
            if row is not None:
                extras.append(Asked(row, field, _most(row, element, request), _usd(spec, row)))
    extras += [Asked(row, "", 1, _usd(spec, row)) for row in rows if not row.asked]
    return extras


def most_extra_costs(
    spec: TierSpec, request: GenerationRequest, prompt_tokens: int, answer_tokens: int, calls: int
) -> ExtraCosts:
    """Return the most that the extras of `calls` calls cost, which read and write at most so many tokens. Raises
    `UnboundedCostError`."""
    extras = asked_extras(spec, request)
    if not extras:
        return NOTHING
    usd, factor, reads = 0.0, 1.0, 0
    for use in extras:
        row, most = use.extra, use.most
        if row.factor is None and use.usd is None:
            raise UnboundedCostError(_unpriced(spec, use), use.param)
        if row.factor is not None:
            factor *= max(1.0, row.factor if use.usd is None else use.usd)
            continue
        if row.listed:
            most = prompt_tokens if row.listed.startswith("input") else answer_tokens
        most = USES if most is None else most
        usd += max(0.0, use.usd or 0.0) * most * (1 if row.listed else calls)
        reads += most if row.reads else 0
    return ExtraCosts(usd, factor, reads)


def extra_reads(spec: TierSpec, request: ModelRequest) -> int:
    """Return how often the server may read the prompt again, for tools that it runs."""
    if not (request.server_tools or "context_management" in _opaque_fields(request)):
        return 0
    extras = (use for use in asked_extras(spec, request) if use.extra.reads or use.extra.source == _NO_PRICE)
    return sum(ROUNDS if use.most is None or not use.extra.reads else use.most for use in extras)


def billed_extras(spec: TierSpec, request: ModelRequest, usage: Usage, calls: int) -> ExtraCosts:
    """Return what the extras of an answer cost: those that `usage` reports, and those that were asked for and that the
    server need not report. A provider runs no tool that a request did not name, so a count of one costs nothing."""
    told = usage.extras
    extras = asked_extras(spec, request)
    if told and spec.remote is not None:
        rows = {name: row for row in reversed(_rows_of(server_of(spec.remote, spec.provider), spec.model_name))
                for name in row.counted}  # fmt: skip
        counted = {name for use in extras for name in use.extra.counted}
        unasked = dict.fromkeys(
            row for name, row in rows.items() if name in told and name not in counted and row.field not in _LISTS
        )
        extras += [Asked(row, row.field, None, _usd(spec, row)) for row in unasked]
    usd, factor, notes = 0.0, 1.0, []
    for row, price in {use.extra: use.usd for use in extras}.items():
        uses = sum(told.get(name, 0) for name in row.counted) if row.counted else calls
        is_told = any(name.startswith(f"{row.field}=") for name in told)
        if row.factor is not None or (row.counted and "=" in row.counted[0]):
            if is_told and not uses:
                continue
            by = row.factor if price is None else price
            factor *= 1.0 if by is None else by
            notes.append(f"{row.name}: unpriced" if by is None else f"{row.name}: tokens x {by:g}")
        elif price is None:
            notes.append(f"{row.name}: unpriced")
        elif uses and (price or not row.listed):
            usd += price * uses
            notes.append(f"{row.name}: {uses} x ${price:.6g}")
    return ExtraCosts(usd, factor, notes=tuple(dict.fromkeys(notes)))


def with_bounds(spec: TierSpec, request: GenerationRequest) -> GenerationRequest:
    """Return the request of a caller with a budget: it bounds the uses that `most_extra_costs` has counted as bounded
    by `USES`."""
    opaque = request.opaque
    unset = [use for use in asked_extras(spec, request) if use.most is None and use.extra.bound]
    if opaque is None or not unset:
        return request
    fields = dict(opaque.fields)
    for row in {use.extra for use in unset}:
        name = row.bound.rpartition(".")[2]
        if not row.bound.startswith(f"{row.field}."):
            fields[name] = msgspec.json.encode(USES)
            continue
        elements = msgspec.json.decode(fields[row.field], type=list[dict[str, Any]])
        fields[row.field] = msgspec.json.encode([
            element | {name: USES} if _matches(row, element) and _whole(element.get(name)) is None else element
            for element in elements
        ])  # fmt: skip
    return msgspec.structs.replace(request, opaque=opaque.with_fields(fields))


@lru_cache(maxsize=256)
def _rows_of(server: str, model: str) -> tuple[Extra, ...]:
    name = model.rpartition("/")[2] if server != "openrouter" else model
    return tuple(
        row for row in EXTRAS
        if (not row.servers or server in row.servers) and (not row.models or re.search(row.models, name))
    )  # fmt: skip


_FIELDS = dict.fromkeys(row.field for row in EXTRAS if row.asked and row.field != "parts")


def _opaque_fields(request: ModelRequest) -> dict[str, bytes]:
    return {} if request.opaque is None else request.opaque.fields


def _fields(request: ModelRequest) -> Iterator[tuple[str, Sequence[Any]]]:
    """The fields of a request that the table knows, and their values."""
    for name, value in (*request.passed.items(), *request.extra.items()):
        if name in _FIELDS and value not in (None, False):
            yield name, value if isinstance(value, list) else [value]
    for name, raw in _opaque_fields(request).items():
        if name in _FIELDS and raw not in (b"null", b"false"):
            value = msgspec.json.decode(raw)
            if name == "tools":
                value = [tool for tool in value if isinstance(tool, dict) and tool.get("type") in request.server_tools]
            yield name, value if isinstance(value, list) else [value]
    kinds = {PART_TYPES[block.kind]: None for message in request.messages or () for block in message.media}
    yield "parts", list(kinds)


def _value(element: Any) -> str:
    return str(element.get("type") or element.get("id") or "") if isinstance(element, dict) else str(element)


def _matches(row: Extra, element: Any) -> bool:
    value = row.asked.partition("=")[2]
    if value and re.fullmatch(value, _value(element)) is None:
        return False
    return not row.where or re.search(row.where, msgspec.json.encode(element).decode()) is not None


def _most(row: Extra, element: Any, request: ModelRequest) -> int | None:
    if not row.bound:
        return 1 if row.most is None else row.most
    name = row.bound.rpartition(".")[2]
    if row.bound.startswith(f"{row.field}."):
        stated_bound = element.get(name) if isinstance(element, dict) else None
    else:
        raw = _opaque_fields(request).get(name)
        stated_bound = None if raw is None else msgspec.json.decode(raw)
    most = _whole(stated_bound)
    return row.most if most is None else most


def _whole(bound: Any) -> int | None:
    return bound if isinstance(bound, int) and not isinstance(bound, bool) and 0 <= bound <= MOST_USES else None


def _usd(spec: TierSpec, row: Extra) -> float | None:
    """US dollars of a use, beyond what its tokens cost as text; of a row with a factor what replaces that. None: as the
    row's factor says, or not known."""
    if (usd := spec.extra_prices.get(row.name)) is not None:
        return usd
    if not row.listed:
        return row.usd
    listed = _listed(spec, row.listed)
    if listed is None:
        return row.usd
    usual = spec.price.input_usd_per_million if row.listed.startswith("input") else spec.price.output_usd_per_million
    return (listed - usual) / 1e6


def _listed(spec: TierSpec, field: str) -> float | None:
    from tiers.catalog.price_list import listed_info

    assert spec.remote is not None
    info = listed_info(spec.model_name, provider=spec.provider, base_url=spec.remote.base_url)
    price = None if info is None else getattr(info.get_prices(datetime.now(UTC)), field, None)
    price = getattr(price, "base", price)
    return None if price is None or not math.isfinite(float(price)) else float(price)


def _unpriced(spec: TierSpec, extra: Asked) -> str:
    what = f"{extra.param}: " * bool(extra.param) + f"what '{extra.extra.name}' costs"
    return (
        f"{what} at tier '{spec.name}' is not known, so a key with a budget or a maximum cost cannot use it. Leave it "
        "out, or ask the operator to set its price in the catalogue's extra_prices"
    )
