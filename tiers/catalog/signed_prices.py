"""A signed list of prices: what an operator or a supplier publishes, to be read while a gateway runs."""

import base64
from binascii import Error as Base64Error
from datetime import datetime
from importlib.util import find_spec
from typing import Annotated

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.catalog.price_list import listed_embedding, listed_model
from tiers.catalog.tier_spec import Price

MAX_BYTES = 4 * 1024 * 1024


class SignedPricesError(ValueError):
    """The list is not taken; the message says why."""


class PricedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of `model`, as a catalogue names it, at `provider`; None: wherever it is served."""

    model: str
    price: Price
    provider: str | None = None


class SignedPrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of models. `published_at` orders lists: an older one never replaces a later one."""

    published_at: datetime
    models: Annotated[list[PricedModel], msgspec.Meta(max_length=100_000)]

    @property
    def name(self) -> str:
        """What prices of this list are marked with."""
        return f"signed list of {self.published_at.isoformat()}"

    def price(self, model: str, provider: str | None) -> Price | None:
        """Return the price of a model, one of its provider first; None without one."""
        named = [one for one in self.models if one.model == model and one.provider in (provider, None)]
        found = next((one for one in named if one.provider is not None), named[0] if named else None)
        return None if found is None else msgspec.structs.replace(found.price, listed=self.name, estimated="")


def public_key(given: str) -> bytes:
    """Return the 32 bytes of a key in base64. Raises `SignedPricesError`, also without the library that checks
    signatures."""
    if find_spec("cryptography") is None:
        raise SignedPricesError("it needs the library cryptography: pip install 'aio-gateway[prices]'")
    try:
        key = base64.b64decode(given, validate=True)
    except Base64Error as error:
        raise SignedPricesError(f"the public key is not base64: {error}") from None
    if len(key) != 32:
        raise SignedPricesError(f"the public key has {len(key)} bytes; one of Ed25519 has 32")
    return key


def signed_prices(body: bytes, signature: bytes, key: bytes) -> SignedPrices:
    """Return the list in `body`, whose `signature`, 64 bytes or their base64, was made with the private key of `key`.
    Raises `SignedPricesError`; nothing of an unsigned list is read."""
    if len(signature) != 64:
        try:
            signature = base64.b64decode(signature.strip(), validate=True)
        except (Base64Error, ValueError):
            signature = b""
    _require_signed(key, signature, body)
    try:
        found = msgspec.json.decode(body, type=SignedPrices)
    except JSON_ERRORS as error:
        raise SignedPricesError(f"the list has another form: {error}") from None
    if found.published_at.tzinfo is None:
        raise SignedPricesError("published_at has no time zone")
    return found


def _require_signed(key: bytes, signature: bytes, body: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, body)
    except (InvalidSignature, ValueError):
        raise SignedPricesError(
            "the signature is not one of this list by the private key of AIO_PRICE_LIST_KEY"
        ) from None


def current_price(model: str, provider: str | None, base_url: str, signed: SignedPrices | None) -> Price | None:
    """Return the price of a tier's model: the signed list's, else the package's at this moment; None if neither has
    one."""
    found = None if signed is None else signed.price(model, provider)
    if found is not None:
        return found
    listed = listed_model(model, provider=provider, base_url=base_url)
    return None if listed is None else listed.price


def current_embedding_price(
    model: str, provider: str | None, base_url: str, signed: SignedPrices | None
) -> Price | None:
    """As `current_price`, of a model that gives embeddings."""
    found = None if signed is None else signed.price(model, provider)
    return found or listed_embedding(model, provider=provider, base_url=base_url)
