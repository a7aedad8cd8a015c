"""Places of a page where a reader may stumble: a help for writing, which refuses nothing.

`python -m tests.lint.prose docs/tiers.md …` prints `file:line: kind: the text` for

- sentences of more than 28 words,
- a noun that hangs on "that of", and clauses of the form "what is … is",
- words to learn, those of the glossary before its first heading, that the page uses and links nowhere.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

MOST_WORDS = 28
GLOSSARY = "docs/reference/glossary.md"
# Words that every reader knows, though the glossary says what AIO means by them.
KNOWN = frozenset(
    ("block", "budget", "core", "decision", "engine", "judge", "record", "step", "target", "tier", "unit")
)
_HEADS = re.compile(r"\b(?:that|those) of\b|\b[Ww]hat (?:is|was|are|were)\b[^.,;:|]*\b(?:is|was|are|were)\b")
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?:])[*\")]*\s+(?=[A-Z\"*(])")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, list entries and table cells outside code, each with the number of its first line."""
    first, lines, is_code = 0, [], False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        starts = re.match(r"\s*(?:[-*|]|\d+\.) ?", line) is not None
        if line.lstrip().startswith("```"):
            is_code = not is_code
        if lines and (is_code or starts or not line.strip() or line.startswith("#")):
            yield first, " ".join(lines)
            lines = []
        if is_code or line.startswith(("#", "```", "!", "| ---")):
            continue
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in line.split("|") if cell.strip())
        elif line.strip():
            first = first if lines else number
            lines.append(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line.strip()))


def sentences(paragraph: str) -> list[str]:
    """Cut a paragraph into sentences; a link is its text, a piece of code is one word."""
    return _END.split(_CODE.sub("CODE", _LINK.sub(r"\1", paragraph)))


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    for number, paragraph in paragraphs(text):
        yield from ((number, one) for one in sentences(paragraph) if len(one.split()) > MOST_WORDS)


def nominal_heads(text: str) -> Iterator[tuple[int, str]]:
    for number, paragraph in paragraphs(text):
        yield from ((number, one) for one in sentences(paragraph) if _HEADS.search(one))


def glossary_words(text: str) -> set[str]:
    """Return the words to learn of a glossary, in lower case: those before its first heading of the second level."""
    entries = re.findall(r"^- \*\*([^*]+)\*\*:", text.partition("\n## ")[0], re.MULTILINE)
    return {word.strip().lower() for entry in entries for word in entry.split(",")}


def unlinked_words(text: str, words: set[str]) -> Iterator[tuple[int, str]]:
    """Yield each of `words` that the text uses and that no link of it has as its text."""
    linked = " ".join(_LINK.findall(text)).lower()
    plain = [(number, " ".join(sentences(paragraph))) for number, paragraph in paragraphs(text)]
    for word in sorted(words - KNOWN):
        pattern = re.compile(rf"\b{re.escape(word)}s?\b", re.IGNORECASE)
        first = next((number for number, paragraph in plain if pattern.search(paragraph)), None)
        if first is not None and word not in linked:
            yield first, word


def main(paths: list[str]) -> None:
    words = glossary_words(Path(GLOSSARY).read_text(encoding="utf-8"))
    for path in paths:
        text = Path(path).read_text(encoding="utf-8")
        kinds = {
            "long": long_sentences(text),
            "head": nominal_heads(text),
            "word": unlinked_words(text, words),
        }
        for kind, hits in kinds.items():
            for number, shown in hits:
                sys.stdout.write(f"{path}:{number}: {kind}: {shown}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
