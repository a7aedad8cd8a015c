"""`aio check`: ask every tier one question, and say what to do where it fails."""

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gateway.base.settings import Settings
from gateway.cli.options import echo_json, gone_option, json_option, table, with_settings

if TYPE_CHECKING:
    from gateway.operations.setup.tier_answers import TierAnswer
    from tiers.catalog.catalog import Catalog


@click.command()
@gone_option(
    "--security",
    "`aio check` and every start name the ten worst mistakes of a deployment; docs/reference/security.md has the rest "
    "of the checklist",
)
@with_settings("host", "catalog", "data_dir", "cache_dir", "database_url", "keys_file", role="all")
@json_option
def check(as_json: bool, settings: Settings) -> None:
    """Ask every tier, provider of embeddings, guardrail and store (PostgreSQL, Redis) one short question. Exits with 1
    if one does not answer.

    Shows the time to the first token, tokens per second, and what 1,000 requests would cost, then the catalogue's
    targets, fallback chains and rules, with those that can never apply, which tiers private prompts go to, what the
    file of keys would change, where texts go in traces, and the worst mistakes of a deployment. Models that AIO runs
    itself are loaded for it, as `aio serve` does. Nothing is recorded.
    """
    from gateway.base.configuration import catalog_reason, unknown_variables
    from gateway.base.gone import gone_lines
    from gateway.operations.labels.label_sources import budget_text, labels_text
    from gateway.operations.setup.checks import (
        NONE_IS_LOCAL,
        ask_embeddings,
        ask_guardrails,
        check_declared_keys,
        check_stores,
        check_traced_texts,
        private_text,
        stored_judge,
    )
    from gateway.operations.setup.exposures import exposures
    from gateway.operations.setup.failure_policy import failure_text
    from gateway.operations.setup.tier_answers import ask_tiers
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    if not as_json:
        click.echo(f"catalogue: {settings.catalog} ({catalog_reason(settings, settings.data_path)})")
        click.echo(_lists(catalog))
    answers = asyncio.run(ask_tiers(catalog, settings))
    embeddings = asyncio.run(ask_embeddings(catalog))
    guardrails = asyncio.run(ask_guardrails(catalog)) if catalog.guardrails else []
    keys = asyncio.run(
        check_declared_keys(settings, may_show=click.get_current_context().params["keys_file"] is not None)
    )
    stores = asyncio.run(check_stores(settings))
    said = [statement for statement in (keys, check_traced_texts(settings), *stores) if statement is not None]
    problem_lists = [[answer.problem for answer in each] for each in (answers, embeddings, guardrails, said)]
    problems = [problem for each in problem_lists for problem in each if problem]
    if as_json:
        echo_json(answers)
    else:
        judge = asyncio.run(stored_judge(settings, catalog))
        click.echo(
            f"{_table(answers)}\n\n{labels_text(settings, catalog, judge)}\n{budget_text(settings, catalog)}".rstrip()
        )
        _say_routing(catalog)
        if any(answer.price_estimated for answer in answers):
            click.echo("\n~ by an estimated price; give the tier a price to replace it")
        click.echo(f"\n{private_text(catalog)}")
        click.echo(f"\n{failure_text(settings)}")
        for embedding in embeddings:
            shown = "PROBLEM" if embedding.problem else f"{embedding.dimensions:,} dimensions"
            click.echo(f"Embeddings {embedding.name}: {shown}")
        for guardrail in guardrails:
            click.echo(f"Guardrail {guardrail.name}: {guardrail.verdict or 'PROBLEM'}")
        for line in (statement.line for statement in said):
            click.echo(line)
        warnings = [statement.warning for statement in said if statement.warning]
        if catalog.private is not None and not any(tier.is_local for tier in catalog.tiers):
            warnings.append(NONE_IS_LOCAL)
        warnings += unknown_variables(os.environ, settings)
        warnings += gone_lines(os.environ, settings)
        warnings += exposures(settings)
        for warning in warnings:
            click.secho(f"\nwarning: {warning}", fg="yellow")
        for problem in problems:
            click.secho(f"\nproblem: {problem}", fg="red")
    if problems:
        raise SystemExit(1)


def _say_routing(catalog: "Catalog") -> None:
    """Show what was read of targets, chains and rules, and which can never apply; nothing without any."""
    if not (catalog.rules or catalog.targets or any(tier.fallback is not None for tier in catalog.tiers)):
        return
    from tiers.catalog.rule_check import routing_lines, routing_warnings

    click.echo("\n" + "\n".join(routing_lines(catalog)))
    for warning in routing_warnings(catalog):
        click.secho(f"\nwarning: {warning}", fg="yellow")


def _lists(catalog: "Catalog") -> str:
    """The list that prices come from, with its version, and the models that give embeddings."""
    from tiers.catalog.price_list import list_version

    lines = []
    if catalog.has_listed_prices:
        lines.append(f"prices: genai-prices {list_version()}, as of {datetime.now(UTC):%Y-%m-%d}")
    for spec in catalog.embeddings:
        where = spec.url or spec.path or spec.model
        lines.append(f"embeddings: {spec.name} ({where}), ${spec.usd_per_million:g} per million")
    return "\n".join([*lines, ""])


def _table(answers: "list[TierAnswer]") -> str:
    rows = [
        [
            f"→ {answer.tier}" if answer.target else str(answer.tier),
            answer.name,
            answer.model,
            "PROBLEM" if answer.problem else "reached" if answer.ttft_seconds is None else "ok",
            "" if answer.ttft_seconds is None else f"{answer.ttft_seconds:.2f} s",
            "" if answer.tokens_per_second is None else f"{answer.tokens_per_second:.0f}",
            f"{'~' if answer.price_estimated else ''}${answer.usd_per_1000:.4g}",
        ]
        for answer in answers
    ]
    return table(["tier", "name", "model", "", "first token", "tokens/s", "per 1,000 requests"], rows)
