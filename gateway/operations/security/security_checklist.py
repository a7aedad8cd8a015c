"""The deployment checklist of docs/security.md, verified on the configuration that `aio serve` would use."""

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from gateway.base.settings import Settings
from gateway.operations.security import data_checks, network_checks
from gateway.operations.security.security_facts import Facts, Finding, Status
from gateway.operations.security.stored_keys import stored_keys
from tiers.catalog.load import load_catalog


class Item(NamedTuple):
    """An item of the checklist; `check` returns what was found."""

    id: str
    check: Callable[[Facts], Finding]


ITEMS = (
    Item("callers-need-keys", network_checks.callers_need_keys),
    Item("host-names", network_checks.host_names),
    Item("web-pages", network_checks.web_pages),
    Item("connections-encrypted", network_checks.connections_encrypted),
    Item("trusted-proxies", network_checks.trusted_proxies),
    Item("sign-in-encrypted", network_checks.sign_in_encrypted),
    Item("reports-encrypted", network_checks.reports_encrypted),
    Item("reports-reachable", network_checks.reports_reachable),
    Item("tiers-encrypted", network_checks.tiers_encrypted),
    Item("stores-encrypted", network_checks.stores_encrypted),
    Item("cores-private", network_checks.cores_private),
    Item("cores-encrypted", network_checks.cores_encrypted),
    Item("admin-keys", data_checks.admin_keys),
    Item("keys-hashed", data_checks.keys_hashed),
    Item("database-password", data_checks.database_password),
    Item("redis-password", data_checks.redis_password),
    Item("data-folder", data_checks.data_folder),
    Item("catalogue-file", data_checks.catalogue_file),
    Item("adapter-folder", data_checks.adapter_folder),
    Item("texts-deleted", data_checks.texts_deleted),
    Item("texts-redacted", data_checks.texts_redacted),
    Item("limits-hold", data_checks.limits_hold),
    Item("log-level", data_checks.log_level),
    Item("user", data_checks.user),
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
