"""`aio keys`: make, list, change, rotate, pause, revoke and declare stored keys; running servers follow within seconds.
`aio new-key`: make a key for the settings, and its hash.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
import msgspec
from msgspec import Meta

from gateway.base.numbers import utc_text
from gateway.base.settings import Settings
from gateway.cli.options import (
    FILE,
    QUALITY_METAVAR,
    STORED,
    echo_answer,
    echo_json,
    json_option,
    limit_option,
    reason_option,
    table,
    with_database,
    with_settings,
)
from gateway.cli.typed_options import options_of
from gateway.tenancy.keys.key_commands import VERBS, KeyTerms, KeyVerb

if TYPE_CHECKING:
    from gateway.base.inference_request import Period
    from gateway.tenancy.changes import Order
    from gateway.tenancy.declared import Applied

Command = TypeVar("Command", bound=Callable[..., Any])

DAY_SECONDS = 86_400.0
GraceHours = Annotated[float, Meta(ge=0, le=24 * 90)]
ACTOR = "command line"
# Status of a dry run that finds a difference; 1 is an error, 2 a wrong option.
DIFFERS = 3
# Columns of a key in the list, with their headings.
_SHOWN = ("key_id", "name", "prefix", "team_id", "scopes")


@click.group()
def keys() -> None:
    """Make, show, change, rotate, pause and revoke API keys, or declare them in a file."""


_TERM_OPTIONS = {
    "aliases": "--alias",
    "expires_at": "--expires-in-days",
    "local_only": "--local-only/--any-tier",
    "max_cost_usd_per_request": "--max-cost-per-request",
    "models": "--model",
    "requests_per_minute": "--rpm",
    "scopes": "--scope",
    "tiers": "--tier",
    "tokens_per_minute": "--tpm",
}
"""Options that are not called as the field of `KeyTerms`."""
_TERM_METAVARS = {
    "aliases": "NAME=MODEL",
    "expires_at": "DAYS",
    "max_cost_usd_per_request": "USD",
    "models": "NAME",
    "quality": QUALITY_METAVAR,
}


_TERM_TEXTS = {
    "aliases": "A name that callers may use for auto, a tier or a model. * stands for any other name.",
    "expires_at": "Days from now until it expires.",
    "quality": "Quality target of requests that name no target. none takes the server's.",
}
"""Help where the field's description speaks of JSON."""


def terms_options(command: Command) -> Command:
    """Options for a key's terms, from the fields of `KeyTerms`; "none" removes a limit."""
    for name, field in reversed(msgspec.json.schema(KeyTerms)["$defs"]["KeyTerms"]["properties"].items()):
        variants = field.get("anyOf", [field])
        is_nullable = {"type": "null"} in variants
        attributes: dict[str, Any] = {"help": _TERM_TEXTS.get(name, field["description"].replace("`", ""))}
        option = _TERM_OPTIONS.get(name, f"--{name.replace('_', '-')}")
        match variants[0].get("type"):
            case "boolean":
                attributes |= {"is_flag": True, "default": None}
                option += "" if "/" in option else option.replace("--", "/--no-", 1)
            case "array" | "object":
                attributes["multiple"] = True
                attributes["help"] += " May be repeated."
            case "integer" if not is_nullable:
                attributes["type"] = click.IntRange(variants[0]["minimum"], variants[0]["maximum"])
        if is_nullable:
            attributes["metavar"] = f"{_TERM_METAVARS.get(name, 'N')}|none"
        command = click.option(option, name, **attributes)(command)
    return command


def budget_options(prefix: str = "") -> Callable[[Command], Command]:
    """Options for what may be spent per day, per month and in total; "none" removes a budget. See `budgets_of`."""

    def decorate(command: Command) -> Command:
        for period, when in (("total", "in total"), ("month", "per month (UTC)"), ("day", "per day (UTC)")):
            name = f"--{prefix}{period}"
            command = click.option(name, type=usd_or_none, metavar="USD|none", help=f"Most US dollars {when}.")(command)
        return command

    return decorate


def usd_or_none(text: str) -> float | str:
    """Parse a budget; the `type` of an option."""
    from gateway.tenancy.budgets.lease_book import BudgetUsd

    return text if text == "none" else checked(BudgetUsd, text)


