"""Whether this core serves a model, on which devices, with how much memory: from its headers, before a download.

Every refusal is that of the code which would load the model.
"""

import sys
import tempfile
from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from inference_core.errors import CoreError, ModelFileError
from inference_core.io.files import JSON_ERRORS
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader
from inference_core.loaders.hub_headers import HubHeaders, fetch_headers
from inference_core.loaders.hub_model import downloaded, parse_hub_model, resolve_model_path
from inference_core.loaders.huggingface.safetensors_file import SafetensorsFile
from inference_core.loaders.model_file import MAX_SETTINGS, read_model_file
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_spec import DeviceModelSpec
from inference_core.placement.weight_formats import model_weights
from tiers.catalog.gpu_group import numbers_of
from tiers.engines import PROGRAMS

if TYPE_CHECKING:
    from inference_core.tokenization.tokenizer import Tokenizer

DeviceName = Literal["cpu", "gpu", "mesh"]
DEVICES: tuple[DeviceName, ...] = ("cpu", "gpu", "mesh")
FileFormat = Literal["gguf", "safetensors"]


class DeviceSupport(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device."""

    device: DeviceName
    refused: str | None = None
    """Why it does not serve the model."""
    weight_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    memory_bytes: int | None = None
    """Weights, and keys and values of one sequence of the model's whole context; over all cards of a mesh."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the headers say; None: not known of a model that no loader understands."""

    format: FileFormat
    stored_bytes: int
    architecture: str | None = None
    parameters: int | None = None
    quantisation: str | None = None
    kinds: dict[str, float] = {}
    """The share of the weights of each kind of number."""
    context: int | None = None


class ModelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a model can be served."""

    model: str
    commit: str | None
    download_bytes: int
    read_bytes: int
    facts: ModelFacts
    devices: list[DeviceSupport]
    tokenizer_problem: str | None
    """Why its tokeniser is not served; None if it is."""
    has_chat_template: bool
    engine: str
    """The line of a catalogue with which an installed program serves it where `devices` do not."""
    notes: list[str]
    """What only the weights can tell."""

    @property
    def works(self) -> bool:
        return self.tokenizer_problem is None and any(device.refused is None for device in self.devices)


def check_model(text: str) -> ModelCheck:
    """Check the model at a path, or of a Hugging Face id, of which only settings, tokeniser and headers are read.

    Raises ModelFileError if there is no such model, and MissingExtraError.
    """
    model = parse_hub_model(text)
    if model is None:
        return _checked(text, resolve_model_path(text), None)
    if (path := downloaded(model)) is not None:
        return _checked(text, path, None)
    with tempfile.TemporaryDirectory(prefix="aio-headers-") as folder:
        headers = fetch_headers(model, "any", Path(folder))
        return _checked(str(model), headers.path, headers)


def engine_line(form: FileFormat) -> str:
    """Return the line of a catalogue that has an installed program serve files of this format."""
    wanted = "gguf" if form == "gguf" else "folder"
    return f'engine = "{next(name for name, program in PROGRAMS.items() if program.form == wanted)}"'


def _checked(text: str, path: Path, headers: HubHeaders | None) -> ModelCheck:
    def named(problem: object) -> str:
        """The model as the reader named it, not the folder that stands for it meanwhile."""
        return str(problem).replace(str(path), text) if headers is not None else str(problem)

    form: FileFormat = "safetensors" if path.is_dir() else "gguf"
    problem, tokenizer = _tokenizer(path)
    try:
        checkpoint = open_checkpoint(path)
    except ModelFileError as error:
        devices = [DeviceSupport(device=device, refused=named(error)) for device in DEVICES]
        facts, notes = _raw_facts(path, form), []
    else:
        devices = [_support(device, checkpoint, named) for device in DEVICES]
        facts, notes = _facts(checkpoint, form), _notes(checkpoint) if headers is not None else []
    return ModelCheck(
        model=text,
        commit=None if headers is None else headers.commit,
        download_bytes=0 if headers is None else headers.download_bytes,
        read_bytes=0 if headers is None else headers.read_bytes,
        facts=facts,
        devices=devices,
        tokenizer_problem=None if problem is None else named(problem),
        has_chat_template=tokenizer is not None and tokenizer.chat_template is not None,
        engine=engine_line(form),
        notes=[*notes, *_template_notes(tokenizer)],
    )


# -- devices ------------------------------------------------------------------------------------


def _support(device: DeviceName, checkpoint: Checkpoint, named: Any) -> DeviceSupport:
    try:
        weights, per_token = {"cpu": _on_cpu, "gpu": _on_gpu, "mesh": _on_mesh}[device](checkpoint)
    except CoreError as error:
        return DeviceSupport(device=device, refused=named(error))
    return DeviceSupport(
        device=device,
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        memory_bytes=weights + per_token * checkpoint.config.max_position,
    )


def _on_cpu(checkpoint: Checkpoint) -> tuple[int, int]:
    """Bytes of weights as the CPU's kernels hold them, and of keys and values per token. Raises why not."""
    from inference_core.extras import optional_imports

    with optional_imports("serving it"):
        from inference_core.loading.load_core import check_kernels, check_memory, layout_of, weight_bytes
    from inference_core.model_spec import CoreSpec, ModelSpec

    spec = ModelSpec(name=checkpoint.path.stem, path=str(checkpoint.path), compute="int4-int8")
    check_kernels(spec, checkpoint.config)
    check_memory(CoreSpec(models=[spec]), [checkpoint], sys.maxsize)
    return weight_bytes(checkpoint, spec), layout_of(spec, checkpoint.config).bytes_per_token


def _on_gpu(checkpoint: Checkpoint) -> tuple[int, int]:
    """Bytes of weights as catalogues plan with them, and of keys and values per token. Raises why not."""
    from inference_core.extras import optional_imports

    with optional_imports("serving it"):
        from inference_core.device.load_device_core import device_layout
    from inference_core.loaders.decoder_tensors import refuse_features

    refuse_features(checkpoint.path, checkpoint.config, "a GPU")
    layout = device_layout(_device_spec(checkpoint), checkpoint.config)
    _check_device_layout(layout)
    return numbers_of(checkpoint)["weight_bytes"], layout.bytes_per_token


def _on_mesh(checkpoint: Checkpoint) -> tuple[int, int]:
    """As on a GPU, over two cards together. Raises why the model cannot be divided."""
    from inference_core.extras import optional_imports

    with optional_imports("serving it"):
        from inference_core.device.load_device_core import device_layout
        from inference_core.parallel.shards import divide_model
    from inference_core.model_spec import DeviceCoreSpec
    from inference_core.parallel.mesh import Mesh

    spec = _device_spec(checkpoint)
    slab = DeviceCoreSpec(models=[spec]).slab_bytes
    divided = divide_model(spec, checkpoint, Mesh(tensor=2), uneven=True, slab_bytes=slab)
    layouts = [device_layout(spec, share.config(checkpoint.config)) for share in divided.shares]
    for layout in layouts:
        _check_device_layout(layout)
    return numbers_of(checkpoint)["weight_bytes"], sum(layout.bytes_per_token for layout in layouts)


def _device_spec(checkpoint: Checkpoint) -> DeviceModelSpec:
    return DeviceModelSpec(name=checkpoint.path.stem, path=str(checkpoint.path))


def _check_device_layout(layout: KVLayout) -> None:
    """Raise MemoryPlanError for keys and values that the kernels of cards cannot read."""
    import torch

    from inference_core.triton_kernels.layer_cache import LayerCache

    LayerCache(torch.empty(0, dtype=torch.uint8), layout, 0)


# -- facts --------------------------------------------------------------------------------------


def _facts(checkpoint: Checkpoint, form: FileFormat) -> ModelFacts:
    weights: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        weights[tensor.kind] += prod(tensor.shape) * (len(tensor.shape) == 2)
    return ModelFacts(
        format=form,
        stored_bytes=checkpoint.stored_bytes,
        architecture=checkpoint.config.architecture,
        parameters=model_weights(checkpoint.config).total,
        quantisation=_quantisation(checkpoint.path),
        kinds={kind: round(count / weights.total(), 3) for kind, count in weights.most_common() if count},
        context=checkpoint.config.max_position,
    )


def _quantisation(path: Path) -> str | None:
    """What a folder's settings say of its quantisation; None if it is not quantised, or a GGUF file."""
    said = _quantization_config(path)
    if said is None:
        return None
    parts = [str(said.get("quant_method")), str(said.get("format") or "")]
    parts += [f"{said['bits']} bits"] if "bits" in said else []
    parts += [f"groups of {said['group_size']}"] if "group_size" in said else []
    return ", ".join(filter(None, parts))


def _quantization_config(path: Path) -> dict[str, Any] | None:
    if not path.is_dir():
        return None
    config = msgspec.json.decode(read_model_file(path / "config.json", MAX_SETTINGS), type=dict[str, Any])
    return config.get("quantization_config")


def _raw_facts(path: Path, form: FileFormat) -> ModelFacts:
    """What can be said of files that no loader accepts."""
    try:
        if form == "gguf":
            header = GGUFHeader(path)
            return ModelFacts(
                format=form,
                stored_bytes=path.stat().st_size,
                architecture=str(header.metadata.get("general.architecture")),
                parameters=sum(prod(entry.shape) for entry in header.tensors.values()),
            )
        files = [SafetensorsFile(file) for file in path.glob("*.safetensors")]
        stored = sum(entry.num_bytes for file in files for entry in file.entries.values())
        config = msgspec.json.decode(read_model_file(path / "config.json", MAX_SETTINGS), type=dict[str, Any])
        kind = config.get("model_type")
        return ModelFacts(format=form, stored_bytes=stored, architecture=kind if isinstance(kind, str) else None)
    except (ModelFileError, OSError, *JSON_ERRORS):
        return ModelFacts(format=form, stored_bytes=0)


def _tokenizer(path: Path) -> "tuple[Exception | None, Tokenizer | None]":
    """The tokeniser, or why it cannot be loaded."""
    from inference_core.tokenization.load_tokenizer import load_tokenizer

    try:
        return None, load_tokenizer(path)
    except ModelFileError as error:
        return error, None


def _template_notes(tokenizer: "Tokenizer | None") -> list[str]:
    """What the chat template leaves open."""
    from tiers.dialects.written.tool_calling import ToolCalling

    if tokenizer is None or tokenizer.chat_template is None or ToolCalling(tokenizer).shown is not None:
        return []
    return [
        "the chat template takes tools, and does not show how the model writes calls: see tool_dialect in the catalogue"
    ]


def _notes(checkpoint: Checkpoint) -> list[str]:
    """What headers leave open."""
    said = _quantization_config(checkpoint.path)
    if said is None:
        return []
    notes = ["biases that this architecture lacks must be zero, as quantisers write them"]
    if said.get("desc_act"):
        notes.append("groups in the order of activations (desc_act) take twice the memory shown for the CPU")
    return notes
