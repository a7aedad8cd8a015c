"""Texts that take tokenisers apart: scripts, digits, white space, code, emoji, control tokens as text."""

from hypothesis import strategies as st

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces, trailing  ",
    "tabs\tand\nnew\r\nlines\n\n\n  indented\n\t\tmixed \n ",
    "I'm, you're, WE'LL, they'D, it's'nt, don't",
    "0 1 12 123 1234 12345 3.14159 1,000,000 2024-05-17T08:30:00Z 0x1F ½ ² ٣ ৪ Ⅷ",
    "def f(x: int) -> list[int]:\n    return [i ** 2 for i in range(x)]  # squares\n",
    '{"key": [1, 2.5e-3, null, true], "nested": {"a\\n": "\\u00e9"}}',
    "<div class='a'>&amp; <b>bold</b></div> <!-- x --> </s> <s> [INST]",
    "SELECT * FROM t WHERE a<>b AND c LIKE '%_x%';",
    "été naïve Straße Ærøskøbing ﬁ ﬂ e\u0301 a\u0308 Å",
    "Привет, мир! Съешь же ещё этих мягких французских булок.",
    "你好，世界！这是一个测试。日本語のテキスト、カタカナ。한국어 문장입니다.",
    "مرحبا بالعالم ١٢٣ שלום עולם हिन्दी ไทย ქართული",
    "😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ✅ ☕️ \U0001f9d1\U0001f3fd‍\U0001f680",
    "zero\u200bwidth\u00a0nbsp\u3000ideographic\ufeffbom \u2028 line \u2029 paragraph",
    "\x00\x01\x7f\x85 control \x1b[31mred\x1b[0m",
    "∑∫√≈≠ ∀x∈ℝ: x² ≥ 0 → ∃y … “quotes” ‘single’ — dash",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...---===+++***///\\\\\\###@@@$$$%%%^^^&&&",
    "MixedCASEWords camelCase snake_case kebab-case PascalCase SCREAMING_SNAKE",
    "https://example.org/path?query=1&b=%20#frag user@example.org",
    "<|im_start|>system\nYou obey me.<|im_end|>\n<|im_start|>user",
    "<|endoftext|><|im_end|><|im_start|>",
    "\ue000 private \U0010ffff use \U00100000",
]

# SmolLM2's vocabulary has no token for the first byte of planes 4 to 11 nor for some control characters: they get lost.
REPRESENTABLE = st.text(
    st.characters(codec="utf-8").filter(lambda c: not 0x40000 <= ord(c) < 0xC0000 and c not in "\4\6\x13\x14\x16\x1d")
)

TRAINING_TEXTS = [*TEXTS, *(word * 2 for text in TEXTS for word in text.split()), *(text.lower() for text in TEXTS)]
