"""Types that threads decode are prepared when their module is imported: msgspec prepares a type at its first use, and a
second thread would use it half prepared, which crashes the process."""

import json
import subprocess
import sys

# By the module that decodes them.
DECODED = {
    "classifier.encoders.hidden_state_encoder": ["StateSpec"],
    "classifier.evidence": ["ProbeManifest", "_Version"],
    "classifier.registry.artefact": ["Manifest"],
    "classifier.registry.registry": ["Canary", "Split"],
    "inference_core.engine.live_knobs": ["Knobs"],
    "inference_core.loaders.hub_model": ["Pin"],
    "inference_core.loaders.huggingface.hf_checkpoint": ["_Index"],
    "inference_core.loaders.huggingface.hf_config": ["_Config", "_EndTokens", "_Quantised", "_Table"],
    "inference_core.loaders.huggingface.hf_quantization": ["QuantizationConfig", "_WithSparsity"],
    "inference_core.loaders.huggingface.safetensors_file": ["Entry"],
    "inference_core.loaders.huggingface.table_layers": ["_State"],
    "inference_core.loaders.model_file": ["_CachedDigest"],
    "inference_core.loaders.rope_scaling": ["Rope"],
    "inference_core.lora.adapter_file": ["AdapterConfig"],
    "inference_core.quantization.quality_report": ["QualityReport", "QuantizationRecord"],
    "inference_core.tokenization.hf_vocabulary": ["AddedToken", "_TokenizerFile"],
    "quality.evaluation.everyday_outcomes": ["EverydayOutcomes"],
    "quality.evaluation.tier_accuracy": ["AccuracyReport"],
    "tiers.catalog.core_spec": ["DeviceCoreSpec"],
    "tiers.catalog.load": ["Catalog"],
    "tiers.dialects.messages": ["Block", "ResultBlock", "Text", "ToolEntry"],
    "tiers.dialects.responses_schemas": ["Part"],
}
# What msgspec keeps of a type once it is prepared is an object that the type refers to.
UNPREPARED = """
import gc, importlib, json, sys

decoded = {}
for name, kinds in json.loads(sys.argv[1]).items():
    module = importlib.import_module(name)
    decoded |= {f"{name}.{kind}": getattr(module, kind) for kind in kinds}
is_prepared = lambda kind: any(type(one).__name__ == "StructInfo" for one in gc.get_referents(kind))
print(json.dumps([name for name, kind in decoded.items() if not is_prepared(kind)]))
"""
FIRST_USE = """
import importlib, json, sys, threading
import msgspec

sys.setswitchinterval(1e-6)
for name, kinds in json.loads(sys.argv[1]).items():
    module = importlib.import_module(name)
    for _ in range(20):
        module = importlib.reload(module)
        for kind in (getattr(module, kind) for kind in kinds):
            begin = threading.Barrier(6)
            text = json.dumps(dict.fromkeys(kind.__struct_encode_fields__)).encode()

            def read():
                begin.wait()
                try:
                    msgspec.json.decode(text, type=kind)
                except msgspec.ValidationError:
                    pass

            threads = [threading.Thread(target=read) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
"""
# Modules whose types are made again by a second import.
RELOADED = [
    "inference_core.loaders.huggingface.hf_config",
    "inference_core.loaders.huggingface.table_layers",
    "inference_core.quantization.quality_report",
    "inference_core.tokenization.hf_vocabulary",
]


def run(code: str, decoded: dict[str, list[str]]) -> str:
    """What a fresh process prints that runs `code`."""
    return subprocess.run(
        [sys.executable, "-c", code, json.dumps(decoded)], check=True, capture_output=True, text=True
    ).stdout


def test_types_that_threads_decode_are_prepared_when_their_module_is_imported() -> None:
    assert json.loads(run(UNPREPARED, DECODED)) == []


def test_threads_that_decode_a_type_first_do_not_crash() -> None:
    assert run(FIRST_USE, {name: DECODED[name] for name in RELOADED}) == ""
