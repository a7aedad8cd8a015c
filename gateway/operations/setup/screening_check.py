"""What `aio check` and `aio init` say of private prompts, and of guardrails, which are asked one question."""

import asyncio

import msgspec

from gateway.base.errors import ApiError
from tiers.catalog.catalog import Catalog
from tiers.consent import ALL
from tiers.errors import CatalogError

QUESTION = "What is the capital of Japan?"
NONE_IS_LOCAL = "no tier is local, so private prompts are refused: give a tier that runs in your network `local = true`"


class GuardrailAnswer(msgspec.Struct, frozen=True):
    """What a guardrail made of the question. `problem`: why it gave no verdict; "" if it did."""

    name: str
    verdict: str = ""
    problem: str = ""


def private_text(catalog: Catalog) -> str:
    """Return in a sentence which prompts are private, and which tiers may see them."""
    local = ", ".join(f"{tier.number} ({tier.name})" for tier in catalog.tiers if tier.is_local)
    where = f"local tiers alone: {local}" if local else "no tier, because none is local (`local = true`)"
    if catalog.private is None:
        return f"A prompt is private where its key or a header says so, and goes to {where}; [private] adds rules"
    rules = ", ".join([*catalog.private.rules, *catalog.private.patterns])
    found = f", or where a rule finds something private ({rules})" if rules else ""
    return f"A prompt is private where its key or a header says so{found}, and goes to {where}"


async def ask_guardrails(catalog: Catalog) -> list[GuardrailAnswer]:
    """Return what each guardrail of the catalogue says of a harmless question."""
    return list(await asyncio.gather(*(_asked(catalog, place) for place in range(len(catalog.guardrails)))))


async def _asked(catalog: Catalog, place: int) -> GuardrailAnswer:
    from gateway.inference.screening.guardrail import Asked, AskedText, guardrail_of

    # Whatever it is to do in service, here a failure is shown.
    spec = msgspec.structs.replace(catalog.guardrails[place], fail="closed")
    asked = Asked(stage=spec.on[0], request_id="check", model="auto", texts=[AskedText("user", QUESTION)])
    try:
        guardrail = guardrail_of(spec, lambda name, stage, outcome: None)
    except CatalogError as error:
        return GuardrailAnswer(spec.name, problem=str(error))
    try:
        return GuardrailAnswer(spec.name, verdict=(await guardrail.verdict(asked, ALL)).action)
    except ApiError as error:
        return GuardrailAnswer(spec.name, problem=str(error))
    finally:
        await guardrail.close()
