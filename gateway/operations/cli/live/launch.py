"""`aio launch`: start an agent's client against a running gateway, in an environment of its own."""

import os
import shutil

import click

from gateway.operations.cli.live.client_setups import KEY_VARIABLE, SETUPS, client_setup

SECONDS = 10.0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("client", type=click.Choice(list(SETUPS)))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--url",
    envvar="AIO_URL",
    default="http://127.0.0.1:8080",
    show_default=True,
    help="Where the gateway listens.  [AIO_URL]",
)
@click.option("--key", envvar=KEY_VARIABLE, help=f"A key of the gateway, where it asks for one.  [{KEY_VARIABLE}]")
def launch(client: str, arguments: tuple[str, ...], url: str, key: str | None) -> None:
    """Start the installed CLIENT with ARGS against the gateway. It gets variables and arguments of this one process;
    its own files are neither read differently nor changed. What was set is said on standard error."""
    setup = client_setup(client, url, key)
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

    address = f"{url.rstrip('/').removesuffix('/v1')}/v1/models"
    try:
        answer = httpx.get(address, headers={} if key is None else {"authorization": f"Bearer {key}"}, timeout=SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(
            f"no answer from {url} ({error}); is `aio serve` running there? --url says where"
        ) from error
    if answer.status_code == 401:
        raise click.ClickException(f"{url} refuses the key; give one of the gateway as --key or in {KEY_VARIABLE}")
    if not answer.is_success or "application/json" not in answer.headers.get("content-type", ""):
        raise click.ClickException(f"{url} answered {answer.status_code} and is not an AIO server")
