"""Files of another editor: commands read a byte order mark, and name a file in another encoding than UTF-8."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classifier.prompt_predictions import read_prompts
from gateway.operations.setup.other_gateways.hosted import migrated_file
from gateway.planning.backtests.log import read_log
from gateway.planning.capacity.workload import read_trace
from gateway.tenancy.declared import read_declaration
from quality.distillation.examples import read_examples
from quality.learning.outcome_import import read_outcomes
from quality.records.redaction import patterns_redaction
from tests.support.upstream import write_remote_catalog
from tiers.catalog.load import load_catalog

MARK = b"\xef\xbb\xbf"
_READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "keys.toml": ('[[teams]]\nname = "lab"\n# café\n', lambda path: read_declaration(path, frozenset(), {}).teams),
    "config.yaml": (
        "model_list:\n- model_name: café\n  litellm_params:\n    model: openai/gpt-4o\n",
        lambda path: len(migrated_file(path, {"OPENAI_API_KEY": "unused"}).candidates),
    ),
    "prompts.jsonl": ('{"id": 1, "prompt": "café"}\n', lambda path: list(read_prompts(path))),
    "log.jsonl": ('{"prompt": "café", "scores": {"1": 1}}\n', lambda path: len(list(read_log(path)))),
    "outcomes.jsonl": ('{"prompt": "café", "scores": {"1": 1, "2": 1}}\n', lambda path: len(read_outcomes(path, 2))),
    "examples.jsonl": ('{"prompt": "café", "answer": "yes"}\n', lambda path: len(read_examples(path))),
    "redaction.txt": ("café\n", lambda path: patterns_redaction(path)("a café")),
    "trace.csv": (
        "timestamp,prompt_tokens,output_tokens,café\n0,10,5,1\n",
        lambda path: read_trace(path),
    ),
}


@pytest.mark.parametrize("name", _READERS)
def test_a_byte_order_mark_changes_nothing(name: str, tmp_path: Path) -> None:
    text, read = _READERS[name]
    plain, marked = tmp_path / name, tmp_path / f"marked-{name}"
    plain.write_bytes(text.encode())
    marked.write_bytes(MARK + text.encode())
    assert read(marked) == read(plain)


@pytest.mark.parametrize("name", _READERS)
def test_a_file_that_is_no_utf_8_is_named(name: str, tmp_path: Path) -> None:
    text, read = _READERS[name]
    file = tmp_path / name
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(Exception, match=name) as refused:
        read(file)
    assert not isinstance(refused.value, UnicodeDecodeError)


def test_a_catalogue_is_read_with_a_mark_and_named_in_another_encoding(tmp_path: Path) -> None:
    from tiers.errors import CatalogError

    file = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:9/v1")
    before, text = load_catalog(str(file)), file.read_text()
    file.write_bytes(MARK + text.encode())
    assert load_catalog(str(file)).fingerprint == before.fingerprint
    file.write_bytes(f"# café\n{text}".encode("latin-1"))
    with pytest.raises(
        CatalogError, match=r"catalog.toml' cannot be read \(it is not UTF-8: byte 0xe9 in line 1; save"
    ):
        load_catalog(str(file))