def budgets_of(options: dict[str, Any], prefix: str = "") -> "dict[Period, float | None]":
    """Take the budgets out of `options`: those that were given, None for one to be removed."""
    periods: tuple[Period, ...] = ("day", "month", "total")
    amounts = {period: options.pop(f"{prefix}{period}") for period in periods}
    return {period: None if amount == "none" else amount for period, amount in amounts.items() if amount is not None}


@keys.command()
@click.argument("name")
@click.option("--team", help="Team of the key, by name or id. It cannot be changed later.")
@terms_options
@budget_options("budget-")
@reason_option
@with_settings(*STORED)
@json_option
def create(name: str, team: str | None, reason: str | None, as_json: bool, settings: Settings, **options: Any) -> None:
    """Make a key called NAME. AIO shows it once, because it stores only the hash."""
    from gateway.tenancy.budgets.budget_commands import change_budgets
    from gateway.tenancy.changes import tenancy_transaction
    from gateway.tenancy.keys.key_commands import IssuedKey, KeyOrder, create_key

    budgets = budgets_of(options, "budget_")
    wanted = terms_of(options)
    checked(KeyOrder, {"name": name, "team": team})

    async def make(engine: Any) -> IssuedKey:
        async with tenancy_transaction(engine) as connection:
            issued = await create_key(connection, name, team, wanted, order(reason))
            await change_budgets(connection, "key", issued.key_id, budgets, order(reason))
        return issued

    issued = with_database(settings, make)
    if as_json:
        echo_json(issued)
    else:
        click.echo(f"key {issued.key_id} of {issued.name}, shown once:\n{issued.key}")
        notice = "" if issued.notice is None else f"\n{issued.notice}"
        click.echo(f"Running servers admit it within seconds.{notice}", err=True)


@keys.command("list")
@limit_option(50)
@with_settings(*STORED)
@json_option
def list_keys(limit: int, as_json: bool, settings: Settings) -> None:
    """Show keys, newest first, including ended ones."""
    from gateway.tenancy.keys.key_commands import KEYS

    page = with_database(settings, lambda engine: KEYS.page(engine, {}, limit=limit))
    rows = [[*(_text(row[name]) for name in _SHOWN), _bounds(row), _state(row, time.time())] for row in page.rows]
    echo_answer(as_json, page, table(["id", "name", "prefix", "team", "scopes", "bounds", "state"], rows))


@keys.command()
@click.argument("key")
@with_settings(*STORED)
@json_option
def show(key: str, as_json: bool, settings: Settings) -> None:
    """Show one key (id or name) and its budgets."""
    from gateway.tenancy.budgets.budget_commands import states_of
    from gateway.tenancy.keys.key_commands import BUDGETS, shown_key

    async def look(engine: Any) -> tuple[dict[str, Any], list[Any]]:
        row = await shown_key(engine, key)
        budgets = [
            budget
            for subject in (row["key_id"], row["team_id"])
            if subject is not None
            for budget in (await BUDGETS.page(engine, {"subject": subject})).rows
        ]
        return row, await states_of(engine, budgets, time.time())

    row, budgets = with_database(settings, look)
    lines = [f"{name:20} {_value_text(name, value)}" for name, value in row.items()]
    lines += [
        f"budget of the {budget.subject_kind:8} ${budget.spent_usd:.6f} spent and ${budget.leased_usd:.6f} leased "
        f"of ${amount_text(budget.amount_usd)} ({budget.period_key})"
        for budget in budgets
    ]
    echo_answer(as_json, {"key": row, "budgets": budgets}, "\n".join(lines))


@keys.command()
@click.argument("key")
@terms_options
@budget_options("budget-")
@reason_option
@with_settings(*STORED)
@json_option
def limit(key: str, reason: str | None, as_json: bool, settings: Settings, **options: Any) -> None:
    """Change the given terms and budgets of KEY (id or name). The others stay."""
    from gateway.tenancy.budgets.budget_commands import change_budgets
    from gateway.tenancy.changes import tenancy_transaction
    from gateway.tenancy.keys.key_commands import change_key

    budgets = budgets_of(options, "budget_")
    wanted = terms_of(options)

    async def change(engine: Any) -> dict[str, Any]:
        async with tenancy_transaction(engine) as connection:
            changed = await change_key(connection, key, wanted, order(reason))
            budget_changes = await change_budgets(connection, "key", key, budgets, order(reason)) if budgets else {}
        return changed | {f"budget_{period}": values for period, values in budget_changes.items()}

    changed = with_database(settings, change)
    lines = [
        f"{name}: {_value_text(name, old) or 'none'} -> {_value_text(name, new) or 'none'}"
        for name, (old, new) in changed.items()
    ]
    echo_answer(as_json, {"changed": changed}, "\n".join(lines) or "nothing to change")


