"""The benchmark of the server's own cost streams real answers through the whole gateway."""

from collections.abc import Mapping

from benchmarks.gateway.constant_rate_core import ConstantRateCore
from benchmarks.gateway.overhead import bench_overhead
from gateway.base.settings import Settings
from inference_core.protocol import AddRequest, ModelInfo, SamplingParams

INFO = ModelInfo(name="m", model_path="", max_context=100, vocab_size=100, weight_bytes=0, compute="paced")


def request(request_id: str, tokens: int, n: int = 1) -> AddRequest:
    sampling = SamplingParams(max_tokens=tokens)
    return AddRequest(request_id=request_id, model="m", prompt_token_ids=[1], sampling=sampling, n=n)


async def test_the_row_names_the_load_and_every_cost(settings: Settings) -> None:
    seen: list[float] = []

    row: Mapping[str, object] = await bench_overhead(
        settings, streams=2, tokens=3, step_seconds=0.001, repeats=1, progress=lambda _, share: seen.append(share)
    )

    assert (row["streams"], row["tokens"], row["step_ms"]) == (2, 11, 1.0)
    assert {"loop_us_per_token", "loop_us_per_request", "core_us_per_step"} < row.keys()
    assert seen == [1.0]


def test_the_paced_core_repeats_its_text_until_every_choice_has_its_tokens() -> None:
    core = ConstantRateCore([INFO], [4, 5], 0.0)
    core.add(request("a", 3, n=2))
    core.add(request("b", 1))

    outputs = [core.step() for _ in range(3)]

    assert [[(o.request_id, o.index, *o.token_ids) for o in step] for step in outputs] == [
        [("a", 0, 4), ("a", 1, 4), ("b", 0, 4)],
        [("a", 0, 5), ("a", 1, 5)],
        [("a", 0, 4), ("a", 1, 4)],
    ]
    assert [o.finish_reason for o in outputs[0]] == [None, None, "length"]
    assert [o.finish_reason for o in outputs[2]] == ["length", "length"]
    assert not core.has_work


def test_the_paced_core_forgets_a_choice_or_a_request_that_is_aborted() -> None:
    core = ConstantRateCore([INFO], [4], 0.0)
    core.add(request("a", 3, n=2))

    assert [(o.index, o.finish_reason) for o in core.abort("a", 1)] == [(1, "abort")]
    assert [o.index for o in core.step()] == [0]
    assert [o.index for o in core.abort("a")] == [0]
    assert core.abort("a") == []
    assert not core.has_work
