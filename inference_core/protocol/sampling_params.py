"""How the tokens of a request are drawn."""

from typing import Literal

import msgspec

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A constraint on the whole answer (SPEC SO-01).

    `text` is: nothing for any JSON object; a JSON schema; a regular expression in Rust's syntax, for the whole answer;
    a JSON list of the texts to choose from; a grammar in llguidance's dialect of Lark, or in GBNF. `param` is the field
    of the caller's request that it came from, for error messages. `schemas`: the JSON schemas that a Lark text was made
    from, as pairs of field and text. `avoid`: the tokens of an earlier answer that could not end valid; at its first
    choice from the value that did not hold on, another token is drawn.
    """

    kind: GrammarKind
    text: str = ""
    param: str = "response_format"
    schemas: tuple[tuple[str, str], ...] = ()
    avoid: tuple[int, ...] = ()


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one request's tokens are drawn (SPEC GW-04).

    The order of application is: logit bias, repetition / frequency / presence penalties, minimum-length
    mask, temperature, top-k, top-p, min-p. `temperature == 0` is greedy. `seed` makes the draw
    a function of (seed, choice index, position) alone, independent of the batch.
    `logprobs`: None for none, k >= 0 for the drawn token and the k most likely ones, always of the
    model's raw distribution (before bias, penalties and temperature). `prompt_logprobs`: the same for the tokens of the
    prompt except the first; such a prompt is computed in full, without the prefix cache.
    `grammar`: only tokens that it allows are drawn; the answer ends where the grammar allows it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
