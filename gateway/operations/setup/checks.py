"""What `aio check` says besides of tiers: of embeddings of servers elsewhere, each of which is asked for one vector; of
private prompts, and of guardrails, which are asked one question; of the file that declares keys, and of texts that
leave the process in traces; and how the judge of open answers stands by the database, for which no server need run.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from gateway.base.derived_settings import without_secrets
from gateway.base.errors import ApiError
from gateway.base.settings import Settings, SettingsError
from gateway.operations.labels.label_sources import judging_cap
from gateway.operations.setup.stored_keys import is_missing_file
from inference_core.errors import CoreError
from quality.judges.pairwise import judging_fingerprint
from quality.judges.self_calibration import JudgeState, judge_state
from quality.store.database import database_opened
from quality.store.drivers import DatabaseUrlError
from tiers.catalog.catalog import Catalog, EmbeddingSpec
from tiers.catalog.consent import ALL
from tiers.catalog.tier_spec import TierSpec
from tiers.errors import CatalogError, TierError
from tiers.server_words import is_loopback_url_host

if TYPE_CHECKING:
    from gateway.tenancy.declared import Declaration


TEXT = "What is the capital of Japan?"


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    """What the model of an embedding entry gave."""

    name: str
    """The entry's name."""
    dimensions: int = 0
    problem: str = ""
    """Why there is no vector and what to do, or ""."""


async def ask_embeddings(catalog: Catalog) -> list[EmbeddingAnswer]:
    """Return what each server elsewhere answers; those that AIO computes itself are not asked."""
    return list(await asyncio.gather(*(_ask_for_vector(spec) for spec in catalog.embeddings if spec.is_remote)))


async def _ask_for_vector(spec: EmbeddingSpec) -> EmbeddingAnswer:
    from tiers.remote.embedding_client import EmbeddingClient, EmbeddingCounter

    client = EmbeddingClient(spec)
    try:
        [vector] = (await client.embed([TEXT], {}, EmbeddingCounter())).vectors
    except TierError as error:
        return EmbeddingAnswer(spec.name, problem=error.for_operators)
    finally:
        await client.close()
    return EmbeddingAnswer(spec.name, dimensions=vector.size)


QUESTION = "What is the capital of Japan?"
NONE_IS_LOCAL = "no tier has `local = true`, so private prompts are refused: give it to one that runs in your network"


class GuardrailAnswer(msgspec.Struct, frozen=True):
    """What a guardrail made of the question."""

    name: str
    verdict: str = ""
    problem: str = ""
    """Why it gave no verdict; "" if it did."""


def private_text(catalog: Catalog) -> str:
    """Return in a sentence which prompts are private, and which tiers may see them."""
    local = ", ".join(f"{tier.number} ({tier.name})" for tier in catalog.tiers if tier.is_local)
    near = ", ".join(f"{tier.number} ({tier.name})" for tier in catalog.tiers if _is_on_this_machine(tier))
    where = f"local tiers alone: {local}" if local else "no tier, because none is local (`local = true`)"
    if near and not local:
        where = (
            f"no tier before one has `local = true`: {near} answer on this machine, so give it to each that sends "
            "prompts nowhere else"
        )
    if catalog.private is None:
        return f"A prompt is private where its key or a header says so, and goes to {where}; [private] adds rules"
    rules = ", ".join([*catalog.private.rules, *catalog.private.patterns])
    by_rule = f", or where a rule finds something private ({rules})" if rules else ""
    return f"A prompt is private where its key or a header says so{by_rule}, and goes to {where}"


def _is_on_this_machine(tier: TierSpec) -> bool:
    servers = () if tier.remote is None else tier.remote.servers
    return bool(servers) and all(is_loopback_url_host(urlsplit(server.base_url).hostname or "") for server in servers)


async def ask_guardrails(catalog: Catalog) -> list[GuardrailAnswer]:
    """Return what each guardrail of the catalogue says of a harmless question."""
    return list(await asyncio.gather(*(_asked(catalog, index) for index in range(len(catalog.guardrails)))))


async def _asked(catalog: Catalog, index: int) -> GuardrailAnswer:
    from gateway.inference.screening.guardrail import Asked, AskedText, guardrail_of

    # Whatever it is to do in service, here a failure is shown.
    spec = msgspec.structs.replace(catalog.guardrails[index], fail="closed")
    asked = Asked(stage=spec.on[0], request_id="check", model="auto", texts=[AskedText("user", QUESTION)])
    try:
        guardrail = guardrail_of(spec, lambda name, stage, outcome: None)
    except CatalogError as error:
        return GuardrailAnswer(spec.name, problem=str(error))
    try:
        return GuardrailAnswer(spec.name, verdict=(await guardrail.verdict(asked, ALL)).action)
    except ApiError as error:
        return GuardrailAnswer(spec.name, problem=str(error))
    finally:
        await guardrail.close()


class SettingSaid(msgspec.Struct, frozen=True):
    """A line about a setting."""

    line: str
    warning: str = ""
    """What the operator has to judge."""
    problem: str = ""
    """Why the setting cannot be served so."""


async def check_stores(settings: Settings) -> list[SettingSaid]:
    """Ask the settings' PostgreSQL and Redis whether they answer. A server starts without them, and then serves as its
    failure policy says."""
    asked = []
    if not settings.database.startswith("sqlite"):
        asked.append(("database", settings.database, "AIO_DATABASE_URL", _ask_database))
    if settings.redis_url:
        asked.append(("Redis", settings.redis_url, "AIO_REDIS_URL", _ask_redis))
    return [await _answers(*store) for store in asked]


