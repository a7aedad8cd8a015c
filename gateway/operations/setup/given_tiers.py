"""Tiers given by hand: `NAME=URL`, `NAME=URL,MODEL`, `NAME=PATH`, `NAME=provider:model`, or a model that was found."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gateway.operations.setup.candidate import Candidate, tier_name
from gateway.operations.setup.local_servers import ask_server
from gateway.operations.setup.provider_keys import key_variable, provider_candidate, provider_named
from inference_core.errors import ModelFileError

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)


class SetupError(ValueError):
    """What was asked for cannot be set up; the message says what to do."""


async def given_tier(text: str, candidates: Sequence[Candidate], environ: Mapping[str, str]) -> Candidate:
    """Return the candidate that `text` means; `candidates` are the models that were found here. Raises `SetupError`."""
    named = _NAME.fullmatch(text)
    name, what = (named[1], named[2]) if named else ("", text)
    if "://" in what:
        candidate = await _at_url(name, what, environ)
    elif (parts := what.split(":", 1))[1:] and (provider := provider_named(parts[0])) is not None:
        candidate = provider_candidate(provider, parts[1], key_variable(provider, environ))
    elif (match := next((one for one in candidates if one.model == what), None)) is not None:
        candidate = match
    elif _is_path(what):
        candidate = _at_path(what)
    else:
        here = ", ".join(one.model for one in candidates) or "none"
        raise SetupError(
            f"--tier {text}: {what!r} is no URL, no file or folder, no provider:model, and no model found here ({here})"
        )
    return msgspec.structs.replace(candidate, name=name or candidate.name)


async def _at_url(name: str, what: str, environ: Mapping[str, str]) -> Candidate:
    url, _, model = what.partition(",")
    variable = f"{re.sub('[^A-Za-z0-9]', '_', name).upper()}_API_KEY" if name else ""
    key = environ.get(variable, "").strip()
    server = await ask_server(url, key)
    api_key_env = variable if key else None
    if server.label == "AIO":
        raise SetupError(f"--tier {name}={what}: this is AIO itself; give the server behind it")
    if not server.status:
        raise SetupError(
            f"--tier {name}={what}: {server.url} {server.problem}: start the server or correct the address, and run "
            "this again"
        )
    if server.status in (401, 403):
        wanted = variable or "NAME_API_KEY, with --tier NAME=URL,"
        raise SetupError(
            f"--tier {name}={what}: the server {'refuses the' if key else 'wants a'} key; set the environment variable "
            f"{wanted} to it and run this again"
        )
    chosen = next((one for one in server.models if one.model == model), None)
    if chosen is None and not model and len(server.models) == 1:
        chosen = server.models[0]
    if chosen is None and server.models:
        names = ", ".join(one.model for one in server.models)
        raise SetupError(
            f"--tier {name}={what}: name one of its models as URL,MODEL: {names}"
            if not model
            else f"--tier {name}={what}: the server has no model {model!r}; it has {names}"
        )
    if chosen is None:
        # It does not list its models: the tier is written as given.
        host = url.partition("://")[2].rstrip("/").removesuffix("/v1")
        chosen = Candidate(source=f"{host}, which {server.problem}", model=model, url=url.rstrip("/"))
        chosen = msgspec.structs.replace(chosen, name=name or tier_name(model or host))
    return msgspec.structs.replace(chosen, api_key_env=api_key_env)


def chat_notes(candidates: Sequence[Candidate]) -> list[str]:
    """Return a sentence for each model of a file or folder that can take no chats."""
    return [
        f"{one.path} has no chat template: its tier continues prompts of /v1/completions, and `auto` sends it no chats"
        for one in candidates
        if one.path and not _has_template(Path(one.path))
    ]


def _has_template(path: Path) -> bool:
    from inference_core.tokenization.load_tokenizer import load_tokenizer

    try:
        return load_tokenizer(path).chat_template is not None
    except ModelFileError:
        return True  # `aio serve` says what is wrong with it.


def _is_path(what: str) -> bool:
    return what.endswith(".gguf") or what.startswith(("/", "./", "../", "~")) or Path(what).is_dir()


def _at_path(what: str) -> Candidate:
    path = Path(what).expanduser()
    if not path.exists():
        raise SetupError(f"--tier …={what}: there is no such file or folder")
    try:
        # Imported here: a gateway without models of its own need not have the readers of model files.
        from inference_core.loaders.open_checkpoint import open_checkpoint

        config = open_checkpoint(path).config
    except ImportError as error:
        raise SetupError(f"--tier …={what}: to run models, AIO needs: pip install 'aio-gateway[local]'") from error
    except ModelFileError as error:
        raise SetupError(f"--tier …={what}: AIO cannot run this model itself: {error}") from error
    # The memory of a long context is reserved at start; 8192 tokens fit nearly every machine.
    return Candidate(
        source="runs in AIO itself",
        model=path.name,
        path=str(path.absolute()),
        max_context=min(config.max_position, 8192),
        context_note=f"of at most {config.max_position}" if config.max_position > 8192 else "",
    )
