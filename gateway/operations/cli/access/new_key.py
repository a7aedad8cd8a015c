"""`aio new-key`: a key for a caller, and its hash for the server."""

import click

from gateway.operations.cli.options import echo_answer, json_option


@click.command("new-key")
@click.argument("name")
@json_option
def new_key(name: str, as_json: bool) -> None:
    """Make an API key for NAME; the server keeps only the hash, so the key is shown once."""
    from gateway.tenancy.keys.key_secrets import new_key as make_key

    key, hashed = make_key()
    echo_answer(
        as_json,
        {"name": name, "key": key, "setting": f"{name}={hashed}"},
        f"key of {name}: {key}\nsetting: AIO_API_KEYS={name}={hashed}",
    )
