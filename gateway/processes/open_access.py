"""A gateway that other machines reach starts only if callers need a key, or if the operator says that they do not."""

import asyncio

from gateway.base.settings import Settings, SettingsError
from gateway.edge.host_names import is_reachable_from_elsewhere


def refuse_open_access(settings: Settings) -> None:
    """Raise `SettingsError` where strangers could use the gateway: it listens beyond this machine, and there is no key
    for answers, neither in the settings nor in the database.

    Nothing is changed. A database that cannot be read refuses nothing: until it is read, and if it then has no keys,
    every caller needs one (`Directory.asks_for_keys`). Admin keys do not count, because answers do not need them.
    """
    if settings.insecure or settings.api_keys or not is_reachable_from_elsewhere(settings.host):
        return
    # A supervisor, which has no database, imports none either.
    from gateway.operations.security.stored_keys import stored_keys

    stored = asyncio.run(stored_keys(settings))
    if stored is not None and not stored.for_answers:
        raise SettingsError(
            f"AIO_HOST={settings.host} is reached by other machines, and no API key exists, so anyone could use this "
            "gateway: make a key (`aio keys create NAME`, or `aio new-key` for AIO_API_KEYS), or allow callers without "
            "one by --insecure (AIO_INSECURE=true)"
        )
