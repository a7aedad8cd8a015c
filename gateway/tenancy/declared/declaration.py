"""The file that declares teams, keys and budgets: read whole, and refused with the file, table and field at fault."""

import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.base.requests.caller import Period
from gateway.base.settings import SettingsError
from gateway.tenancy.budgets.periods import BudgetUsd
from gateway.tenancy.changes.errors import TenancyError
from gateway.tenancy.keys.key_secrets import MadeKey, given_secret
from gateway.tenancy.keys.key_terms import KeyTerms, Name
from inference_core.io.text_file import read_text_file

_AT = re.compile(r"(?P<what>.*) - at `\$\.(?P<table>\w+)(?:\[(?P<index>\d+)\])?\.?(?P<field>.*)`", re.DOTALL)


class DeclarationError(TenancyError):
    """A file that cannot be made so; `param` is the field."""

    def __init__(self, source: str, table: str, name: str, field: str, message: str) -> None:
        place = ", ".join(filter(None, (source, f"[[{table}]] {name}".rstrip() if table else "", field)))
        super().__init__(f"{place}: {message}", field or None)


class DeclaredBudgets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars per day or month (UTC) and in total; an omitted one does not exist."""

    day: BudgetUsd | None = None
    month: BudgetUsd | None = None
    total: BudgetUsd | None = None

    def amounts(self) -> dict[Period, float]:
        """Return the budgets that exist, US dollars by period."""
        wanted: dict[Period, float | None] = {"day": self.day, "month": self.month, "total": self.total}
        return {period: usd for period, usd in wanted.items() if usd is not None}


class DeclaredTeam(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A team and what it may spend."""

    name: Name
    budgets: DeclaredBudgets = DeclaredBudgets()


class DeclaredKey(KeyTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key, its terms and budgets; omitted terms are those of a new key.

    Its secret is in the environment variable `secret_env`, or only its SHA-256 is known (`secret_hash`, as
    `aio new-key` prints it); without either, it is made with the key, and shown once.
    """

    name: Name
    team: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    secret_env: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    secret_hash: Annotated[str, Meta(pattern=r"^sha256:[0-9a-fA-F]{64}\Z")] | None = None
    budgets: DeclaredBudgets = DeclaredBudgets()

    @property
    def secret_field(self) -> str:
        """The field that gives its secret, if one does."""
        return "secret_hash" if self.secret_env is None else "secret_env"

    @property
    def terms(self) -> KeyTerms:
        """Its terms alone."""
        return KeyTerms(**{name: getattr(self, name) for name in KeyTerms.__struct_fields__})


class DeclaredSettingsKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The budgets of a key of AIO_API_KEYS, by its name."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    budgets: DeclaredBudgets = DeclaredBudgets()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    teams: list[DeclaredTeam] = []
    keys: list[DeclaredKey] = []
    settings_keys: list[DeclaredSettingsKey] = []


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a file declares. `source`: the file, in messages; `secrets`: the given ones, by the key's name."""

    source: str
    teams: list[DeclaredTeam]
    keys: list[DeclaredKey]
    settings_keys: list[DeclaredSettingsKey]
    secrets: dict[str, MadeKey]

    def error(self, table: str, name: str, field: str, message: str) -> DeclarationError:
        """Return the error of a field of this file."""
        return DeclarationError(self.source, table, name, field, message)


def read_declaration(path: Path, settings_keys: frozenset[str], environ: Mapping[str, str]) -> Declaration:
    """Return what the file declares; `settings_keys` are the names of AIO_API_KEYS. Raises `DeclarationError`."""
    source = str(path)
    try:
        raw = tomllib.loads(read_text_file(path))
    except OSError as error:
        raise DeclarationError(source, "", "", "", f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DeclarationError(source, "", "", "", f"is no TOML: {error}") from error
    for key in _tables(raw, "keys"):
        if isinstance(when := key.get("expires_at"), date):
            key["expires_at"] = _epoch(when, source, str(key.get("name", "")))
    try:
        file = msgspec.convert(raw, _File)
    except msgspec.ValidationError as error:
        raise _located(error, raw, source) from error
    for table, names in (
        ("teams", [team.name for team in file.teams]),
        ("keys", [key.name for key in file.keys]),
        ("settings_keys", [key.name for key in file.settings_keys]),
    ):
        if twice := _twice(names):
            raise DeclarationError(source, table, twice, "name", "occurs twice")
    for unknown in (key.name for key in file.settings_keys if key.name not in settings_keys):
        raise DeclarationError(source, "settings_keys", unknown, "name", "is not a name in AIO_API_KEYS")
    secrets = {key.name: made for key in file.keys if (made := _secret(key, source, environ)) is not None}
    owners: dict[bytes, str] = {}
    for name, made in secrets.items():
        if (other := owners.setdefault(made.digest, name)) != name:
            field = next(key.secret_field for key in file.keys if key.name == name)
            raise DeclarationError(source, "keys", name, field, f"is the secret of {other} too")
    return Declaration(
        source=source, teams=file.teams, keys=file.keys, settings_keys=file.settings_keys, secrets=secrets
    )


def _secret(key: DeclaredKey, source: str, environ: Mapping[str, str]) -> MadeKey | None:
    if key.secret_env is not None and key.secret_hash is not None:
        raise DeclarationError(source, "keys", key.name, "secret_hash", "stands next to secret_env; give one of them")
    secret = key.secret_hash if key.secret_env is None else environ.get(key.secret_env, "").strip()
    if secret == "":
        raise DeclarationError(source, "keys", key.name, "secret_env", f"the variable {key.secret_env} is not set")
    if secret is None:
        return None
    try:
        return given_secret(key.name, secret, key.secret_env or "secret_hash")
    except SettingsError as error:
        raise DeclarationError(source, "keys", key.name, key.secret_field, str(error)) from error


def _epoch(when: date, source: str, name: str) -> float:
    """Return a TOML date, which is midnight in UTC, or time with its offset in epoch seconds."""
    if not isinstance(when, datetime):
        return datetime(when.year, when.month, when.day, tzinfo=UTC).timestamp()
    if when.tzinfo is None:
        raise DeclarationError(source, "keys", name, "expires_at", f"{when} lacks an offset; append Z for UTC")
    return when.timestamp()


def _tables(raw: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = raw.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _located(error: msgspec.ValidationError, raw: Mapping[str, Any], source: str) -> DeclarationError:
    found = _AT.fullmatch(str(error))
    if found is None:
        return DeclarationError(source, "", "", "", str(error))
    table, index = found["table"], found["index"]
    entry = None if index is None else raw[table][int(index)]
    name = entry.get("name") if isinstance(entry, dict) else None
    number = "" if index is None else f"number {int(index) + 1}"
    return DeclarationError(source, table, str(name) if name else number, found["field"], found["what"])


def _twice(names: list[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]
