"""`python -m benchmarks.core.device`: models of true shape with random weights on a CUDA device, stage by stage.

Every stage is one process's work and prints JSON lines. `--tiny` runs the same code on a CPU with a tiny shape: it
shows that everything runs, and measures nothing.
"""

import argparse
import gc
import json
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.core.device_load import DeviceLoad, run_load
from benchmarks.core.random_adapter import write_random_adapter
from benchmarks.core.random_checkpoint import SHAPES, RandomCheckpoint
from benchmarks.kernels.device_linears import random_layer
from inference_core.device.batch import CudaGraphs, Graphs, NoGraphs
from inference_core.device.cards import MemoryProfile, profile_cuda
from inference_core.device.load_device_core import load_device_core
from inference_core.engine.core import Core
from inference_core.kv_cache.layout import KVDtype
from inference_core.linear.device import DeviceScheme
from inference_core.linear.linear import Linear
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.model_config import ModelConfig
from inference_core.model_spec import DeviceCoreSpec, DeviceModelSpec
from inference_core.models.weights import projections

ADAPTER_RANK = 16
_LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# What every stream of a voice bot is to exceed (SPEC TB-02).
STREAM_TOK_S = 30.0
# Seeds of the loads before those that are timed.
_WARM_SEED = 1000


@dataclass(slots=True, frozen=True)
class Stage:
    """A model and the loads it is put under, one after another."""

    shape: str
    compute: DeviceScheme
    loads: tuple[DeviceLoad, ...]
    kv_dtype: KVDtype = "bfloat16"
    graphs: bool = True

    @property
    def adapters(self) -> int:
        """How many adapters the loads go through."""
        return max(load.adapters for load in self.loads)


def _one(prompt: int = 128, output: int = 256) -> DeviceLoad:
    return DeviceLoad(requests=3, concurrency=1, prompt_tokens=prompt, output_tokens=output)


def _at_once(concurrency: int, prompt: int, output: int, shared: int = 0) -> DeviceLoad:
    load = DeviceLoad(requests=concurrency, concurrency=concurrency, prompt_tokens=prompt, output_tokens=output)
    return replace(load, shared_tokens=shared)


# Prompts and answers of 1,000 tokens, as makers of engines publish them.
_BATCHES = (_at_once(64, 1000, 1000), _at_once(256, 1000, 1000))
_CONTEXTS = tuple(_one(prompt, 64) for prompt in (512, 4096, 16_384, 32_768))
_8B, _70B = "llama-3.1-8b", "llama-3.3-70b"
_EIGHT = _at_once(8, 128, 256)
STAGES: dict[str, Stage] = {
    "8b-bf16-one-stream": Stage(_8B, "dense", (_one(),)),
    "8b-bf16-no-graphs": Stage(_8B, "dense", (_one(),), graphs=False),
    "8b-int4-one-stream": Stage(_8B, "int4", (_one(),)),
    "8b-fp8-one-stream": Stage(_8B, "fp8", (_one(),)),
    "8b-int8-one-stream": Stage(_8B, "int8", (_one(),)),
    "70b-int4-one-stream": Stage(_70B, "int4", (_one(),)),
    "8b-int4-8-adapters": Stage(_8B, "int4", (_EIGHT, replace(_EIGHT, adapters=8), replace(_one(), adapters=1))),
    "8b-bf16-16": Stage(_8B, "dense", (_at_once(16, 512, 256),)),
    "8b-bf16-256": Stage(_8B, "dense", _BATCHES),
    "8b-fp8-256": Stage(_8B, "fp8", _BATCHES, kv_dtype="fp8"),
    "70b-int4-64": Stage(_70B, "int4", (_at_once(16, 512, 256), _at_once(64, 512, 256))),
    "8b-bf16-prefill": Stage(_8B, "dense", (_at_once(8, 8192, 2),)),
    "8b-fp8-prefill": Stage(_8B, "fp8", (_at_once(8, 8192, 2),)),
    "8b-bf16-contexts": Stage(_8B, "dense", _CONTEXTS),
    "8b-fp8kv-contexts": Stage(_8B, "dense", _CONTEXTS, kv_dtype="fp8"),
    "8b-voice-ladder": Stage(_8B, "dense", tuple(_at_once(c, 2000, 200) for c in _LADDER)),
    "8b-voice-ladder-shared": Stage(_8B, "dense", tuple(_at_once(c, 2000, 200, 1600) for c in _LADDER)),
}


def tiny(stage: Stage) -> Stage:
    """The same with loads that a CPU finishes at once."""
    return replace(
        stage,
        loads=tuple(
            replace(load, requests=2, concurrency=min(2, load.concurrency), prompt_tokens=9, output_tokens=3,
                    shared_tokens=min(4, load.shared_tokens), adapters=min(2, load.adapters))
            for load in stage.loads[:2]
        ),
    )  # fmt: skip


