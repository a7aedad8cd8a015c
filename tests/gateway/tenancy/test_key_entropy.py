"""Which chosen keys have enough entropy: those of usual generators, and none that a person makes up."""

import base64
import random
import string
import uuid
from collections.abc import Callable

import pytest

from gateway.base.settings import SettingsError
from gateway.tenancy.keys.key_entropy import NEEDED_BITS, entropy_bits
from gateway.tenancy.keys.key_secrets import ApiKeys, new_key

MADE_UP = [
    "",
    "secret",
    "an-admin-key-of-some-length",
    "this-is-my-very-secret-admin-key-for-production",
    "MyCompanyAdminKey2024!SuperSecretProductionKey",
    "correct horse battery staple correct horse battery staple",
    "acme-gateway-admin-2024-08-15-frankfurt-cluster-01",
    "changeme-changeme-changeme-changeme-changeme-changeme",
    "a" * 80,
    "01" * 40,
    "abcd" * 16,
    "aaaabbbbccccddddeeeeffff1111222233334444",
    "aabbccddeeffgghhiijjkkllmmnnooppqqrrssttuuvvwwxxyyzz",
    "1a2b3c4d5e6f7g8h9i0j1k2l3m4n5o6p",
    "0123456789abcdef0123456789abcdef",
    "sk-1234567890abcdef1234567890abcdef",
    "abcdefghijklmnopqrstuvwxyz0123456789ABCDEF",
    "qwertyuiopasdfghjklzxcvbnm1234567890",
    "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef",
    "password123password123password123password123",
    "sk-aio-" + "x" * 43,
]
seeded = random.Random(7)
GENERATORS: dict[str, Callable[[], str]] = {
    "openssl rand -hex 16": lambda: seeded.randbytes(16).hex(),
    "openssl rand -hex 32": lambda: seeded.randbytes(32).hex(),
    "openssl rand -base64 16": lambda: base64.b64encode(seeded.randbytes(16)).decode(),
    "openssl rand -base64 32": lambda: base64.b64encode(seeded.randbytes(32)).decode(),
    "secrets.token_urlsafe(16)": lambda: base64.urlsafe_b64encode(seeded.randbytes(16)).decode().rstrip("="),
    "22 letters and digits": lambda: _of(string.ascii_letters + string.digits, 22),
    "28 small letters": lambda: _of(string.ascii_lowercase, 28),
    "22 printable characters": lambda: _of(string.ascii_letters + string.digits + string.punctuation, 22),
    "two UUIDs": lambda: f"{uuid.UUID(int=seeded.getrandbits(128))}{uuid.UUID(int=seeded.getrandbits(128))}",
}


def _of(alphabet: str, length: int) -> str:
    return "".join(seeded.choice(alphabet) for _ in range(length))


@pytest.mark.parametrize("key", MADE_UP)
def test_a_key_that_a_person_makes_up_is_refused_with_the_command_that_makes_one(key: str) -> None:
    assert entropy_bits(key) < NEEDED_BITS
    with pytest.raises(SettingsError, match=r"AIO_ADMIN_KEYS: the key of 'ann' .*aio new-key ann") as refused:
        ApiKeys.parse(f"ann={key}", "AIO_ADMIN_KEYS")
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize("generator", GENERATORS)
def test_keys_of_usual_generators_are_taken(generator: str) -> None:
    refused = sum(entropy_bits(GENERATORS[generator]()) < NEEDED_BITS for _ in range(500))
    assert refused <= 5


def test_a_uuid_has_less_entropy_than_a_key_needs() -> None:
    for key in (str(uuid.uuid4()), f"sk-{uuid.uuid4()}"):
        assert entropy_bits(key) == 122


def test_every_key_that_aio_makes_for_the_settings_is_taken_as_text_and_as_hash() -> None:
    for _ in range(100):
        key, hashed = new_key()
        assert ApiKeys.parse(f"ann={key}").owner(f"Bearer {key}") == "ann"
        assert ApiKeys.parse(f"ann={hashed}").owner(f"Bearer {key}") == "ann"
