"""The parameters that URLs of hosted PostgreSQL databases have work, or are refused in a line that names them."""

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from inference_core.transport.certificates import make_certificates
from inference_core.transport.tls import AUTHORITY, CERTIFICATE, KEY
from quality.store.database import away_reason, is_away, open_database
from quality.store.drivers import DatabaseUrlError, postgres_arguments
from tests.polling import eventually
from tests.support.database import PostgresServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture
def tls_url(postgres_server: PostgresServer, certificates: Path) -> Iterator[str]:
    url = postgres_server.emptied_database()
    with postgres_server.with_tls(certificates / CERTIFICATE, certificates / KEY):
        yield url


async def shown(url: str, statement: str) -> object:
    engine = open_database(url)
    try:
        async with engine.connect() as connection:
            return await connection.scalar(text(statement))
    finally:
        await engine.dispose()


ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


async def test_a_connection_is_encrypted_as_sslmode_says(tls_url: str, certificates: Path) -> None:
    # The server reads its configuration soon.
    await eventually(lambda: shown(f"{tls_url}?sslmode=prefer", ENCRYPTED))
    root = f"sslrootcert={certificates / AUTHORITY}"
    for mode in ("sslmode=require", "ssl=require", f"sslmode=verify-ca&{root}", f"sslmode=require&{root}"):
        assert await shown(f"{tls_url}?{mode}", ENCRYPTED) is True, mode
    assert await shown(f"{tls_url}?sslmode=disable", ENCRYPTED) is False
    # The certificate is for another name.
    with pytest.raises(ssl.SSLError) as refused:
        await shown(f"{tls_url}?sslmode=verify-full&{root}", ENCRYPTED)
    assert is_away(refused.value)
    assert "certificate" in away_reason(refused.value)


async def test_a_server_without_tls_is_away_for_those_who_require_it(postgres_url: str) -> None:
    with pytest.raises(ConnectionError) as refused:
        await shown(f"{postgres_url}?sslmode=require", ENCRYPTED)
    assert is_away(refused.value)
    assert "SSL" in away_reason(refused.value)


async def test_names_options_and_timeouts_reach_the_server(postgres_url: str) -> None:
    given = "connect_timeout=10&application_name=aio%20one&options=-c%20work_mem%3D5MB&target_session_attrs=any"
    assert await shown(f"{postgres_url}?{given}", "SHOW application_name") == "aio one"
    assert await shown(f"{postgres_url}?{given}", "SHOW work_mem") == "5MB"
    fallback = "fallback_application_name=aio&gssencmode=prefer&channel_binding=prefer&client_encoding=utf8"
    assert await shown(f"{postgres_url}?{fallback}", "SHOW application_name") == "aio"
    assert postgres_arguments({"connect_timeout": "7"}) == ({}, {"timeout": 7.0})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sslmode=sometimes", "sslmode='sometimes' is none of disable, allow, prefer, require, verify-ca, verify-full"),
        ("pgbouncer=true", "the parameter 'pgbouncer' is unknown; allowed are application_name, "),
        ("channel_binding=require", "channel_binding='require' is none of disable, prefer"),
        ("client_encoding=latin1", "client_encoding='latin1' is none of utf8"),
        ("connect_timeout=soon", "connect_timeout='soon' is no whole number of seconds from 1 to 60"),
        ("connect_timeout=0", "connect_timeout='0' is no whole number"),
        ("sslrootcert=/nowhere/root.crt", "the file of sslrootcert, /nowhere/root.crt, cannot be used: No such file"),
        ("sslrootcert=/proc/version", "the file of sslrootcert, /proc/version, cannot be used: "),
        ("sslcert=/proc/version", "the file of sslcert, /proc/version, cannot be used: "),
        ("sslkey=/proc/version", "sslkey is the key of a certificate, so sslcert is needed"),
        ("target_session_attrs=fast", "target_session_attrs='fast' is none of any, primary"),
    ],
)
def test_what_has_no_effect_is_refused_by_name(given: str, said: str) -> None:
    with pytest.raises(DatabaseUrlError, match=r"^AIO_DATABASE_URL: ") as refused:
        open_database(f"postgresql://aio:cormorant@127.0.0.1/aio?sslpassword=heron&{given}")
    assert said in str(refused.value)
    assert "cormorant" not in str(refused.value)
    assert "heron" not in str(refused.value)


@pytest.mark.processes
@pytest.mark.parametrize("given", ["sslmode=perhaps", "pgbouncer=true", "sslmode=verify-full", "sslmode=require"])
def test_a_command_says_in_one_line_what_is_wrong(tmp_path: Path, postgres_url: str, given: str) -> None:
    code = "from gateway.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "migrate", "--data-dir", str(tmp_path)],
        env=os.environ | {"AIO_DATABASE_URL": f"{postgres_url}?sslpassword=heron&{given}", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "AIO_DATABASE_URL" in done.stderr
    assert "heron" not in done.stderr