def run_stage(name: str, stage: Stage, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row per load, after one request that compiles and captures what the load needs. Every load has prompts of its
    own, so that none finds those of a load before it in the prefix cache."""
    # The core of the stage before may be held by cycles, and this one takes all memory that is free.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    core = _core(stage, device)
    for number, load in enumerate(stage.loads):
        warm, seed = _WARM_SEED + number, load.seed + number
        run_load(core, "m", replace(load, requests=load.concurrency, output_tokens=2, seed=warm))
        row = {"seed": seed, **run_load(core, "m", replace(load, seed=seed))}
        yield {"stage": name, "shape": stage.shape, "compute": stage.compute, "kv_dtype": stage.kv_dtype, **row}


def most_streams(rows: Sequence[dict[str, Any]]) -> int:
    """The highest concurrency of a ladder up to which every stream of every level has more than `STREAM_TOK_S`; 0 if
    the lowest level has not."""
    most = 0
    for row in sorted(rows, key=lambda row: int(row["concurrency"])):
        if not row["slowest_stream_tok_s"] or row["slowest_stream_tok_s"] <= STREAM_TOK_S:
            break
        most = row["concurrency"]
    return most


def _core(stage: Stage, device: torch.device) -> Core:
    cuda = device.type == "cuda"
    config = SHAPES[stage.shape]
    if not cuda:
        config = msgspec.structs.replace(
            config, vocab_size=96, hidden_size=256, intermediate_size=512, num_layers=2, num_heads=8, num_kv_heads=2,
            head_dim=32, max_position=256,
        )  # fmt: skip
    model = DeviceModelSpec(
        name="m",
        path="",
        compute=stage.compute,
        activations="bfloat16" if cuda else "float32",
        kv_dtype=stage.kv_dtype if cuda else "float32",
        max_adapters=stage.adapters,
        max_adapter_rank=ADAPTER_RANK,
    )
    largest = max(load.concurrency for load in stage.loads)
    spec = DeviceCoreSpec(
        models=[model],
        max_num_batched_tokens=8192 if cuda else 64,
        max_num_seqs=max(largest, 8),
        slab_bytes=(256 if cuda else 1) * 2**20,
    )
    graphs: type[Graphs] = CudaGraphs if cuda and stage.graphs else NoGraphs
    core = load_device_core(
        spec,
        {"m": RandomCheckpoint(config, "BF16")},
        device,
        Path(),  # random weights are not cached
        profile=profile_cuda if cuda else _small,
        make_graphs=graphs,
        linears=_random_linears,
    )
    _load_adapters(core, config, stage.adapters)
    return core


def _random_linears(
    checkpoint: Checkpoint, scheme: DeviceScheme, dtype: torch.dtype, device: torch.device, _: Path
) -> dict[str, Linear]:
    """Projections with a checkpoint's shapes, by name, generated on the device: a model of 70B parameters in seconds.
    Its data is not read. The vocabulary projection is dense, as in checkpoints."""
    linears: dict[str, Linear] = {}
    for projection in projections(checkpoint):
        tensors = [checkpoint.tensors[name] for name in projection.tensors]
        inputs, outputs = tensors[0].shape[1], sum(tensor.shape[0] for tensor in tensors)
        linears[projection.name] = random_layer(
            "dense" if projection.name == "head" else scheme, inputs, outputs, device, dtype
        )
    return linears


def _load_adapters(core: Core, config: ModelConfig, count: int) -> None:
    """Adapters of every layer, with random weights; the core keeps them, so that their files may go."""
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            write_random_adapter(Path(folder), config, ADAPTER_RANK, seed=number)
            core.load_adapter("m", str(number), folder)


def _small(_: torch.device, largest_step: object) -> MemoryProfile:
    return MemoryProfile(total=16 * 2**20, others=0, weights=0, activations=0)


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    told: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        told |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        told["memory_gib"] = round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"some of {', '.join(STAGES)}; all without any")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, with a tiny shape: that everything runs")
    arguments = parser.parse_args()
    unknown = set(arguments.stages) - STAGES.keys()
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    device = torch.device("cpu" if arguments.tiny else "cuda")
    print(json.dumps({"machine": machine(device)}), flush=True)
    for name in arguments.stages or STAGES:
        rows: list[dict[str, Any]] = []
        for row in run_stage(name, tiny(STAGES[name]) if arguments.tiny else STAGES[name], device):
            rows.append(row)
            print(json.dumps(row), flush=True)
        if len(rows) > 2:
            summary = {"stage": name, f"most_streams_above_{STREAM_TOK_S:g}_tok_s": most_streams(rows)}
            print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()
