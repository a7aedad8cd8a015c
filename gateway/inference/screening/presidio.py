"""A guardrail of Microsoft Presidio's recognisers of patterns and phone numbers, which need no language model.

In a catalogue: `python = "gateway.inference.screening.presidio:PatternRecognizers"`. It needs the extra `presidio`.
"""

from collections.abc import Sequence
from typing import Any, Literal

from gateway.inference.screening.guardrail import Asked, Verdict

ENTITIES = (
    "CREDIT_CARD",
    "CRYPTO",
    "EMAIL_ADDRESS",
    "IBAN_CODE",
    "IP_ADDRESS",
    "MEDICAL_LICENSE",
    "PHONE_NUMBER",
    "UK_NHS",
    "US_ITIN",
    "US_SSN",
)


class PatternRecognizers:
    """Replaces what the recognisers of a `language` find by its entity, such as `<EMAIL_ADDRESS>`, or blocks the text.

    `entities`: Presidio's names of what to look for. `score`: the least that counts, 0 to 1. Its recogniser of names
    and places is left out, because it needs a model. Raises `ValueError` for an entity that no recogniser is for.
    """

    def __init__(
        self,
        entities: Sequence[str] = ENTITIES,
        language: str = "en",
        score: float = 0.4,
        action: Literal["replace", "block"] = "replace",
    ) -> None:
        import tldextract.tldextract
        from presidio_analyzer import RecognizerRegistry

        # The addresses' recogniser would download the list of domains; the package has a copy.
        tldextract.tldextract.TLD_EXTRACTOR.suffix_list_urls = ()
        registry = RecognizerRegistry(supported_languages=[language])
        registry.load_predefined_recognizers(languages=[language])
        wanted = set(entities)
        self._score, self._blocks = score, action == "block"
        self._recognizers = [
            (one, sorted(wanted.intersection(one.supported_entities)))
            for one in registry.recognizers
            if one.name != "SpacyRecognizer" and wanted.intersection(one.supported_entities)
        ]
        if unknown := sorted(wanted.difference(*(entities for _, entities in self._recognizers))):
            raise ValueError(f"Presidio has no recogniser in {language!r} for {', '.join(unknown)}")

    def check(self, asked: Asked) -> Verdict:
        """Judge every text; takes a few milliseconds for a thousand characters."""
        found = [self._found(one.text) for one in asked.texts]
        names = sorted({entity for spans in found for _, _, entity in spans})
        if not names:
            return Verdict()
        if self._blocks:
            return Verdict(action="block", reason=f"it contains {', '.join(names)}")
        texts = [_replaced(one.text, spans) for one, spans in zip(asked.texts, found, strict=True)]
        return Verdict(action="replace", texts=texts)

    def _found(self, text: str) -> list[tuple[int, int, str]]:
        """The spans of what is found with their entities, in order; of those that overlap the surest and longest."""
        results: list[Any] = [
            one
            for recognizer, entities in self._recognizers
            for one in recognizer.analyze(text, entities, None)
            if one.score >= self._score
        ]
        spans: list[tuple[int, int, str]] = []
        for one in sorted(results, key=lambda one: (-one.score, one.start - one.end)):
            if all(one.end <= start or end <= one.start for start, end, _ in spans):
                spans.append((one.start, one.end, one.entity_type))
        return sorted(spans)


def _replaced(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    pieces, at = [], 0
    for start, end, entity in spans:
        pieces += [text[at:start], f"<{entity}>"]
        at = end
    return "".join([*pieces, text[at:]])