async def _answers(what: str, url: str, setting: str, ask: Callable[[str], Awaitable[None]]) -> SettingSaid:
    title = f"{what[:1].upper()}{what[1:]}"
    try:
        await ask(url)
    except (SettingsError, DatabaseUrlError) as error:
        return SettingSaid(f"{title}: PROBLEM", problem=str(error))
    except Exception as error:
        # Its words may have a password.
        why = type(getattr(error, "orig", None) or error).__name__
        wrong = f"the {what} at {without_secrets(url)} does not answer ({why})"
        hint = f"is it running, and are address, name and password right? see {setting}"
        return SettingSaid(f"{title}: PROBLEM", problem=f"{wrong}: {hint}")
    return SettingSaid(f"{title} {without_secrets(url)}: it answers")


async def _ask_database(url: str) -> None:
    async with database_opened(url) as engine, engine.connect() as connection:
        await connection.execute(text("SELECT 1"))


async def _ask_redis(url: str) -> None:
    from gateway.base.stores.redis_store import redis_client

    client = redis_client(url)
    try:
        await client.ping()
    finally:
        await client.aclose()


async def check_declared_keys(settings: Settings, *, may_show: bool) -> SettingSaid | None:
    """Read the file of keys, and count what applying it would change, which needs the database; None without a file.

    Unless `may_show`, as at a start, a key whose secret would have to be made and shown is a problem.
    """
    if not settings.keys_file:
        return None
    from gateway.tenancy.changes import TenancyError
    from gateway.tenancy.declared import read_declaration
    from gateway.tenancy.keys.key_secrets import keys_of

    try:
        declared = read_declaration(Path(settings.keys_file), keys_of(settings).answers.names, os.environ)
        changes = await _changes(settings, declared, may_show)
    except (TenancyError, SettingsError) as error:
        return SettingSaid(f"Keys file {settings.keys_file}: PROBLEM", problem=str(error))
    budgets = [team.budgets for team in declared.teams] + [key.budgets for key in declared.keys]
    budgets += [key.budgets for key in declared.settings_keys]
    number = sum(len(budget.amounts()) for budget in budgets)
    counted = f"teams {len(declared.teams)}, keys {len(declared.keys)}, budgets {number}"
    return SettingSaid(f"Keys file {settings.keys_file}: {counted}; {changes}")


async def _changes(settings: Settings, declared: "Declaration", may_show: bool) -> str:
    """What applying it would change. Raises `DeclarationError` for what cannot be done."""
    from sqlalchemy.exc import SQLAlchemyError

    from gateway.operations.setup.stored_keys import has_stored_keys
    from gateway.tenancy.declared import differences
    from quality.store.database import database_opened

    try:
        async with database_opened(settings.database) as engine:
            stored = engine if await has_stored_keys(settings.database, engine) else None
            plan = await differences(stored, declared, time.time(), may_show=may_show)
    except (SQLAlchemyError, OSError) as error:
        return f"what it changes is not known: the database cannot be read ({type(error).__name__})"
    counts = Counter(change.action for change in plan.changes)
    would = ", ".join(f"{count} {action}" for action, count in counts.items())
    return f"applying it would make changes: {would}" if would else "the database has them so"


def check_traced_texts(settings: Settings) -> SettingSaid | None:
    """Say where prompts and answers go in traces, and whether they are redacted before; None if they do not.

    A collector that cannot be sent to is a problem, as it is at a start.
    """
    if settings.trace_content == "none":
        return None
    from gateway.telemetry.span_export import configured_exporter

    asked = f"AIO_TRACE_CONTENT={settings.trace_content}"
    try:
        exporter = configured_exporter(settings)
        where = _receiver(settings)
    except (SettingsError, CoreError) as error:
        return SettingSaid(f"Traces: PROBLEM with {asked}", problem=str(error))
    if exporter is not None:
        exporter.shutdown()
    if not settings.store_texts:
        return SettingSaid(f"Traces: no prompts or answers in spite of {asked}, because AIO_STORE_TEXTS=false")
    redacted = f"redacted by {settings.redaction}" if settings.redaction else "as they are"
    warning = f"traces have users' texts, and nothing is taken out of them: set AIO_REDACTION, or unset {asked}"
    line = f"Traces: prompts and answers leave this process for {where} ({asked}), {redacted}"
    return SettingSaid(line, warning="" if settings.redaction else warning)


def _receiver(settings: Settings) -> str:
    """The exporter's address without what may be a secret. Raises `SettingsError` for one that is refused."""
    if settings.trace_exporter == "console":
        return "standard output"
    from gateway.telemetry.traces import collector_url, look_up_collector

    look_up_collector(settings)
    url = collector_url(settings)
    return f"{url.scheme}://{url.netloc.decode()}{url.path}"


async def stored_judge(settings: Settings, catalog: Catalog) -> JudgeState | None:
    """Return it; None if the database cannot be read or was never set up."""
    if is_missing_file(settings.database):
        return None
    judging = judging_fingerprint(catalog.tier_fingerprints[-1])
    try:
        async with database_opened(settings.database) as engine:
            return await judge_state(engine, catalog.fingerprint, judging, judging_cap(settings, catalog))
    except (SQLAlchemyError, OSError):
        return None
