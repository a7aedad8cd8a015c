"""Which chosen keys have enough entropy: those of usual generators, and none that a person makes up."""

import base64
import hashlib
import math
import random
import string
import uuid
from collections.abc import Callable

import pytest

from gateway.base.settings import SettingsError
from gateway.tenancy.keys.key_secrets import NEEDED_BITS, ApiKeys, entropy_bits, given_secret, make_key, new_key

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


UUID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
SYMBOLS = "".join(chr(0x4E00 + 7 * number) for number in range(33))


@pytest.mark.parametrize(
    ("key", "characters", "alphabet"),
    [
        # Of one kind, of two, and of both cases of letters, where digits may be missing by chance.
        ("k", 1, 1), ("kz", 2, 26), ("KZ", 2, 26), ("kQ", 2, 62), ("k7", 2, 36), ("94", 2, 10), ("9f", 2, 16),
        ("9F", 2, 16), ("9fF", 3, 62),
        # Fewer than four other characters are those alone; of four or more, any of 32.
        ("k!", 2, 27), ("k!?", 3, 28), ("k!?#", 4, 29), ("k!?#%", 5, 32 + 26 + 10),
        (f"k{SYMBOLS}", 34, 33 + 26 + 10),
        # Eight of 26 letters are seven different ones on average; of fewer than half as many, these are the alphabet.
        ("kzpmkpzm", 8, 26), ("kzpkpzkz", 8, 3),
        # Up to four that continue something do so by chance.
        ("abcdefz", 7, 26), ("abcdefg", 6, 26), ("gfedcba", 6, 26), ("acegikm", 7, 26), ("qwertyu", 6, 26),
        ("qwewasdpzxcmrtypfghm", 19, 26), ("k1l2m3n4o5", 8, 36), ("bkczrstuvwap", 12, 26),
        ("kzpmkzpmkzpm", 10, 4), ("kzpmkzpwkzptkzpvkzpykzpx", 23, 26),
        # Three separate words that are half of it; two, or less than half; letters in pairs as English has them.
        ("kz-pm", 5, 27), ("kz-pm-tw-9517", 13, 37),
        ("tiprzbkvect", 11, 26), ("isitrounte", 10, 26), ("unpracayzorwffzkargsh", 21, 26),
        ("sebtalktito", 11, 4), ("ctixzxtvgeuunwrehadis", 21, 4), ("kz-pm-tw", 6, 4),
        # Labels count for nothing.
        ("prod_api_key-kz", 2, 26), ("sk-aio-9f", 2, 16),
    ],
)  # fmt: skip
def test_each_character_that_continues_nothing_counts_with_the_alphabet(
    key: str, characters: int, alphabet: int
) -> None:
    assert entropy_bits(key) == pytest.approx(characters * math.log2(alphabet))
    assert entropy_bits(f"{UUID}{key}{UUID}") == pytest.approx(244 + characters * math.log2(alphabet))


def test_between_words_other_characters_count_with_their_own_alphabet() -> None:
    assert entropy_bits("kz-pm-tw-951") == pytest.approx(6 * 2 + 6 * math.log2(1 + 10))
    assert (entropy_bits(""), entropy_bits(UUID), entropy_bits(f"sk-{UUID}{UUID}")) == (0, 122, 244)


def test_exactly_128_bits_are_enough() -> None:
    key = "9f3c61d8e70b2a54c18d6e3f907b52ac"
    assert entropy_bits(key) == 128
    keys = ApiKeys.parse(f"ann={key}, eve=sha256:{'0' * 64}", private="eve")
    assert keys.owner(f"Bearer {key}") == "ann"
    assert keys.names == {"ann", "eve"}
    assert [keys.caller(name, frozenset()).consent.reuse for name in ("ann", "eve")] == [True, False]


@pytest.mark.parametrize(
    ("entry", "private", "said"),
    [
        ("justakey", "", "every entry is NAME=KEY or NAME=sha256:HEX"),
        ("=key", "", "every entry is NAME=KEY or NAME=sha256:HEX"),
        (f"ann=sha256:{'0' * 64},ann=sha256:{'1' * 64}", "", "the name 'ann' occurs twice"),
        (f"ann=sha256:{'0' * 62}", "", "the entry 'ann' is not sha256: and 64 hexadecimal digits"),
        (f"ann=sha256:{'x' * 64}", "", "the entry 'ann' is not sha256: and 64 hexadecimal digits"),
        (f"ann=sha256:{'0' * 64}", "ann, eve", "AIO_PRIVATE_KEYS: eve is not a name in AIO_API_KEYS"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_with_the_reason(entry: str, private: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        ApiKeys.parse(entry, private=private)


def test_owners_recognise_a_made_key_by_its_beginning_and_a_chosen_one_by_its_hash() -> None:
    made = make_key()
    assert len(made.key) == len("sk-aio-") + 43
    assert made.prefix == made.key[: len("sk-aio-") + 8]
    secret = "9f3c61d8e70b2a54c18d6e3f907b52ac"
    digest = hashlib.sha256(secret.encode())
    chosen = given_secret("ann", secret, "ADA_SECRET")
    assert (chosen.key, chosen.digest, chosen.prefix) == ("", digest.digest(), f"sha256:{digest.hexdigest()[:8]}")
    assert given_secret("ann", f"sha256:{digest.hexdigest()}", "ADA_SECRET") == chosen
