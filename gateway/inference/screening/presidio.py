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
            (recognizer, sorted(wanted.intersection(recognizer.supported_entities)))
            for recognizer in registry.recognizers
            if recognizer.name != "SpacyRecognizer" and wanted.intersection(recognizer.supported_entities)
        ]
        if unknown := sorted(wanted.difference(*(entities for _, entities in self._recognizers))):
            raise ValueError(f"Presidio has no recogniser in {language!r} for {', '.join(unknown)}")

    def check(self, asked: Asked) -> Verdict:
        """Judge every text; takes a few milliseconds for a thousand characters."""
        text_spans = [self._found(asked_text.text) for asked_text in asked.texts]
        names = sorted({entity for spans in text_spans for _, _, entity in spans})
        if not names:
            return Verdict()
        if self._blocks:
            return Verdict(action="block", reason=f"it contains {', '.join(names)}")
        texts = [_replaced(asked_text.text, spans) for asked_text, spans in zip(asked.texts, text_spans, strict=True)]
        return Verdict(action="replace", texts=texts)

    def _found(self, text: str) -> list[tuple[int, int, str]]:
        """The spans of what is found with their entities, in order; of those that overlap the surest and longest."""
        matches: list[Any] = [
            match
            for recognizer, entities in self._recognizers
            for match in recognizer.analyze(text, entities, None)
            if match.score >= self._score
        ]
        spans: list[tuple[int, int, str]] = []
        for match in sorted(matches, key=lambda match: (-match.score, match.start - match.end)):
            if all(match.end <= start or end <= match.start for start, end, _ in spans):
                spans.append((match.start, match.end, match.entity_type))
        return sorted(spans)


def _replaced(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    pieces, at = [], 0
    for start, end, entity in spans:
        pieces += [text[at:start], f"<{entity}>"]
        at = end
    return "".join([*pieces, text[at:]])
