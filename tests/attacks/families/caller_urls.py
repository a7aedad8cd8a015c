"""URLs that a tier's server would open: callers' own, in every notation and in every field of every API."""

from collections.abc import Iterator
from random import Random

from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import Target, multipart
from tests.attacks.url_forms import PUBLIC, forbidden_urls, forms, places
from tests.hostile.target import Outcome, attack_class

# Audio is never taken by its address, whatever that is.
NEVER = ("transcription url", "transcription file_url")
# Requests between which one with a public address is sent.
CONTROL = 10


@attack_class("URLs for a tier's server", 1200, "addresses")
def caller_urls(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Metadata, loopback and private addresses in all notations and fields: no server is sent one, and public ones go
    on."""
    urls = list(forbidden_urls())
    names = [*places(""), *forms("")]
    for number in range(count):
        is_public = number % CONTROL == CONTROL - 1
        name = names[number % len(names)]
        is_public = is_public and name not in NEVER
        url = draw.choice(PUBLIC) if is_public else urls[number // len(names) * 7 % len(urls)]
        url = url if is_public or draw.random() < 0.3 else draw.choice(urls)
        before = target.upstream.asked
        if name in forms(""):
            path, fields = forms(url)[name]
            form = multipart(fields, b"x" * 32_000, "a.wav")
            if path.endswith("edits"):
                form = form.replace(b'name="file"', b'name="image"')
            answer = target.ask("POST", path, form, content_type="multipart/form-data; boundary=b")
        else:
            path, body = places(url)[name]
            answer = target.ask("POST", path, body, headers={"x-aio-cache": "off"})
        left = target.upstream.asked != before
        if is_public:
            bypass = "" if left else f"a public address did not go on: {answer.status} {answer.text[:200]}"
        elif left:
            bypass = f"it was sent on: {url!r}"
        else:
            is_refusal = answer.status == 400 and ("public" in answer.text or name in NEVER)
            bypass = "" if is_refusal else f"no refusal of it: {answer.status} {answer.text[:200]}"
        # What the server answers is right for chats alone.
        yield outcome_of(answer, f"{name} {url!r} #{number}", bypass)._replace(expected=is_public)
