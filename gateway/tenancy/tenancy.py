"""Tenancy of a running gateway: its callers and what they may use, assembled and kept up to date."""

import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.base.stores.data_folder import KEYS_REQUIRED
from gateway.base.stores.database import DatabaseTime
from gateway.base.stores.redis_store import RedisStore
from gateway.base.stores.retries import background, retry_until_success
from gateway.edge.proxies import is_reachable_from_elsewhere, listens_here_alone
from gateway.tenancy.admission import AdmissionControl
from gateway.tenancy.budgets.budget_leases import BudgetLeases
from gateway.tenancy.budgets.lease_book import LeaseBook
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.directory import Directory
from gateway.tenancy.keys.key_commands import GRACE_SECONDS, create_first_admin_key
from gateway.tenancy.keys.key_secrets import SettingsKeys
from gateway.tenancy.windows import LocalWindows, RedisWindows, Windows
from tiers.catalog.catalog import CatalogInUse

log = logging.getLogger(__name__)

ShowKey = Callable[[str], None]
# Creator of the first admin key, in the audit trail.
FIRST_ACTOR = "gateway"
FIRST_KEY = "the first admin key"
DECLARED_KEYS = "the keys of AIO_KEYS_FILE"


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The keys of an installation and their limits."""

    directory: Directory
    """The directory of the keys."""
    admission_control: AdmissionControl
    """The limits of the keys."""
    budget_leases: BudgetLeases
    clock: DatabaseTime
    replica: str
    """The name of this process in leases and records."""


@asynccontextmanager
async def running_tenancy(
    settings: Settings,
    catalog: CatalogInUse,
    keys: SettingsKeys,
    engine: AsyncEngine,
    redis: RedisStore | None,
    show_admin_key: ShowKey | None = None,
) -> AsyncIterator[Tenancy]:
    """Read the keys and follow their changes; at the end, return unspent budget slices.

    `show_admin_key` shows the first admin key, which is made unless the settings or the database have one; None
    leaves that to other processes.
    """
    clock, replica = DatabaseTime(), f"replica_{secrets.token_hex(8)}"
    directory = Directory(
        engine,
        catalog,
        keys,
        clock,
        may_be_open=settings.insecure or not is_reachable_from_elsewhere(settings.host),
        marker=settings.data_path / KEYS_REQUIRED,
        open_at_first=listens_here_alone(settings.host),
    )
    try:
        await directory.load()
    except (SQLAlchemyError, OSError) as error:
        log.warning("keys cannot be read yet (%s); those of the settings hold", type(error).__name__)
    async with AsyncExitStack() as stack:
        budget_leases = BudgetLeases(
            LeaseBook(engine, replica, clock),
            clock,
            open_without_database=settings.budgets_without_database == "open",
        )
        stack.push_async_callback(budget_leases.close)
        if show_admin_key is not None and settings.keys_file:
            await _start_declared_keys(stack, settings, keys, engine, directory, clock)
        if show_admin_key is not None and not keys.admins:
            await _start_administration(stack, engine, directory, clock, show_admin_key, settings.keys_poll_seconds)
        windows = await _start_windows(stack, settings, redis)
        expected = max(spec.expected_answer_tokens for spec in catalog.current.tiers)
        for name, work in (("keys", directory.follow), ("budgets", budget_leases.follow)):
            await stack.enter_async_context(background(partial(work, settings.keys_poll_seconds), name))
        yield Tenancy(directory, AdmissionControl(windows, budget_leases, expected), budget_leases, clock, replica)


async def _start_windows(stack: AsyncExitStack, settings: Settings, redis: RedisStore | None) -> Windows:
    if redis is None:
        return LocalWindows()
    windows = RedisWindows(redis, closed=settings.limits_without_redis == "closed")
    stack.push_async_callback(windows.close)
    await stack.enter_async_context(background(windows.follow, "limits in Redis"))
    return windows


async def _start_declared_keys(
    stack: AsyncExitStack,
    settings: Settings,
    keys: SettingsKeys,
    engine: AsyncEngine,
    directory: Directory,
    clock: DatabaseTime,
) -> None:
    """Make the stored keys what a file declares: before anything is served, or as soon as the database is reachable.
    Raises `DeclarationError`."""
    from gateway.tenancy.declared import apply_declaration, read_declaration

    declared = read_declaration(Path(settings.keys_file), keys.answers.names, os.environ)

    async def provide() -> None:
        order = Order(actor=FIRST_ACTOR, now=clock.now(), reason=f"declared in {declared.source}")
        done = await apply_declaration(engine, declared, order, grace_seconds=GRACE_SECONDS, may_show=False)
        log.info("%s: %d changes of teams, keys and budgets", declared.source, len(done.changes))
        await directory.load()

    try:
        await provide()
    except (SQLAlchemyError, OSError) as error:
        log.warning("%s cannot be applied yet (%s); stored keys hold", declared.source, type(error).__name__)
        await stack.enter_async_context(
            background(
                partial(retry_until_success, provide, DECLARED_KEYS, {}, settings.keys_poll_seconds), DECLARED_KEYS
            )
        )


async def _start_administration(
    stack: AsyncExitStack,
    engine: AsyncEngine,
    directory: Directory,
    clock: DatabaseTime,
    show: ShowKey,
    retry_seconds: float,
) -> None:
    """Make sure that there is an admin key: before anything is served, or as soon as the database is reachable."""

    async def provide() -> None:
        issued = await create_first_admin_key(engine, Order(actor=FIRST_ACTOR, now=clock.now(), reason="first start"))
        if issued is not None:
            show(issued.key)
            await directory.load()

    try:
        await provide()
    except (SQLAlchemyError, OSError) as error:
        log.warning("no admin key can be made yet (%s); administration is off until then", type(error).__name__)
        await stack.enter_async_context(
            background(partial(retry_until_success, provide, FIRST_KEY, {}, retry_seconds), FIRST_KEY)
        )
