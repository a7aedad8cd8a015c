"""`aio certificates`: what cores and gateways on several machines need to encrypt their connections."""

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--days", type=click.IntRange(min=1), default=3650, show_default=True, help="How long the certificate is valid."
)
def certificates(folder: Path, days: int) -> None:
    """Make the certificates with which cores and gateways on several machines know each other, in FOLDER.

    Called a second time, it renews the certificate with the same authority; running processes take it for new
    connections. Needs the program `openssl`.
    """
    from inference_core.transport.certificates import AUTHORITY_KEY, make_certificates
    from inference_core.transport.tls import AUTHORITY, CERTIFICATE, KEY

    make_certificates(folder, days)
    click.echo(f"Copy {AUTHORITY}, {CERTIFICATE} and {KEY} from {folder} to every machine, and set there\n")
    click.echo("  AIO_CORE_TLS=FOLDER\n")
    click.echo(f"{AUTHORITY_KEY} stays here: it renews them.")
