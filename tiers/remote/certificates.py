"""What certificates of servers are judged by, and what AIO shows: the authorities of this machine, those of the file or
folder that `SSL_CERT_FILE`, `SSL_CERT_DIR`, `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE` names, or a tier's files."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from tiers.catalog.tier_spec import NO_TLS, TlsSpec
from tiers.errors import CatalogError

_SYSTEM = "the authorities of this machine (others: `tls.ca` of the tier, or SSL_CERT_FILE)"


class Trust(NamedTuple):
    """What certificates of servers are judged by, and the same in words, for errors."""

    context: ssl.SSLContext
    says: str
    is_own: bool
    """Whether it is by files that an operator named."""

    @property
    def of_httpx(self) -> ssl.SSLContext | bool:
        """The same for httpx, which otherwise has authorities of its own."""
        return self.context if self.is_own else True


OF_TIERS = ("tls.ca", "tls.certificate", "tls.key")


def trust_of(tls: TlsSpec = NO_TLS, settings: tuple[str, str, str] = OF_TIERS) -> Trust:
    """Return it for the servers of a tier, or for all others. `settings`: what the files of `tls` are called where they
    are named. Raises `CatalogError`, which names the file and the setting."""
    of_ca, of_certificate, of_key = settings
    named = [(of_ca, tls.ca)] if tls.ca else [(name, os.environ.get(name, "").strip()) for name in _VARIABLES]
    setting, path = next(((setting, path) for setting, path in named if path), ("", ""))
    context = ssl.create_default_context() if not path else _load(setting, path, _trusting)
    if tls.certificate:
        key = None if tls.key is None else str(Path(tls.key).expanduser())
        if key is not None:
            _load(of_key, key, lambda file: Path(file).read_bytes())
        both = of_certificate if key is None else f"{of_certificate} with {of_key}"
        _load(both, tls.certificate, lambda file: context.load_cert_chain(file, key, password=""))
    return Trust(context, f"{path} ({setting})" if path else _SYSTEM, bool(path or tls.certificate))


_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def require_authorities() -> None:
    """Read the authorities that the environment names. Raises `CatalogError`."""
    if any(os.environ.get(name, "").strip() for name in _VARIABLES):
        trust_of()


def _trusting(path: str) -> ssl.SSLContext:
    is_folder = os.path.isdir(path)
    return ssl.create_default_context(capath=path) if is_folder else ssl.create_default_context(cafile=path)


T = TypeVar("T")


def _load(setting: str, path: str, load: Callable[[str], T]) -> T:
    file = str(Path(path).expanduser())
    try:
        os.stat(file)
        return load(file)
    except (OSError, ValueError) as error:
        is_tls = isinstance(error, ssl.SSLError)
        why = "it is no certificate in PEM, or not of that key" if is_tls else getattr(error, "strerror", None) or error
        raise CatalogError(f"{setting}: {path} cannot be used: {why}") from error


def judged(error: BaseException, trust: Trust | None) -> str:
    """Return the words of an error of a connection; of a certificate that is refused, also what it was judged by."""
    cause: BaseException | None = error
    while cause is not None and trust is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {cause.verify_message}; trusted are {trust.says}"
        cause = cause.__cause__ or cause.__context__
    return str(error)
