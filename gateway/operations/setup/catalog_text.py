"""Writes a catalogue: one short commented TOML, which names variables and never holds a key."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import msgspec

from gateway.operations.setup.candidate import Candidate
from tiers.catalog.gpu_group import GpuGroupSpec
from tiers.catalog.price_list import list_version
from tiers.catalog.tier_spec import Price

_HEAD = """\
# AIO's tiers, cheapest first; written by `aio init` on {day}. `aio serve` in this folder takes this file.
# `aio check` asks every tier one question. Prices: US dollars per million tokens.
# A table [private] keeps prompts with personal or secret data on local tiers: models here, and servers that you give
# `local = true`. [[guardrails]] judge requests and answers, [[rules]] say who may use which tiers, a tier's `fallback`
# and [[targets]] stand in where it fails, `api_keys` gives a server several keys, [[embeddings]] lists models that give
# vectors: docs/privacy.md, docs/routing.md, docs/remote-tiers.md, docs/reference/catalogue.md have an example of each.
"""

_UNMEASURED = """
# What quantisation cost these models is not known; each start warns of it. `aio quality compare` measures it: without
# their line here, `aio serve` says the command.
[unmeasured]"""


_BARE = re.compile(r"[A-Za-z0-9_-]+")
_OF_GROUP = ("name", "cards", "card_bytes")
# The rest is the shape's, or the file's.
_OF_MODEL = ("name", "path", "weights", "shape", "max_context")


def catalog_text(
    candidates: Sequence[Candidate],
    day: date,
    aliases: Mapping[str, str] | None = None,
    targets: Sequence[Candidate] = (),
    embeddings: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the catalogue's text; every candidate has a name. `aliases`: further names of all entries; `embeddings`:
    tables of embedding models."""
    tiers = "".join(map(_entry, candidates)) + "".join(_entry(target, "targets") for target in targets)
    for table in embeddings:
        tiers += "\n[[embeddings]]\n" + "".join(f"{_line(key, value)}\n" for key, value in table.items())
    names = [_line(json.dumps(name, ensure_ascii=False), tier) for name, tier in (aliases or {}).items()]
    further = "\n".join(["\n[aliases]", *names]) + "\n" if names else ""
    return _HEAD.format(day=day.isoformat()) + tiers + "".join(map(_group, _groups(candidates))) + further


def unmeasured_text(models: Sequence[str]) -> str:
    """Return the table that lets quantised `models` be served without a quality report; empty without models."""
    if not models:
        return ""
    lines = [_line(json.dumps(model, ensure_ascii=False), "not measured yet") for model in models]
    return "\n".join([_UNMEASURED, *lines]) + "\n"


def _groups(candidates: Sequence[Candidate]) -> list[GpuGroupSpec]:
    """Return the candidates' groups, each with the models that were chosen of it."""
    names = {candidate.model for candidate in candidates if candidate.group is not None}
    groups = {candidate.group.name: candidate.group for candidate in candidates if candidate.group is not None}
    return [
        msgspec.structs.replace(group, models=[model for model in group.models if model.name in names])
        for group in groups.values()
    ]


def _group(group: GpuGroupSpec) -> str:
    lines = [f"\n# {line}" for line in group.memory_lines()]
    lines.append("\n[[gpu_groups]]\n" + "\n".join(_line(key, getattr(group, key)) for key in _OF_GROUP))
    for model in group.models:
        lines.append("\n\n[[gpu_groups.models]]\n")
        lines.append("\n".join(_line(key, value) for key in _OF_MODEL if (value := getattr(model, key)) is not None))
    return "".join(lines) + "\n"


def _entry(candidate: Candidate, kind: str = "tiers") -> str:
    lines = [f"\n[[{kind}]]  # {' '.join(candidate.source.split())}", _line("name", candidate.name)]
    if candidate.provider:
        lines.append(_line("provider", candidate.provider))
    if candidate.url:
        lines.append(_line("url", candidate.url))
        if candidate.kind != "openai":
            lines.append(_line("kind", candidate.kind))
    if (candidate.path or candidate.model) and not candidate.remote:
        lines.append(_line("model", candidate.path or candidate.model))
    if candidate.api_key_env and not candidate.remote:
        lines.append(_line("api_key_env", candidate.api_key_env, "the variable that holds the key"))
    if candidate.max_context and candidate.group is None and not candidate.remote:
        lines.append(_line("max_context", candidate.max_context, candidate.context_note))
    able = {name: value for name, value in msgspec.structs.asdict(candidate.capabilities).items() if value is not None}
    if able:
        lines.append(_line("capabilities", able))
    if candidate.price is not None and not candidate.price.estimated:
        lines.append(_line("price", _price(candidate.price), candidate.price_from or f"genai-prices {list_version()}"))
    elif (estimate := candidate.estimate) is not None:
        of = f"{candidate.price_from}; " if candidate.price_from else ""
        lines.append(_line("price", _price(estimate), f"{of}yours, without `estimated`, is better"))
    lines += [_line(key, value) for key, value in candidate.further.items()]
    if candidate.remote:
        lines += ["", f"[{kind}.remote]", *(_line(key, value) for key, value in candidate.remote.items())]
    return "\n".join(lines) + "\n"


def _price(price: Price) -> dict[str, Any]:
    # Once it is written down it is the catalogue's, no list's.
    written: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(price, listed=""))
    return written


def _line(key: str, value: Any, note: str = "") -> str:
    line = f"{key} = {_toml(value)}"
    return f"{line}  # {note}" if note else line


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _toml(value: Any) -> str:
    """Return a TOML value; JSON's strings, numbers and booleans are TOML's."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
