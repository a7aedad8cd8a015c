"""The Triton Inference Server configuration of a tier's model: `config.pbtxt` and, for vLLM, the engine's arguments.

Fields: `ModelConfig` of Triton's model_config.proto; docs/user_guide/model_configuration.md of triton-inference-server.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from inference_core.protocol import Knobs, KnobValue
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.catalog.tier_spec import USUAL_CONTEXT
from tiers.errors import CatalogError

Backend = Literal["python", "vllm"]
DeviceKind = Literal["gpu", "cpu"]

# Defaults of the wait in Triton's batcher. Continuous batching needs no delay, but a dynamic batch does: by default
# requests wait 2 ms for others, or until there are 8, 16, 32 or 64.
DELAY_MS = 2.0
PREFERRED = (8, 16, 32, 64)

# The text interface of TensorRT-LLM's `tensorrt_llm_bls`, as the remote kind `triton-tensorrt-llm` fills it.
INPUTS = {
    "text_input": ("TYPE_STRING", 1),
    "max_tokens": ("TYPE_INT32", 1),
    "bad_words": ("TYPE_STRING", -1),
    "stop_words": ("TYPE_STRING", -1),
    "stream": ("TYPE_BOOL", 1),
    "exclude_input_in_output": ("TYPE_BOOL", 1),
    "return_num_input_tokens": ("TYPE_BOOL", 1),
    "return_num_output_tokens": ("TYPE_BOOL", 1),
    "temperature": ("TYPE_FP32", 1),
    "top_p": ("TYPE_FP32", 1),
    "top_k": ("TYPE_INT32", 1),
    "seed": ("TYPE_UINT64", 1),
    "min_tokens": ("TYPE_INT32", 1),
    "presence_penalty": ("TYPE_FP32", 1),
    "frequency_penalty": ("TYPE_FP32", 1),
    "repetition_penalty": ("TYPE_FP32", 1),
    "guided_decoding_guide_type": ("TYPE_STRING", 1),
    "guided_decoding_guide": ("TYPE_STRING", 1),
}
NEEDED = ("text_input", "max_tokens")
OUTPUTS = {
    "text_output": ("TYPE_STRING", -1),
    "num_input_tokens": ("TYPE_INT32", -1),
    "num_output_tokens": ("TYPE_INT32", -1),
}


class Instances(msgspec.Struct, frozen=True, kw_only=True):
    """Independent replicas of a model, not a parallel model."""

    kind: DeviceKind = "gpu"
    count: int = 1
    """Copies of the model on each of `gpus`, or on the CPU."""
    gpus: Sequence[int] = ()


def triton_files(
    catalog: Catalog, number: int, backend: Backend, instances: Instances, weights: str | None = None
) -> dict[str, str]:
    """Return the files of tier `number`'s folder in Triton's model repository, by their path in it.

    `weights`: the path for a vLLM engine on Triton's machine; None is the path of the catalogue. Raises `CatalogError`
    for settings that the backend does not support.
    """
    name = _name(catalog, number)
    knobs = tier_knobs(catalog, number)
    if backend == "vllm":
        arguments = json.dumps(_engine_arguments(catalog, number, knobs, weights), indent=2) + "\n"
        return {f"{name}/config.pbtxt": _text(_vllm_config(name, instances)), f"{name}/1/model.json": arguments}
    return {f"{name}/config.pbtxt": _text(_batched_config(name, knobs, instances))}


def tier_knobs(catalog: Catalog, number: int) -> Knobs:
    """Return the first knobs of tier `number`'s model, with Triton's defaults for those of its batcher."""
    model = catalog.tier(number).model
    said: dict[str, KnobValue] = {}
    if model is not None:
        core = catalog.core_of(model)
        owner = catalog.core if core == CPU_CORE else catalog.group(core)
        said = {**owner.knobs, **next(m.knobs for m in owner.models if m.name == model)}
        if core != CPU_CORE:
            said = {"max_num_seqs": catalog.group(core).max_num_seqs} | said
    knobs = msgspec.convert({name: value for name, value in said.items() if name in Knobs.__struct_fields__}, Knobs)
    delay = knobs.max_queue_delay_ms if "max_queue_delay_ms" in said else DELAY_MS
    preferred = knobs.preferred_batch_sizes if "preferred_batch_sizes" in said else list(PREFERRED)
    fitting = sorted({size for size in preferred if size <= knobs.max_num_seqs})
    return msgspec.structs.replace(knobs, max_queue_delay_ms=delay, preferred_batch_sizes=fitting)


def _name(catalog: Catalog, number: int) -> str:
    remote = catalog.tier(number).remote
    return catalog.tier(number).model_name if remote is None else remote.model


def _batched_config(name: str, knobs: Knobs, instances: Instances) -> dict[str, Any]:
    """Describe a model behind Triton's dynamic batcher. Beyond `max_waiting` requests are refused, as by a core."""
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": knobs.max_num_seqs,
        "input": [_tensor(n, *shape, optional=n not in NEEDED) for n, shape in INPUTS.items()],
        "output": [_tensor(n, *shape) for n, shape in OUTPUTS.items()],
        "dynamic_batching": {
            "preferred_batch_size": list(knobs.preferred_batch_sizes),
            "max_queue_delay_microseconds": round(knobs.max_queue_delay_ms * 1000),
            "default_queue_policy": {"max_queue_size": knobs.max_waiting},
        },
        "model_transaction_policy": {"decoupled": True},
        "instance_group": [_instance_group(instances)],
    }


