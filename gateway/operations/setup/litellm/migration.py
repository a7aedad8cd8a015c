"""One config.yaml of LiteLLM's, migrated: the entries of a catalogue, settings, and the account of every field."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.operations.setup.candidate import Candidate
from gateway.operations.setup.litellm.catch_all import ModelsAt
from gateway.operations.setup.litellm.chains import Chains
from gateway.operations.setup.litellm.config_file import Account, mapping, read_config, report_lines
from gateway.operations.setup.litellm.entries import RESERVED, entries_of
from gateway.operations.setup.litellm.models import Read, merged, names_used, read_models
from gateway.operations.setup.litellm.settings import settings_of, without_replicas
from tiers.catalog.tier_spec import MAX_TIERS

_HEAD = "# AIO's settings, carried over from {file}; for a shell: set -a; . ./{name}; set +a\n"


class Migration(msgspec.Struct, kw_only=True):
    """`candidates`: the tiers; `targets` and `embeddings`: what else answers by name. `environment`: settings, whose
    values may name other variables as a shell does; `commands`: for the running gateway; `variables`: those to set to
    keys that stand in the file, each with its path there; `notes`: what to look at."""

    candidates: list[Candidate]
    targets: list[Candidate]
    embeddings: list[dict[str, Any]]
    aliases: dict[str, str]
    environment: dict[str, str]
    commands: list[str]
    variables: dict[str, str]
    notes: list[str]
    account: Account

    @property
    def carried(self) -> dict[str, str]:
        """The fields that became something, by path, with what they became."""
        return self.account.carried

    @property
    def left(self) -> dict[str, str]:
        """The fields that became nothing, by path, with the reason."""
        return self.account.left

    def settings_text(self, file: Path, name: str) -> str:
        """Return the settings as a file for a shell; empty without any."""
        lines = [f"{variable}={_quoted(value)}\n" for variable, value in self.environment.items()]
        return "".join([_HEAD.format(file=file.name, name=name), *lines]) if lines else ""

    def report(self) -> str:
        """Return what became of every field, one line for each kind of field and what became of it."""
        parts = [
            f"{head}:\n" + "\n".join(f"  {line}" for line in report_lines(fields))
            for head, fields in (("carried over", self.carried), ("not carried over", self.left))
            if fields
        ]
        return "\n\n".join(parts)


def migrated(
    path: Path, environ: Mapping[str, str], models_at: ModelsAt = lambda url, key: [], most: int = MAX_TIERS
) -> Migration:
    """Return the migration of a file. `models_at`: which models a server lists; `most`: tiers. Raises `SetupError` if
    the file is none of LiteLLM's."""
    account = Account()
    config = read_config(path, account)
    declared = mapping(config.get("environment_variables"))
    known = {str(name): str(value) for name, value in declared.items() if value is not None} | dict(environ)
    settings = settings_of(config, known, account)
    read = read_models(config, frozenset(names_used(config)), known, account, settings.limits, models_at)
    aliases = _aliases(config, read, settings.aliases, account)
    chains = Chains(config, lambda name: aliases.get(name, name if name in read.groups else None), account)
    for group in read.groups.values():
        if group.mode == "chat":
            group.chain = chains.of(group.name)
        else:
            chains.leave(group.name, f"nothing stands in for a model of the mode {group.mode}")
    groups = merged(read.groups)
    if not any(len(backend.places) > 1 for group in groups for backend in group.backends):
        without_replicas(account)
    found = entries_of(groups, settings.balancing, account, most)
    for alias, name in aliases.items():
        found.aliases[alias] = found.aliases.get(name, name)
    if read.other is not None:
        found.aliases["*"] = found.aliases.get(read.other, read.other)
    account.close(config)
    used = {place.key for group in groups for backend in group.backends for place in backend.places}
    return Migration(
        candidates=found.tiers,
        targets=found.targets,
        embeddings=found.embeddings,
        aliases=found.aliases,
        environment=read.reader.environment | settings.environment,
        commands=settings.commands,
        variables={name: place for name, place in read.reader.variables.items() if name in used},
        notes=found.notes,
        account=account,
    )


def doubled(tiers: Sequence[Candidate]) -> list[Candidate]:
    """Return the tiers, a single one twice: a catalogue has two at least, and `auto` is that model then."""
    if len(tiers) != 1:
        return list(tiers)
    again = msgspec.structs.replace(tiers[0], name=f"{tiers[0].name}-again", source=f"{tiers[0].source}, again")
    return [*tiers, again]


def _aliases(config: Mapping[str, Any], read: Read, given: Mapping[str, str], account: Account) -> dict[str, str]:
    """Return the aliases of the file, each with the name of the model_list that it stands for."""
    found: dict[str, str] = {}
    of_router = mapping(mapping(config.get("router_settings")).get("model_group_alias"))
    for alias, model in given.items():
        section = "router_settings.model_group_alias"
        place = f"{section}.{alias}" if alias in of_router else f"litellm_settings.model_alias_map.{alias}"
        while model in given and model not in read.groups and given[model] != model:
            model = given[model]
        if model in read.groups and alias not in read.groups and not RESERVED.fullmatch(alias):
            found[alias] = model
        else:
            del account.carried[place]
            account.leave(place, f"{model} is no model here, or {alias} has another meaning")
    return found


def _quoted(value: str) -> str:
    """Quote a value for a shell; one that names variables stays open to them."""
    if "${" not in value:
        return shlex.quote(value)
    escaped = re.sub(r'(["\\`]|\$(?!\{[A-Za-z_][A-Za-z0-9_]*\}))', r"\\\1", value)
    return f'"{escaped}"'
