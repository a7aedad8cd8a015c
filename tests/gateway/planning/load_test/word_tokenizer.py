"""A tokeniser for benchmarks of hash models: one token per word."""


class WordTokenizer:
    """Ids below 997, so that a vocabulary of 1,000 has them all."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [sum(word.encode()) % 997 for word in text.split()]
