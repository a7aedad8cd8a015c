"""The deployment checklist of docs/reference/security.md, verified on the configuration that `aio serve` would use."""

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from gateway.base.settings import Settings
from gateway.operations.security import checks
from gateway.operations.security.checks import Facts, Finding, Status
from gateway.operations.security.stored_keys import stored_keys
from tiers.catalog.load import load_catalog


class Item(NamedTuple):
    """An item of the checklist; `check` returns what was found."""

    id: str
    check: Callable[[Facts], Finding]


ITEMS = (
    Item("callers-need-keys", checks.callers_need_keys),
    Item("host-names", checks.host_names),
    Item("web-pages", checks.web_pages),
    Item("connections-encrypted", checks.connections_encrypted),
    Item("trusted-proxies", checks.trusted_proxies),
    Item("sign-in-encrypted", checks.sign_in_encrypted),
    Item("reports-encrypted", checks.reports_encrypted),
    Item("reports-reachable", checks.reports_reachable),
    Item("tiers-encrypted", checks.tiers_encrypted),
    Item("stores-encrypted", checks.stores_encrypted),
    Item("cores-private", checks.cores_private),
    Item("cores-encrypted", checks.cores_encrypted),
    Item("admin-keys", checks.admin_keys),
    Item("keys-hashed", checks.keys_hashed),
    Item("database-password", checks.database_password),
    Item("redis-password", checks.redis_password),
    Item("data-folder", checks.data_folder),
    Item("catalogue-file", checks.catalogue_file),
    Item("adapter-folder", checks.adapter_folder),
    Item("texts-deleted", checks.texts_deleted),
    Item("texts-redacted", checks.texts_redacted),
    Item("limits-hold", checks.limits_hold),
    Item("log-level", checks.log_level),
    Item("user", checks.user),
)


class Checked(msgspec.Struct, frozen=True):
    """An item's result. `says`: one sentence; `mend`: the setting that mends it, "" where it is ok."""

    id: str
    status: Status
    says: str
    mend: str = ""


async def check_security(settings: Settings) -> list[Checked]:
    """Verify every item. Reads settings, files, catalogue and database; changes and starts nothing.

    Raises `CatalogError` or `DatabaseUrlError` where the configuration starts nothing anyway.
    """
    facts = Facts(
        settings=settings,
        catalog=load_catalog(settings.catalog),
        stored=await stored_keys(settings),
        now=time.time(),
        user=os.geteuid(),
    )
    return list(_checked(facts))


def _checked(facts: Facts) -> Iterator[Checked]:
    for item in ITEMS:
        found = item.check(facts)
        yield Checked(item.id, found.status, found.says, found.mend)
