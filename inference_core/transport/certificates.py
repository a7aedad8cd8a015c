"""Makes the certificates of a deployment: its own authority, and a certificate for cores and gateways."""

import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

from inference_core.errors import CoreTlsError
from inference_core.transport.tls import AUTHORITY, CERTIFICATE, CERTIFICATE_NAME, KEY, CertificateFolder

AUTHORITY_KEY = "ca.key"
"""Signs later certificates; no process reads it, and it need not leave the folder where it was made."""
AUTHORITY_DAYS = 3650
_CONFIGURATION = f"""
[req]
distinguished_name = name
prompt = no
[name]
commonName = {CERTIFICATE_NAME}
[authority]
basicConstraints = critical, CA:true, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[certificate]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:{CERTIFICATE_NAME}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def make_certificates(folder: Path, days: int = AUTHORITY_DAYS) -> None:
    """Write a certificate for cores and gateways, valid for `days`, with its key into `folder`; with an authority
    unless the folder has one, so that a second call renews the certificate.

    Needs the program `openssl`. Raises CoreTlsError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / AUTHORITY).exists() and not (folder / AUTHORITY_KEY).exists():
        raise CoreTlsError(
            f"{folder} has {AUTHORITY} without its key {AUTHORITY_KEY}: renew the certificate where its authority is"
        )
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as name:
        made = Path(name)
        (made / "openssl.cnf").write_text(_CONFIGURATION, encoding="ascii")
        if not (folder / AUTHORITY).exists():
            _make_key(made / AUTHORITY_KEY)
            _openssl(
                made, "req", "-x509", "-key", AUTHORITY_KEY, "-out", AUTHORITY, "-days", str(AUTHORITY_DAYS), "-sha256",
                "-subj", "/CN=AIO cores", "-config", "openssl.cnf", "-extensions", "authority",
            )  # fmt: skip
            for part in (AUTHORITY_KEY, AUTHORITY):
                os.replace(made / part, folder / part)
        _make_key(made / KEY)
        _openssl(made, "req", "-new", "-key", KEY, "-out", "request", "-config", "openssl.cnf")
        _openssl(
            made, "x509", "-req", "-in", "request", "-out", CERTIFICATE, "-days", str(days), "-sha256",
            "-CA", f"../{AUTHORITY}", "-CAkey", f"../{AUTHORITY_KEY}", "-set_serial", f"0x{secrets.token_hex(16)}",
            "-extfile", "openssl.cnf", "-extensions", "certificate",
        )  # fmt: skip
        for part in (KEY, CERTIFICATE):
            os.replace(made / part, folder / part)
    CertificateFolder(folder)


def _make_key(path: Path) -> None:
    path.touch(mode=0o600)
    _openssl(path.parent, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path.name)


def _openssl(folder: Path, *arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise CoreTlsError("certificates are made with the program `openssl`, which is not installed here")
    try:
        subprocess.run(  # noqa: S603 - our own arguments
            [program, *arguments], cwd=folder, check=True, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as error:
        raise CoreTlsError(f"openssl {arguments[0]} failed: {error.stderr.strip()}") from error
