"""Reads lists of prices while the gateway runs, and switches to their prices; an untrusted list changes nothing."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import httpx
import msgspec

from gateway.base.settings import Settings, SettingsError
from inference_core.io.files import atomic_file
from tiers.catalog.price_list import MAX_BYTES, SignedPrices, SignedPricesError, public_key, signed_prices
from tiers.remote.http_exchange import bounded_answer
from tiers.remote.http_transport import transport_to
from tiers.server_words import is_metadata_host

log = logging.getLogger(__name__)

SECONDS = 30.0
MAX_SIGNATURE_BYTES = 1024
Outcome = Literal["taken", "same", "refused", "unreachable"]


class KeptPrices(msgspec.Struct, frozen=True):
    """The last list that was taken, in the data folder: it holds after a restart, and no older one is taken then."""

    body: bytes
    signature: bytes


class PriceRefresh:
    """The signed list of `settings`, or none, where the package's prices hold: those may change with the date.

    `switch` is called with the list after every reading; `count` with each reading's outcome and the list's date in
    epoch seconds (0 without one). Raises `SettingsError` for a URL or a key that cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        switch: Callable[[SignedPrices | None], None],
        count: Callable[[Outcome, float], None],
    ) -> None:
        self.current: SignedPrices | None = None
        self._url, self._switch, self._count = settings.price_list_url, switch, count
        self._seconds, self._kept = settings.price_list_seconds, settings.data_path / "price_list.json"
        self._key = b""
        if self._url:
            self._key = _checked(settings)

    def load(self) -> None:
        """Take the list that was kept. One of another key is left alone."""
        if not self._url:
            return
        try:
            kept = msgspec.json.decode(self._kept.read_bytes(), type=KeptPrices)
            self.current = signed_prices(kept.body, kept.signature, self._key)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, SignedPricesError) as error:
            log.warning("the kept list of prices %s is not used: %s", self._kept, error)

    async def follow(self) -> None:
        """Read the list at once, and every `price_list_seconds`."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._seconds)

    async def refresh(self) -> Outcome:
        """Read the list once; never raises. What is refused is logged and counted, and the prices stay."""
        outcome = await self._read() if self._url else "same"
        self._switch(self.current)
        self._count(outcome, 0.0 if self.current is None else self.current.published_at.timestamp())
        return outcome

    async def _read(self) -> Outcome:
        try:
            body, signature = await self._fetched()
        except (OSError, httpx.HTTPError) as error:
            log.warning("the list of prices %s cannot be read, prices stay: %s", self._shown, type(error).__name__)
            return "unreachable"
        try:
            # Some milliseconds, and as many again for each megabyte.
            found = await asyncio.to_thread(signed_prices, body, signature, self._key)
            if self.current is not None and found.published_at < self.current.published_at:
                raise SignedPricesError(f"it is of {found.published_at}, before {self.current.published_at}")
        except SignedPricesError as error:
            log.error("the list of prices %s is refused, prices stay: %s", self._shown, error)
            return "refused"
        if found == self.current:
            return "same"
        self.current = found
        try:
            with atomic_file(self._kept) as file:
                file.write(msgspec.json.encode(KeptPrices(body, signature)))
        except OSError as error:
            log.warning("the list of prices is not kept for the next start: %s", error)
        log.info("prices are those of the list of %s", found.published_at.isoformat())
        return "taken"

    async def _fetched(self) -> tuple[bytes, bytes]:
        if not self._url.startswith(("http://", "https://")):
            return await asyncio.to_thread(_read_files, Path(self._url))
        url = httpx.URL(self._url)
        async with httpx.AsyncClient(transport=transport_to(url), trust_env=False) as client:
            bodies = []
            for path, most in ((url.path, MAX_BYTES), (f"{url.path}.sig", MAX_SIGNATURE_BYTES)):
                request = client.build_request("GET", url.copy_with(path=path))
                response, body = await bounded_answer(client, request, most, SECONDS)
                response.raise_for_status()
                bodies.append(body)
        return bodies[0], bodies[1]

    @property
    def _shown(self) -> str:
        """The URL without what may be a secret."""
        return self._url.partition("?")[0].rpartition("@")[2]


def _read_files(path: Path) -> tuple[bytes, bytes]:
    if path.stat().st_size > MAX_BYTES:
        raise OSError(f"{path} has more than {MAX_BYTES:,} bytes")
    return path.read_bytes(), path.with_name(f"{path.name}.sig").read_bytes()[:MAX_SIGNATURE_BYTES]


def _checked(settings: Settings) -> bytes:
    given = settings.price_list_url
    if given.startswith(("http://", "https://")):
        try:
            host = httpx.URL(given).host
        except httpx.InvalidURL as error:
            raise SettingsError(f"AIO_PRICE_LIST_URL is no URL: {error}") from None
        if not host or is_metadata_host(host):
            raise SettingsError("AIO_PRICE_LIST_URL must have a host that is not a cloud's metadata address")
    try:
        return public_key(settings.price_list_key)
    except SignedPricesError as error:
        raise SettingsError(f"AIO_PRICE_LIST_KEY: {error}") from None
