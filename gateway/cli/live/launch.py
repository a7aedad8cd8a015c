"""`aio launch`: start Claude Code, Codex, opencode or aider on a running server, set up for it."""

import os
import shlex
import shutil
from collections.abc import Callable

import click
import msgspec

from gateway.cli.live.session_check import CHECK_VARIABLE, COMMAND, KEY_VARIABLE, URL_VARIABLE

# Clients refuse to start without a key, also where the gateway asks for none.
NO_KEY = "unused"
MODEL = "auto"
SMALL_MODEL = "tier-1"


class ClientSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How a client is started against the gateway."""

    program: str
    """The client's command."""
    environment: dict[str, str]
    """Variables that are set."""
    unset: tuple[str, ...] = ()
    """Variables that are unset, because they would send it elsewhere."""
    arguments: tuple[str, ...] = ()
    """Arguments before the user's own."""

    def lines(self, key: str | None) -> list[str]:
        """Return what is set, a line each, without the `key`."""
        shown = [f"{name}={'(the key)' if key and value == key else value}" for name, value in self.environment.items()]
        without = [f"without {name}" for name in self.unset]
        return [*shown, *without, *([" ".join((self.program, *self.arguments))] if self.arguments else [])]


def _claude(url: str, key: str) -> ClientSetup:
    return ClientSetup(
        program="claude",
        environment={
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": key,
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": SMALL_MODEL,
        },
        unset=("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
    )


def _codex(url: str, key: str) -> ClientSetup:
    settings = {
        "model": MODEL,
        "model_provider": "aio",
        # No tool is run here.
        "web_search": "disabled",
        "model_providers.aio.name": "AIO",
        "model_providers.aio.base_url": f"{url}/v1",
        "model_providers.aio.wire_api": "responses",
        "model_providers.aio.env_key": KEY_VARIABLE,
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={_text(value)}")]
    return ClientSetup(program="codex", environment={KEY_VARIABLE: key}, arguments=tuple(options))


def _opencode(url: str, key: str) -> ClientSetup:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "AIO",
        "options": {"baseURL": f"{url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {MODEL: {"name": MODEL}, SMALL_MODEL: {"name": SMALL_MODEL}},
    }
    settings = {"model": f"aio/{MODEL}", "small_model": f"aio/{SMALL_MODEL}", "provider": {"aio": provider}}
    return ClientSetup(program="opencode", environment={KEY_VARIABLE: key, "OPENCODE_CONFIG_CONTENT": _text(settings)})


def _aider(url: str, key: str) -> ClientSetup:
    return ClientSetup(
        program="aider",
        environment={"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": key},
        arguments=("--model", f"openai/{MODEL}", "--weak-model", f"openai/{SMALL_MODEL}", "--no-show-model-warnings"),
    )


SETUPS: dict[str, Callable[[str, str], ClientSetup]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "aider": _aider,
}


def client_setup(client: str, url: str, key: str | None, check: str | None = None) -> ClientSetup:
    """Return how `client`, one of `SETUPS`, is started against the gateway at `url`, which may end in /v1. `check`: a
    shell command that says at the end of each turn whether the work is good. Raises `ValueError` where the client has
    no hook for it."""
    base = url.rstrip("/").removesuffix("/v1")
    setup = SETUPS[client](base, key or NO_KEY)
    if check is None:
        return setup
    if client not in CHECKED:
        raise ValueError(f"{client} has no hook for a check; {', '.join(CHECKED)} have one")
    variables = {CHECK_VARIABLE: check, URL_VARIABLE: base} | ({} if key is None else {KEY_VARIABLE: key})
    if client == "aider":
        # It runs the command after each edit and sends what failed as the next turn, where the gateway reads it.
        variables = {}
    return msgspec.structs.replace(
        setup, environment=setup.environment | variables, arguments=(*setup.arguments, *CHECKED[client](check))
    )


def _claude_hook(_check: str) -> tuple[str, ...]:
    """Settings of this one process, which Claude Code adds to the user's own: https://code.claude.com/docs/en/hooks."""
    hook = {"type": "command", "command": COMMAND, "timeout": HOOK_SECONDS, "async": True}
    return "--settings", _text({"hooks": {"Stop": [{"hooks": [hook]}]}})


CHECKED: dict[str, Callable[[str], tuple[str, ...]]] = {
    "claude": _claude_hook,
    # Its hooks ask for trust first, and this setting does not.
    "codex": lambda _check: ("-c", f"notify={_text(shlex.split(COMMAND))}"),
    "aider": lambda check: ("--auto-test", "--test-cmd", check),
}
HOOK_SECONDS = 900


def _text(value: object) -> str:
    """`value` as JSON, whose texts are TOML's as well."""
    return msgspec.json.encode(value).decode()


SECONDS = 10.0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("client", type=click.Choice(list(SETUPS)))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", envvar="AIO_URL", default="http://127.0.0.1:8080", help="Where the gateway listens.  [AIO_URL]")
@click.option("--key", envvar=KEY_VARIABLE, help=f"A key of the gateway, if it asks for one.  [{KEY_VARIABLE}]")
@click.option(
    "--check",
    metavar="COMMAND",
    help="Shell command, such as your tests, that the client runs at the end of each turn (aider: after "
    "each edit). Its result tells AIO how the work ended. opencode has no hook for this.",
)
def launch(client: str, arguments: tuple[str, ...], url: str, key: str | None, check: str | None) -> None:
    """Start the installed CLIENT with ARGS against the gateway. AIO sets variables and arguments for this one process,
    and changes none of the client's own files. It prints what it set on standard error."""
    try:
        setup = client_setup(client, url, key, check)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    program = shutil.which(setup.program)
    if program is None:
        raise click.ClickException(f"{setup.program} is not installed: there is no such command in PATH.")
    _check_gateway(url, key)
    for line in setup.lines(key):
        click.echo(f"aio: {line}", err=True)
    variables = {name: value for name, value in os.environ.items() if name not in setup.unset} | setup.environment
    # The client takes this process's place, with its terminal, its signals and its exit status.
    os.execve(program, [setup.program, *setup.arguments, *arguments], variables)  # noqa: S606 - a program, no shell


def _check_gateway(url: str, key: str | None) -> None:
    """Raises `click.ClickException` where no gateway answers, or where it refuses the key."""
    import httpx

    from tiers.remote.http_transport import ask

    address = f"{url.rstrip('/').removesuffix('/v1')}/v1/models"
    try:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        answer = ask("GET", address, timeout=SECONDS, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(
            f"no answer from {url} ({error}). Is `aio serve` running there? Name another address with --url."
        ) from error
    if answer.status_code == 401:
        raise click.ClickException(f"{url} refuses the key. Give a key of the gateway with --key or in {KEY_VARIABLE}")
    if not answer.is_success or "application/json" not in answer.headers.get("content-type", ""):
        raise click.ClickException(f"{url} answered {answer.status_code} and is not an AIO server")
