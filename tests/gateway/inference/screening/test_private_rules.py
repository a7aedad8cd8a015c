"""What the rules find, and what they leave alone: numbers count by their check digits."""

import pytest

from gateway.inference.screening.rules import OVERLAP, WINDOW, PrivateRules
from tiers.catalog.catalog import PrivateSpec, RuleName

FOUND: list[tuple[RuleName, str]] = [
    ("email", "Write to ada.lovelace+x@mail.example.co.uk, please"),
    ("email", "an address:müller@exämple.de"),
    ("phone", "call +49 (30) 1234-5678 now"),
    ("phone", "or 0049 30 12345678"),
    ("phone", "in the US (212) 555-0187"),
    ("card", "card 4111 1111 1111 1111 12/27, cvv 123"),
    ("card", "5555-5555-5555-4444"),
    ("card", "amex 378282246310005"),
    ("card", "2223003122003222"),
    ("iban", "to DE89 3704 0044 0532 0130 00 EUR 500"),
    ("iban", "gb82west12345698765432"),
    ("iban", "MT84 MALT 0110 0001 2345 MTLC AST0 01S"),
    ("api-key", "OPENAI_API_KEY=sk-proj-abcdefghij0123456789"),
    ("api-key", "key AKIAIOSFODNN7EXAMPLE"),
    ("api-key", "token: ghp_0123456789abcdefghijABCDEFGHIJ012345"),
    ("api-key", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"),
    ("private-key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl"),
    ("private-key", "-----BEGIN PRIVATE KEY-----"),
    ("national-id", "CPF 529.982.247-25"),
    ("national-id", "NIR 1 85 05 78 006 084 91"),
    ("national-id", "IdNr 86 095 742 719"),
    ("national-id", "rssmra85t10a562s"),
    ("national-id", "PESEL 44051401359"),
    ("national-id", "DNI 12345678Z"),
    ("national-id", "NIE X1234567L"),
    ("national-id", "AHV 756.9217.0769.85"),
    ("national-id", "SSN 123-45-6789"),
]
NOT_FOUND = [
    "What is the capital of France?",
    "@app.route('/users') and react@18.2.0, git log @{upstream}",
    "4111 1111 1111 1112",
    "1700000000000 ms, 1700000000000000000 ns",
    "order 123456789012, version 1.2.3.4, 192.168.100.200",
    "2024-05-06 12:30:00, 1+1=2, 3.14159265358979323846",
    "GB82 WEST 1234 5698 7654 33",
    "sk-short, AKIA, ghp_1234, hf_hub_download",
    "-----BEGIN PUBLIC KEY-----",
    "529.982.247-26, DNI 12345678A, 000-12-3456, 44051401358, 756.9217.0769.86, 86 095 742 718",
    "550e8400-e29b-41d4-a716-446655440000 0x4111111111111111",
]
ALL = PrivateRules(PrivateSpec())


@pytest.mark.parametrize(("rule", "text"), FOUND)
def test_a_rule_finds_what_it_is_for(rule: RuleName, text: str) -> None:
    assert PrivateRules(PrivateSpec(rules=[rule])).first(text) == rule


@pytest.mark.parametrize("text", NOT_FOUND)
def test_no_rule_takes_other_texts_for_it(text: str) -> None:
    assert ALL.first(text) is None


@pytest.mark.parametrize("at", [0, WINDOW - 10, WINDOW - OVERLAP, 3 * WINDOW, 10 * WINDOW - 40])
@pytest.mark.parametrize("secret", [" DE89 3704 0044 0532 0130 00 ", " ada@example.com ", " 12345678Z "])
def test_a_long_text_is_read_to_its_end(at: int, secret: str) -> None:
    text = "word " * (2 * WINDOW)
    assert ALL.first(text[:at] + secret + text[at + len(secret) : 10 * WINDOW]) is not None


def test_a_catalogue_has_patterns_of_its_own_and_may_leave_rules_out() -> None:
    rules = PrivateRules(PrivateSpec(rules=["card"], patterns={"project": r"(?i)\bproject falcon\b"}))

    assert rules.first("about Project Falcon") == "project"
    assert rules.first("ada@example.com") is None
