"""The pages of docs/reference that are made from the code: settings, commands, the HTTP API, metrics and live knobs.

`make snapshots` writes them with the other snapshots; tests/snapshots/test_snapshots.py holds that they are current.
"""

import html
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
import msgspec
from prometheus_client import CollectorRegistry

from gateway.batches.batch import BatchKnobs
from gateway.cli import main
from gateway.cli.serving.migrate import settings_table
from gateway.inference.answer_stores import CacheKnobs
from gateway.inference.routing_knobs import RoutingKnobs
from gateway.runtime.cores.knob_profiles import PROFILES
from inference_core.protocol import Knobs
from tests.snapshots.interfaces import METHODS
from tiers.catalog.replica_spec import BalancingSpec
from tiers.dialects.extras import EXTRAS, USES, Extra

Json = dict[str, Any]
MOST_FIELDS = 16  # of a body that a row names; more are for `/docs`
MADE = "<!-- Made by `make snapshots`; change the code's own descriptions instead. -->"


def settings_page() -> str:
    return page(
        "Settings",
        "Every setting is an environment variable. The common ones are also options of `aio serve`. `aio settings` "
        "prints this table.\n\n"
        "AIO treats an empty variable as unset and ignores blanks around a value. Words may be in any case, and `yes`, "
        "`no`, `on` and `off` are allowed. When AIO starts, it names `AIO_` variables that are not settings.\n\n"
        "Keys, passwords, `AIO_DATABASE_URL`, `AIO_REDIS_URL` and the variables with keys of servers may also be "
        "files. For example, `AIO_API_KEYS_FILE` names the file with the value of `AIO_API_KEYS`. AIO reads the file "
        "when it starts.\n\n"
        "OpenTelemetry's variables (`OTEL_…`) count if AIO's own variable is not set "
        "([traces](../observability.md#traces)). Requests to other servers go through [`HTTP_PROXY`, `HTTPS_PROXY`, "
        "`ALL_PROXY` and `NO_PROXY`](../remote-tiers.md#a-proxy). They trust the authorities of `SSL_CERT_FILE`, "
        "`SSL_CERT_DIR`, `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE`, whichever is set first in this order.",
        settings_table(),
    )


def extras_page() -> str:
    rows = [
        [
            f"`{row.name}`",
            ", ".join(row.servers) or "any",
            f"`{row.models}`" if row.models else "",
            _asked(row),
            _price(row),
            _bound(row),
            f"[page]({row.source})" if row.source.startswith("https:") else row.source,
        ]
        for row in EXTRAS
    ]
    return page(
        "What is billed besides tokens",
        "Besides tokens, providers bill other things, such as web searches. This page lists them with their prices. "
        "For a request, AIO uses the first row that matches one of its fields. Models are regular expressions. AIO "
        "bills the provider's own count of the uses, or the class of service that the answer names. If the server "
        "says what it charges, AIO bills that. `extras` and `extras_usd` of an attempt in a record say what was "
        "billed.",
        filled(
            "A tool or plugin without a row has no known price. If a key has a budget or a maximum cost, AIO refuses "
            "requests for what has no known price (400, with the field). The records of other keys say that it is "
            "`unpriced`. You can set prices with `extra_prices` of a tier or target: `extra_prices = { web_search = "
            "0.008, mcp = 0.0 }`. A price is in US dollars for one use. For what multiplies the prices of tokens, "
            "give the factor."
        ),
        filled(
            "Under a budget or a maximum cost, AIO bounds and reserves what a request may cost. A search without a "
            f"bound gets a bound of {USES} uses. For each use, AIO reserves another reading of the model's whole "
            "context. For an image, it reserves the largest image of its family of models. Audio, a video or a file "
            "may fill the model's context. We read the providers' pages in November 2026."
        ),
        table(["name", "servers", "models", "asked by", "price", "most uses", "source"], rows),
    )


def _asked(row: Extra) -> str:
    if not row.asked:
        return "every request"
    return f"`{row.asked}`" if not row.where else f"`{row.asked}` with `{row.where}`"


def _price(row: Extra) -> str:
    if row.factor is not None:
        return f"tokens × {row.factor:g}"
    if row.listed:
        return f"the list's `{row.listed}`" + ("" if row.usd is None else ", else the price of texts")
    return "not known" if row.usd is None else f"${row.usd:g}" if row.usd else "its tokens alone"


def _bound(row: Extra) -> str:
    if row.bound:
        return f"`{row.bound}`, else {USES if row.most is None else row.most}"
    return "" if row.most is None else str(row.most)


