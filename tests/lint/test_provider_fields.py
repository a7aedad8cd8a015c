"""Outside `tiers/dialects` nothing that serves, judges or learns names a field of a provider's form: what one is
called, and what it means, is said where the dialect is."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import msgspec

import tiers.dialects

ROOT = Path(__file__).parents[2]
TYPES = frozenset({
    "content_block_delta", "content_block_start", "content_block_stop", "function_call_output", "input_text",
    "input_json_delta", "message_delta", "message_start", "output_text", "redacted_thinking", "tool_result", "tool_use",
})  # fmt: skip
"""Types of blocks, items and events, which are values and no fields."""
ALLOWED = {
    "gateway/inference/api/build_request.py": "a path of an error in OpenAI's words",
    "gateway/inference/api/passed/": "endpoints that are passed through as they are, which no dialect reads",
    "gateway/inference/response_cache.py": "names of what a caller set, as `GenerationRequest.given` has them",
    "gateway/inference/screening/texts.py": "the place of a finding, as operators see it",
    "gateway/cli/live/launch.py": "a setting of Codex",
    "gateway/operations/setup/": "configuration of other gateways, and what lists of models say of them",
    "gateway/planning/load_test/run.py": "a note of the report",
    "quality/comparison/run_outcomes.py": "columns of published results",
    "quality/verification/verifier.py": "a kind of grammar",
    "tiers/catalog/": "entries of the catalogue, which name fields of a server for its operator",
    "tiers/conversation.py": "the names of the bytes of media, which chats and `Media.data` share",
    "tiers/response_format.py": "the form that a chat asks for, which requests, jobs and records have",
}
"""Files and folders, and what their literals are instead."""


@cache
def fields() -> frozenset[str]:
    """The names of fields in the forms of providers that are no plain words: of several words, or in camel case."""
    modules = [import_module(one.name) for one in walk_packages(tiers.dialects.__path__, "tiers.dialects.")]
    forms = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    }
    names = {name for form in forms for name in form.__struct_encode_fields__}
    return TYPES | {name for name in names if re.search("[a-z]_[a-z]|[a-z][A-Z]", name)}


@cache
def trees() -> dict[str, ast.Module]:
    """The modules of these packages, without the dialects."""
    found = [path for root in ("gateway", "quality", "classifier", "tiers") for path in (ROOT / root).rglob("*.py")]
    paths = [path.relative_to(ROOT).as_posix() for path in found]
    return {path: ast.parse((ROOT / path).read_text()) for path in paths if not path.startswith("tiers/dialects/")}


@cache
def own_names() -> frozenset[str]:
    """Fields and arguments that these modules have themselves: settings, columns, and what a request became."""
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    fields = {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return frozenset(fields | {node.arg for node in nodes if isinstance(node, ast.arg)})


def named_fields(tree: ast.Module) -> Iterator[str]:
    """Yield the fields of providers' forms that literals of a module name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            if text in fields() and text not in own_names():
                yield text


def test_only_dialects_name_fields_of_providers() -> None:
    named = {path: sorted({*named_fields(tree)}) for path, tree in trees().items()}
    found = {path: names for path, names in named.items() if names and not path.startswith(tuple(ALLOWED))}
    assert not found, f"move what reads or writes these fields into tiers/dialects: {found}"


def test_what_is_allowed_is_needed() -> None:
    used = {path for path, tree in trees().items() if any(named_fields(tree))}
    assert [one for one in ALLOWED if not any(path.startswith(one) for path in used)] == []


def test_fields_types_and_bytes_are_found_and_names_of_our_own_are_not() -> None:
    said = 'x = {"toolUseId": 1, "input_schema": 2}; y = b"tool_use"; z = "reasoning_effort"; w = "text"'
    assert {*named_fields(ast.parse(said))} == {"toolUseId", "input_schema", "tool_use"}
