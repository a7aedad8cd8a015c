"""The help for writing: where a reader of a page may stumble."""

from tests.lint.prose import glossary_words, long_sentences, nominal_heads, unlinked_words

LONG = " ".join(["The", *["word"] * 28])


def test_a_long_sentence_is_found_with_its_line_and_code_is_no_prose() -> None:
    page = f"# Title\n\nShort one. {LONG}.\n\n```sh\n{LONG}\n```\n\n- an entry\n- {LONG}\n"
    assert [(number, len(text.split())) for number, text in long_sentences(page)] == [(3, 29), (10, 29)]


def test_two_short_sentences_over_two_lines_are_not_one_long_one() -> None:
    half = " ".join(["word"] * 20)
    assert list(long_sentences(f"The {half}.\nThe {half}.\n")) == []


def test_a_noun_that_hangs_on_that_of_is_found() -> None:
    page = "It gets that of `NAME_API_KEY`.\n\nWhat is left out is filled in.\n\nWhat is a tier? A model.\n"
    assert [number for number, _ in nominal_heads(page)] == [1, 3]


def test_words_of_the_glossary_that_no_link_explains_are_named_once() -> None:
    words = glossary_words(
        "- **canary, trial**: a version\n- **probe**: a request\n- **tier**: a model\n\n## More\n\n- **slab**: of it\n"
    )
    assert words == {"canary", "trial", "probe", "tier"}
    page = "A tier has [probes](x.md).\n\nA canary ends. Canaries end.\n"
    assert list(unlinked_words(page, words)) == [(3, "canary")]