@keys.command()
@click.argument("key")
@click.option(
    "--grace-hours",
    type=click.FloatRange(0, 24 * 90),
    default=24.0,
    help="Hours for which the replaced secret stays valid.",
)
@reason_option
@with_settings(*STORED)
@json_option
def rotate(key: str, grace_hours: float, reason: str | None, as_json: bool, settings: Settings) -> None:
    """Give KEY (id or name) a new secret. The old one stays valid for the grace period."""
    from gateway.tenancy.keys.key_commands import rotate_key

    issued = with_database(settings, lambda engine: rotate_key(engine, key, grace_hours * 3600, order(reason)))
    until = "" if issued.old_until is None else f"the secret before is valid until {utc_text(issued.old_until)}\n"
    older = "" if issued.notice is None else f"{issued.notice}\n"
    said = f"key {issued.key_id} of {issued.name} is rotated; its new secret, shown once:\n{issued.key}"
    echo_answer(as_json, issued, until + older + said)


def _verb_command(verb: KeyVerb) -> click.Command:
    @click.command(verb.name, help=f"{verb.title} KEY (id or name) {verb.manner}.")
    @click.argument("key")
    @reason_option
    @with_settings(*STORED)
    @json_option
    def obey(key: str, reason: str | None, as_json: bool, settings: Settings) -> None:
        key_id = with_database(settings, lambda engine: verb.command(engine, key, order(reason)))
        said = f"{key_id} is {verb.done}; running servers {verb.follows} within seconds"
        echo_answer(as_json, {"key_id": key_id}, said)

    return obey


for _verb in VERBS:
    keys.add_command(_verb_command(_verb))


class ApplyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio keys apply`."""

    dry_run: bool = False
    """Change nothing. The command ends with status 3 if FILE and database differ."""
    prune: bool = False
    """Also remove budgets and revoke keys that are not in FILE. Admin keys stay."""
    grace_hours: GraceHours = 24.0
    """Hours for which a replaced secret stays valid."""


@keys.command()
@click.argument("file", type=FILE)
@options_of(ApplyOptions)
@reason_option
@with_settings(*STORED)
@json_option
def apply(file: Path, options: ApplyOptions, reason: str | None, as_json: bool, settings: Settings) -> None:
    """Make teams, keys and budgets match FILE, all of them or none. A second run changes nothing.

    Terms and budgets that a declared key or team lacks in FILE get their default or are removed. What FILE does not
    name stays, unless --prune is given.
    """
    from gateway.tenancy.declared import apply_declaration, differences, read_declaration
    from gateway.tenancy.keys.key_secrets import keys_of

    declared = read_declaration(file, keys_of(settings).answers.names, os.environ)
    change_order = order(reason or f"declared in {file}")
    if options.dry_run:
        done = with_database(
            settings, lambda engine: differences(engine, declared, change_order.now, prune=options.prune)
        )
    else:
        done = with_database(
            settings,
            lambda engine: apply_declaration(
                engine, declared, change_order, prune=options.prune, grace_seconds=options.grace_hours * 3600
            ),
        )
    if as_json:
        echo_json(done)
    else:
        _echo_applied(done)
    if options.dry_run and done.changes:
        raise SystemExit(DIFFERS)


def _echo_applied(done: "Applied") -> None:
    for change in done.changes:
        changed = ", ".join(f"{name} {_change(name, old, new)}" for name, (old, new) in change.changed.items())
        click.echo(f"{change.action:14} {change.kind} {change.name}{changed and ': '}{changed}")
    if not done.changes:
        click.echo("nothing to change")
    for issued in done.keys:
        click.echo(f"key {issued.key_id} of {issued.name}, shown once:\n{issued.key}")
    for name in done.kept:
        click.echo(f"kept: {name} may administer, so it is not pruned; `aio keys revoke` ends it", err=True)
    if done.notice is not None:
        click.echo(done.notice, err=True)


def _change(name: str, old: Any, new: Any) -> str:
    said = _value_text(name, new)
    return said if old is None else f"{_value_text(name, old)} -> {'none' if new is None else said}"


def order(reason: str | None) -> "Order":
    """A command given on the command line."""
    from gateway.tenancy.changes import Order

    return Order(actor=ACTOR, now=time.time(), reason=reason)


def terms_of(options: dict[str, Any]) -> KeyTerms:
    """Return the terms that the options are. Raises `click.UsageError`."""

    wanted = {name: _value(value) for name, value in options.items() if value is not None and value != ()}
    if days := wanted.get("expires_at"):
        wanted["expires_at"] = time.time() + float(checked(float, days)) * DAY_SECONDS
    if aliases := wanted.get("aliases"):
        wanted["aliases"] = _aliases(aliases)
    return checked(KeyTerms, wanted)


T = TypeVar("T")


def checked(kind: type[T], value: Any) -> T:
    """`value` as a `kind`. Raises `click.BadParameter`, which names the option where this parses one."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        from tiers.dialects.decoding import explained

        raise click.BadParameter(explained(error, kind)) from error


def _value(option: Any) -> Any:
    none = option in ("none", ("none",))
    return None if none else list(option) if isinstance(option, tuple) else option


def _aliases(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, model in pairs:
        if not name or not equals or not model:
            raise click.UsageError(f"--alias {name}{equals}{model}: give NAME=MODEL, such as gpt-4o=auto.")
    return {name: model for name, _, model in pairs}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={target}" for name, target in value.items())
    return "" if value is None else str(value)


def _value_text(name: str, value: Any) -> str:
    """The value of a column as text; a time as its date, a budget in dollars."""
    if isinstance(value, float) and name.endswith(("_at", "_until")):
        return utc_text(value)
    if name == "older_secrets" and value:
        return ", ".join(f"{secret['prefix']} until {utc_text(secret['until'])}" for secret in value)
    is_money = isinstance(value, float) and name.removeprefix("budget_") in ("day", "month", "total")
    return f"${amount_text(value)}" if is_money else _text(value)


def amount_text(usd: float) -> str:
    """US dollars with the decimals that they have, up to six."""
    return f"{usd:.6f}".rstrip("0").rstrip(".")


def _bounds(row: dict[str, Any]) -> str:
    heads = {"requests_per_minute": "rpm", "tokens_per_minute": "tpm", "concurrency": "in flight", "tiers": "tiers"}
    bounds = [f"{_text(row[name])} {head}" for name, head in heads.items() if row[name] is not None]
    bounds += [f"from tier {row['min_tier']} on"] if row["min_tier"] is not None else []
    most = row["max_cost_usd_per_request"]
    bounds += [] if most is None else [f"${amount_text(most)} a request"]
    bounds += [f"quality {row['quality']}"] if row["quality"] is not None else []
    bounds += ["strict"] if row["strict"] else []
    return ", ".join([*bounds, *(name for name in ("models", "aliases") if row[name] is not None)])


def _state(row: dict[str, Any], now: float) -> str:
    if row["revoked_at"] is not None:
        return "revoked"
    if row["paused_at"] is not None:
        return "paused"
    if row["expires_at"] is None:
        return "good"
    return "expired" if row["expires_at"] <= now else f"good for {(row['expires_at'] - now) / DAY_SECONDS:.1f} days"


@click.command("new-key")
@click.argument("name")
@json_option
def new_key(name: str, as_json: bool) -> None:
    """Make an API key for NAME. AIO shows it once, because the server keeps only the hash."""
    from gateway.tenancy.keys.key_secrets import new_key as make_key

    if not name.strip() or set(name) & set(",="):
        raise click.BadParameter(
            f"{name!r} cannot stand in AIO_API_KEYS; give a name without comma and equals sign", param_hint="NAME"
        )
    key, hashed = make_key()
    echo_answer(
        as_json,
        {"name": name, "key": key, "setting": f"{name}={hashed}"},
        f"key of {name}: {key}\nsetting: AIO_API_KEYS={name}={hashed}",
    )