def _vllm_config(name: str, instances: Instances) -> dict[str, Any]:
    """Describe a vLLM model. vLLM batches continuously, declares its own tensors and places itself, so its instances
    have no device."""
    if instances.kind != "gpu" or instances.gpus:
        raise CatalogError("Triton's vLLM backend places its own engine: give neither --kind cpu nor --gpus")
    group = {"count": instances.count, "kind": _Word("KIND_MODEL")}
    return {"name": name, "backend": "vllm", "instance_group": [group]}


def _engine_arguments(catalog: Catalog, number: int, knobs: Knobs, weights: str | None) -> dict[str, Any]:
    """Translate our knobs to vLLM's names."""
    tier = catalog.tier(number)
    path = weights or (tier.model and catalog.model_paths[tier.model])
    if path is None:
        raise CatalogError(f"tier {number} is remote, so the catalogue does not name its weights: give --weights")
    arguments: dict[str, Any] = {
        "model": path,
        "max_num_seqs": knobs.max_num_seqs,
        "enable_prefix_caching": knobs.prefix_caching,
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": knobs.max_num_batched_tokens,
    }
    if tier.remote is not None:
        arguments["max_model_len"] = tier.remote.max_context or USUAL_CONTEXT
    elif tier.model is not None and (core := catalog.core_of(tier.model)) != CPU_CORE:
        group = catalog.group(core)
        arguments |= {
            "max_model_len": next(m.max_context for m in group.models if m.name == tier.model),
            "tensor_parallel_size": group.tensor,
            "pipeline_parallel_size": group.pipeline,
            "gpu_memory_utilization": group.memory_utilization,
        }
    return arguments


class _Word(str):
    """A name of an enumeration, which protobuf's text format writes without quotes."""

    __slots__ = ()


def _tensor(name: str, data_type: str, length: int, *, optional: bool = False) -> dict[str, Any]:
    return {"name": name, "data_type": _Word(data_type), "dims": [length]} | ({"optional": True} if optional else {})


def _instance_group(instances: Instances) -> dict[str, Any]:
    if instances.kind == "cpu":
        if instances.gpus:
            raise CatalogError("--gpus goes with --kind gpu")
        return {"count": instances.count, "kind": _Word("KIND_CPU")}
    gpus = {"gpus": list(instances.gpus)} if instances.gpus else {}
    return {"count": instances.count, "kind": _Word("KIND_GPU")} | gpus


def _text(message: dict[str, Any]) -> str:
    """Return protobuf's text format."""
    return "\n".join(_lines(message, "")) + "\n"


def _lines(message: dict[str, Any], indent: str) -> Iterator[str]:
    for field, value in message.items():
        entries = value if isinstance(value, list) else [value]
        if entries and isinstance(entries[0], dict):
            for entry in entries:
                yield f"{indent}{field} {{"
                yield from _lines(entry, indent + "  ")
                yield f"{indent}}}"
        elif isinstance(value, list):
            yield f"{indent}{field}: [{', '.join(_scalar(entry) for entry in value)}]"
        else:
            yield f"{indent}{field}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, _Word):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    # JSON's escapes are valid in protobuf too.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