def commands_page() -> str:
    return page(
        "Commands",
        "Each command has `--help`. Those that speak to a running server take `--url` (`AIO_URL`, else "
        "`http://127.0.0.1:8080`) and `--key` (`AIO_ADMIN_KEY`, of a caller's command `AIO_API_KEY`).",
        *_commands(main, "aio"),
    )


def api_page(document: Json) -> str:
    """From the OpenAPI document, which every server shows at `/docs`: there are the fields of bodies and answers."""
    groups: dict[str, list[list[str]]] = {title: [] for title in _GROUPS}
    for path, item in sorted(document["paths"].items()):
        title = next(title for title, prefix in _GROUPS.items() if path.startswith(prefix))
        for method in METHODS:
            if (operation := item.get(method)) is not None:
                name = f"`{method.upper()} {path}`"
                groups[title].append([name, operation.get("summary", ""), _takes(operation, document)])
    tables = [f"## {title}\n\n{table(('endpoint', 'what it does', 'takes'), rows)}" for title, rows in groups.items()]
    return page(
        "HTTP API",
        "What each endpoint is for and takes; a running server has every field of bodies and answers at `/docs`, "
        "and the OpenAPI document at `/docs/openapi.json`. How to use them: [gateway.md](../gateway.md). Operators' "
        "endpoints need an [admin key](../keys.md#the-first-admin-key); to read, the scope `viewer` is enough. "
        "Lists are newest first, page by page: `next` of one page is the `cursor` of the next; `limit`, `since`, "
        "`until` and named columns filter. Earlier paths of `/v1/admin/knobs/…`, without `core` or `knobs/`, still "
        "answer.",
        *tables,
    )


def metrics_page(registries: Iterable[CollectorRegistry]) -> str:
    rows: dict[str, list[str]] = {}
    for registry in registries:
        for collector in registry._collector_to_names:
            for family in collector.collect():
                labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
                name = f"{family.name}_total" if family.type == "counter" else family.name
                rows[name] = [f"`{name}`", family.type, ", ".join(labels), family.documentation]
    return page(
        "Metrics",
        "Series of `GET /metrics`, with a label `worker` where several processes serve one port. Which need a key, and "
        "what to watch: [observability.md](../observability.md#metrics). Names of GPUs are those of NVIDIA's exporter.",
        table(("series", "type", "labels", "meaning"), [rows[name] for name in sorted(rows)]),
    )


def knobs_page() -> str:
    parts = [
        f"## {title}\n\n{filled(words)}\n\n{table(('knob', 'default', 'allowed', 'meaning'), _knobs(struct))}"
        for title, (words, struct) in _SETS.items()
    ]
    return page(
        "Live knobs",
        "A knob is a value that you can change while AIO serves: with `aio knobs`, on the dashboard, or over HTTP "
        "([how](../operations.md#live-knobs)).",
        *parts,
        f"## Profiles\n\n{filled(_PROFILE_WORDS)}\n\n{_profiles()}",
    )


