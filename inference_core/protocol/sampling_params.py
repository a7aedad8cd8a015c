"""How the tokens of a request are drawn."""

from typing import Literal

import msgspec

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an answer must be, from its first token to its last (SPEC SO-01).

    `text` is: nothing for any JSON object; a JSON schema; a regular expression in Rust's syntax, for the whole answer;
    a JSON list of the texts to choose from; a grammar in llguidance's dialect of Lark, or in GBNF. `param` is the field
    of the caller's request that it came from, to be named if it cannot be compiled. `schemas`: the JSON schemas that
    a Lark text was made from, as pairs of their own field and text.
    """

    kind: GrammarKind
    text: str = ""
    param: str = "response_format"
    schemas: tuple[tuple[str, str], ...] = ()


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one request's tokens are drawn (SPEC GW-04).

    The order of application is: logit bias, repetition / frequency / presence penalties, minimum-length
    mask, temperature, top-k, top-p, min-p. `temperature == 0` is greedy. `seed` makes the draw
    a function of (seed, choice index, position) alone, whatever else is in the batch.
    `logprobs`: None for none, k >= 0 for the drawn token and the k most likely ones, always of the
    model's raw distribution (before bias, penalties and temperature). `prompt_logprobs`: the same for the tokens of the
    prompt but its first; such a prompt is computed in full, whatever the prefix cache holds.
    `grammar`: tokens that it does not allow are never drawn, whatever else is asked for; the answer ends where it may.
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
