"""Personal and secret data in every form and in every odd place, where only a tier at home may see it."""

from collections.abc import Iterator
from random import Random

from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import Target
from tests.gateway.private_forms import CASES, CHAT, OPEN, TEXTS, in_chat
from tests.hostile.target import Outcome, attack_class

# Requests between which one that is not private is sent.
CONTROL = 10
AROUND = ("", "Please note: ", "Hello,\n\n", "Données : ", "说明：", "```\n", "| a | ", "\u200b", "x" * 40_000 + " ")
TIER_AWAY = "tier-2"


@attack_class("forms of private data", 1500, "private")
def private_forms(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Personal data in its forms and in odd places, for a tier elsewhere that is named: that gets not one byte."""
    names = list(CASES)
    for number in range(count):
        is_open = number % CONTROL == CONTROL - 1
        name = names[number % len(names)]
        path, body = draw.choice(OPEN) if is_open else CASES[name]
        if name in TEXTS and not is_open and number >= len(names):
            path, body = in_chat(f"{draw.choice(AROUND)}{TEXTS[name]}{draw.choice(('', ' please', chr(10)))}")
        asked = {
            "model": TIER_AWAY if "messages" in body or "input" in body or path == "/v1/completions" else "auto"
        } | body
        if path.startswith(("/v1/audio", "/v1/moderations", "/v1/rerank", "/v1/images")):
            asked["model"] = "others"
        if path == CHAT and draw.random() < 0.3:
            asked["stream"] = True
        before = target.upstream.asked
        # A session of its own: what follows private data in a session stays, too.
        answer = target.ask("POST", path, asked, headers={"x-aio-conversation": f"c{number}", "x-aio-cache": "off"})
        left = target.upstream.asked != before
        if is_open:
            bypass = "" if left else f"nothing private, and it did not leave: {answer.status} {answer.text[:200]}"
        else:
            bypass = f"private data left: {target.upstream.last}"[:300] if left else ""
        # What the server elsewhere answers is right for chats alone.
        yield outcome_of(answer, f"{path} {name} #{number}", bypass)._replace(expected=is_open and answer.status == 502)