def page(title: str, words: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", MADE, *map(filled, words.split("\n\n")), *parts]) + "\n"


def filled(words: str) -> str:
    """Lines of at most 120 characters, without a break in code."""
    kept = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), words)
    return textwrap.fill(kept, 120, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [f"| {' | '.join(titles)} |", f"| {' | '.join(['---'] * len(titles))} |"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def _cell(text: str) -> str:
    """In one line; a bar is no border. In code GitHub and mkdocs read a backslash differently, so it is HTML there."""

    def code(found: re.Match[str]) -> str:
        return f"<code>{html.escape(found[1], quote=False).replace('|', '&#124;')}</code>"

    return re.sub(r"`([^`]*\|[^`]*)`", code, " ".join(text.split())).replace("|", r"\|")


_GROUPS = {
    "For operators: figures and orders": "/admin/api",
    "For operators: knobs, reload, adapters": "/v1/admin",
    "For callers": "/",
}


def _takes(operation: Json, document: Json) -> str:
    """Names of query parameters, and the fields of a JSON body where they are few."""
    query = [f"`{one['name']}`" for one in operation.get("parameters", []) if one["in"] == "query"]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content.get("schema", {})
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        fields = list(schema.get("properties", {}))
        if kind != "application/json":
            query.append(f"a body of {kind}")
        elif 0 < len(fields) <= MOST_FIELDS:
            query.append(f"JSON: {', '.join(f'`{field}`' for field in fields)}")
        else:
            query.append("JSON")
    return ", ".join(query)


def _commands(command: click.Command, path: str) -> Iterator[str]:
    """A heading for each command, its first sentence, its arguments and options; of a group its commands."""
    context = click.Context(command, info_name=path.rpartition(" ")[2])
    if not isinstance(command, click.Group) or command.invoke_without_command:
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        shown = " ".join([path, *(one.make_metavar(context) for one in arguments)])
        said = _plain(command.help or command.short_help or "")
        yield f"## {path}\n\n`{shown}`\n\n{said}" if arguments else f"## {path}\n\n{said}"
        if options:
            yield table(("option", "default", "meaning"), [_option(one, context) for one in options])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, f"{path} {name}")


def _plain(text: str) -> str:
    """The first paragraph of a help text, in one line."""
    return " ".join(re.split(r"\n\s*\n", text.replace("\b", "").strip())[0].split())


def _option(option: click.Option, context: click.Context) -> list[str]:
    default = option.to_info_dict().get("default")
    shown = "" if default in (None, False, ()) or callable(option.default) else f"`{default}`"
    kind = "" if option.is_flag else f" {option.make_metavar(context)}"
    variable = f" (`{option.envvar}`)" if isinstance(option.envvar, str) else ""
    return [f"`{', '.join([*option.opts, *option.secondary_opts])}{kind}`", shown, f"{option.help or ''}{variable}"]


_SETS: Mapping[str, tuple[str, type[msgspec.Struct]]] = {
    "Core": (
        "`aio knobs set NAME=VALUE` changes these knobs for all models of all cores, or for one (`--model`, `--core`).",
        Knobs,
    ),
    "Routing": ("`aio knobs routing NAME=VALUE --reason WHY` changes these knobs.", RoutingKnobs),
    "Cache": ("`aio knobs cache NAME=VALUE --reason WHY` changes these knobs.", CacheKnobs),
    "Batches": ("`PATCH /v1/admin/knobs/batches` changes these knobs.", BatchKnobs),
    "Replicas": (
        "`PATCH /v1/admin/knobs/replicas` changes these knobs. The body has the knobs, and may have a `tier` and a "
        "`reason`. In the catalogue, `balancing = { … }` of a tier with several servers sets them; a knob's value "
        "`null` goes back to that. AIO keeps changes. Other processes follow within `AIO_ARTEFACT_POLL_SECONDS`.",
        BalancingSpec,
    ),
}


def _knobs(struct: type[msgspec.Struct]) -> Iterator[list[str]]:
    schema = msgspec.json.schema(struct)["$defs"]
    for name, field in schema[struct.__name__]["properties"].items():
        default = json.dumps(field.get("default"))
        yield [f"`{name}`", default, _allowed(field), field.get("description", "")]


def _allowed(field: Json) -> str:
    choices = field.get("enum") or [value for one in field.get("anyOf", []) for value in one.get("enum", [])]
    if choices:
        numbers = any(one.get("type") in ("number", "integer") for one in field.get("anyOf", []))
        return ", ".join(map(str, choices)) + (", a number" if numbers else "")
    limits = field if "anyOf" not in field else next(one for one in field["anyOf"] if one.get("type") != "null")
    low, high = (
        limits.get("minimum", limits.get("exclusiveMinimum")),
        limits.get("maximum", limits.get("exclusiveMaximum")),
    )
    if low is not None and high is not None:
        return f"{'above ' if 'exclusiveMinimum' in limits else ''}{low:,} to {high:,}"
    return {"boolean": "true, false", "array": "a list"}.get(str(limits.get("type")), str(limits.get("type", "any")))


_PROFILE_WORDS = (
    "`aio knobs profile NAME`, or the page Core of the dashboard, sets the knobs below for all models, routing and "
    "replicas: all of them or none. `-` is the value with which the server was started, or for routing the default. "
    "So a profile replaces values that you set one by one, and `catalogue` puts all of them back. A profile only "
    "raises `max_num_batched_tokens`, and not for GPU groups. It only lowers `max_num_seqs` and `itl_objective_ms`, "
    "the latter to no less than half of what the server was started with. Knobs of routing and replicas outlast a "
    "restart; those of a core do so with `--keep`."
)


def _profiles() -> str:
    kept = [each.core | each.routing | each.replicas for each in PROFILES.values()]
    rows = [[f"`{knob}`", *("-" if each[knob] is None else _value(each[knob]) for each in kept)] for knob in kept[0]]
    goals = "\n".join(filled(f"- **{each.name}**: {each.why}") for each in PROFILES.values())
    return f"{table(('knob', *PROFILES), rows)}\n\n{goals}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value).lower()
