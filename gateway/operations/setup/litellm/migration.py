"""One config.yaml of LiteLLM's, migrated: a catalogue's tiers and aliases, settings, and the account of every field."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.operations.setup.candidate import Candidate
from gateway.operations.setup.litellm.config_file import Account, mapping, read_config
from gateway.operations.setup.litellm.models import models_of
from gateway.operations.setup.litellm.settings import settings_of, without_replicas

_HEAD = "# AIO's settings, carried over from {file}; for a shell: set -a; . ./{name}; set +a\n"


class Migration(msgspec.Struct, kw_only=True):
    """`environment`: settings, whose values may name other variables as a shell does; `commands`: for the running
    gateway; `variables`: those to set to keys that stand in the file, each with its path there."""

    candidates: list[Candidate]
    aliases: dict[str, str]
    environment: dict[str, str]
    commands: list[str]
    variables: dict[str, str]
    carried: dict[str, str]
    left: dict[str, str]

    def settings_text(self, file: Path, name: str) -> str:
        """Return the settings as a file for a shell; empty without any."""
        lines = [f"{variable}={_quoted(value)}\n" for variable, value in self.environment.items()]
        return "".join([_HEAD.format(file=file.name, name=name), *lines]) if lines else ""

    def report(self) -> str:
        """Return what became of every field; fields with the same text are in one line."""
        parts = [
            f"{head}:\n" + "\n".join(f"  {', '.join(paths)}: {text}" for text, paths in _grouped(fields).items())
            for head, fields in (("carried over", self.carried), ("not carried over", self.left))
            if fields
        ]
        return "\n\n".join(parts)


def migrated(path: Path, environ: Mapping[str, str]) -> Migration:
    """Return the migration of a file. Raises `SetupError` if it is none of LiteLLM's."""
    config, account = read_config(path), Account()
    declared = mapping(config.get("environment_variables"))
    known = {str(name): str(value) for name, value in declared.items() if value is not None} | dict(environ)
    settings = settings_of(config, known, account)
    models = models_of(config, known, account, settings.remote, settings.balancing)
    if not models.is_replicated:
        without_replicas(account)
    names = {one.name for one in models.candidates} | {*models.aliases}
    aliases = dict(models.aliases)
    for alias, target in settings.aliases.items():
        section = "router_settings.model_group_alias"
        place = section if alias in mapping(mapping(config.get("router_settings")).get("model_group_alias")) else (
            "litellm_settings.model_alias_map"
        )  # fmt: skip
        if target in names and alias not in names and alias != "auto":
            aliases[alias] = models.aliases.get(target, target)
        else:
            del account.carried[f"{place}.{alias}"]
            account.leave(f"{place}.{alias}", f"{target} is no model here, or {alias} has another meaning")
    chains = _chains(config, {name: name for name in (one.name for one in models.candidates)} | aliases, account)
    account.close(config)
    return Migration(
        candidates=[
            msgspec.structs.replace(one, further=one.further | {"fallback": chains[one.name]})
            if chains.get(one.name)
            else one
            for one in models.candidates
        ],
        aliases=aliases,
        environment=settings.environment,
        commands=settings.commands,
        variables=models.variables,
        carried=account.carried,
        left=account.left,
    )


def _chains(config: Mapping[str, Any], tiers: Mapping[str, str], account: Account) -> dict[str, list[str]]:
    """Return the tiers that stand in for a tier, by its name; `tiers`: what names stand for."""
    found: dict[str, list[str]] = {}
    text = "fallback of the tier; a request that names its tier goes on to [[targets]] alone"
    for section in ("litellm_settings", "router_settings"):
        values = mapping(config.get(section))
        if isinstance(usual := values.get("default_fallbacks"), list) and _known(usual, tiers):
            account.carry(f"{section}.default_fallbacks", f"{text}; of tiers without their own")
            found |= {name: _others(name, usual, tiers) for name in {*tiers.values()}}
    for section in ("litellm_settings", "router_settings"):
        lists = mapping(config.get(section)).get("fallbacks")
        for place, one in enumerate(lists if isinstance(lists, list) else []):
            for name, names in mapping(one).items():
                path = f"{section}.fallbacks[{place}].{name}"
                if isinstance(names, list) and _known([name, *names], tiers):
                    account.carry(path, text)
                    found[tiers[name]] = _others(tiers[name], names, tiers)
                else:
                    account.leave(path, "it names what is no tier here")
    return found


def _known(names: Sequence[object], tiers: Mapping[str, str]) -> bool:
    return bool(names) and all(isinstance(name, str) and name in tiers for name in names)


def _others(name: str, names: Sequence[str], tiers: Mapping[str, str]) -> list[str]:
    return [tier for tier in dict.fromkeys(tiers[one] for one in names) if tier != name]


def _grouped(fields: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, text in fields.items():
        found.setdefault(text, []).append(path)
    return found


def _quoted(value: str) -> str:
    """Quote a value for a shell; one that names variables stays open to them."""
    if "${" not in value:
        return shlex.quote(value)
    escaped = re.sub(r'(["\\`]|\$(?!\{[A-Za-z_][A-Za-z0-9_]*\}))', r"\\\1", value)
    return f'"{escaped}"'
