"""Placements and the rules that made them, against arithmetic by hand (SPEC TI-06, TI-09, PX-04, PX-06)."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from inference_core.errors import MeshError
from inference_core.kv_cache.memory_plan import GB
from inference_core.loaders.decoder_tensors import shape
from inference_core.parallel.mesh import Mesh
from inference_core.placement.hardware import Machines, Workload, device
from inference_core.placement.planner import LARGE_PARAMETERS, place
from inference_core.placement.rank_memory import Placement, PlacementError, Rule
from inference_core.placement.weight_formats import FORMATS, PlacedDraft, model_weights

AWQ = FORMATS["awq-int4"]


def placed(
    model: str,
    on: str,
    devices: int = 1,
    nodes: int = 1,
    island: int | None = None,
    weights: str | None = None,
    mesh: Mesh | None = None,
    **workload: Any,
) -> Placement:
    machines = Machines(device=device(on), devices_per_node=devices, nodes=nodes, island=island)
    form = None if weights is None else FORMATS[weights]
    return place(shape(model), machines, Workload(**workload), form, mesh)


def rules(plan: Placement) -> set[Rule]:
    return {decision.rule for decision in plan.decisions}


def test_70b_awq_on_four_cards_of_24_gb_leaves_142_286_tokens() -> None:
    """Per rank: 68,451,041,280 / 4 x 4.15625 / 8 = 8,890,613,760 bytes in linear layers; embedding and head
    2 x 128,256 / 4 x 8,192 x 2 = 1,050,673,152; norms 161 x 8,192 x 2 = 2,637,824; 24 GB x 0.9 = 21.6 GB usable;
    2 x 80 layers x 2 KV heads x 128 x 2 bytes = 81,920 bytes per token."""
    plan = placed("llama-3.3-70b", "l4", devices=4, weights="awq-int4", batch=16)

    assert plan.mesh == Mesh(tensor=4)
    assert "tensor-parallel-within-a-node" in rules(plan)
    assert "kv-heads" in rules(plan)
    for rank in plan.ranks:
        assert rank.weight_bytes == 8_890_613_760 + 1_050_673_152 + 2_637_824
        assert rank.kv_bytes_per_token == 81_920
        assert rank.kv_tokens == (21_600_000_000 - 9_943_924_736) // 81_920 == 142_286
    assert (plan.kv_tokens, plan.max_sequences) == (142_286, 17)
    text = "\n".join(plan.lines)
    assert text.count("17,112,760,320 x 4.15625 bits") == 1  # four equal ranks are explained once
    assert "142,286 tokens / 8,192 = 17 at the same time" in text


def test_a_draft_takes_its_share_of_weights_and_of_every_token_on_each_card() -> None:
    """An 8B on four ranks: 2 x 32 layers x 2 KV heads x 128 x 2 bytes = 32,768 bytes per token, plus 81,920; a quarter
    of 6,979,321,856 x 4.15625 / 8 bytes in linear layers, of 2 x 128,256 x 4,096 x 2 in embedding and head, and all 65
    norms of 4,096 x 2."""
    draft = PlacedDraft(name="8b", config=shape("llama-3.1-8b"), form=FORMATS["gptq-int4"])
    machines = Machines(device=device("l4"), devices_per_node=4)
    plan = place(shape("llama-3.3-70b"), machines, Workload(), AWQ, Mesh(tensor=4), draft)

    for rank in plan.ranks:
        assert rank.draft_bytes == 906_493_952 + 525_336_576 + 532_480
        assert rank.weight_bytes == 9_943_924_736
        assert rank.kv_bytes_per_token == 81_920 + 32_768
        assert rank.kv_tokens == (21_600_000_000 - rank.weight_bytes - rank.draft_bytes) // 114_688
    assert "its draft 8b (gptq-int4)" in chr(10).join(plan.lines)


def test_a_draft_that_the_cards_cannot_divide_is_refused() -> None:
    odd = replace(shape("llama-3.1-8b"), num_heads=30, num_kv_heads=3)
    draft = PlacedDraft(name="odd", config=odd, form=FORMATS["gptq-int4"])
    with pytest.raises(MeshError):
        place(shape("llama-3.3-70b"), Machines(device=device("l4"), devices_per_node=4), Workload(), AWQ,
              Mesh(tensor=4), draft)  # fmt: skip


def test_8b_gptq_on_one_card_of_24_gb_leaves_121_094_tokens() -> None:
    """21.6 GB - 5,727,854,592 bytes of weights = 15,872,145,408; / (2 x 32 x 8 x 128 x 2 = 131,072)."""
    plan = placed("llama-3.1-8b", "l4", weights="gptq-int4")

    assert plan.mesh == Mesh()
    assert "one-device" in rules(plan)
    assert plan.kv_tokens == 15_872_145_408 // 131_072 == 121_094
    assert plan.max_sequences == 14


def test_3b_goes_on_a_cpu_in_4_bits() -> None:
    plan = placed("llama-3.2-3b", "xeon-8480")

    assert (plan.executable, plan.format, plan.mesh) == (True, "q4_k", Mesh())
    assert plan.ranks[0].weight_bytes == pytest.approx(3.2126e9 * 4.5 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "mesh", "replicas", "expected"),
    [
        # One machine: as few devices per layer as suffice; the others are replicas.
        ({"model": "llama-3.1-8b", "on": "l4", "devices": 4}, Mesh(), 4, ["one-device", "replicas"]),
        ({"model": "llama-3.3-70b", "on": "h100", "devices": 8, "weights": "bfloat16", "batch": 4},
         Mesh(tensor=4), 2, ["over-30b", "tensor-parallel-within-a-node", "replicas"]),
        # Two machines: tensor parallel within each, stages across.
        ({"model": "llama-3.3-70b", "on": "l4", "devices": 4, "nodes": 2, "weights": "bfloat16"},
         Mesh(tensor=4, pipeline=2), 1, ["tensor-parallel-within-a-node", "pipeline-across-islands"]),
        # The same machine as two islands of NVLink: the widest group is an island, and there are two stages.
        ({"model": "llama-3.1-405b", "on": "h100", "devices": 8, "weights": "fp8"}, Mesh(tensor=8), 1,
         ["tensor-parallel-within-a-node"]),
        ({"model": "llama-3.1-405b", "on": "h100", "devices": 8, "island": 4, "weights": "fp8"},
         Mesh(tensor=4, pipeline=2), 1, ["tensor-parallel-within-a-node", "pipeline-across-islands"]),
        # A machine with two too many: they stay idle, and the plan says so.
        ({"model": "llama-3.3-70b", "on": "a100-80gb", "devices": 3, "weights": "fp8"}, Mesh(tensor=2), 1,
         ["over-30b", "replicas"]),
        # More ranks than KV heads: each is on two.
        ({"model": "llama-3.1-405b", "on": "a100-80gb", "devices": 16, "weights": "bfloat16"}, Mesh(tensor=16), 1,
         ["kv-heads"]),
    ],
)  # fmt: skip
def test_tensor_parallel_within_a_machine_stages_across_and_replicas_on_top(
    given: dict[str, Any], mesh: Mesh, replicas: int, expected: list[Rule]
) -> None:
    plan = placed(**given)
    assert (plan.mesh, plan.replicas) == (mesh, replicas)
    assert set(expected) <= rules(plan)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "llama-3.3-70b", "on": "h100", "devices": 4, "weights": "bfloat16"},
         "devices of 80 GB or more, as these of 80 GB, are for that"),
        ({"model": "llama-3.3-70b", "on": "h100-nvl", "devices": 2, "weights": "bfloat16"},
         "devices of 80 GB or more, as these of 94 GB, are for that"),
        ({"model": "llama-3.3-70b", "on": "l4", "devices": 4, "weights": "awq-int4"},
         "a device has 24 GB: several share the model"),
        ({"model": "llama-3.3-70b", "on": "l4", "weights": "awq-int4"},
         "there is one device of 24 GB: few bits, or offload"),
        ({"model": "llama-3.1-8b", "on": "l4", "devices": 4}, None),
    ],
)  # fmt: skip
def test_a_model_over_30_billion_weights_wants_large_devices_or_several_or_few_bits(
    given: Mapping[str, Any], said: str | None
) -> None:
    try:
        decisions = placed(**given).decisions
    except PlacementError as refused:
        assert given["on"] == "l4"
        decisions = refused.decisions
    found = [decision.text for decision in decisions if decision.rule == "over-30b"]
    if said is None:
        assert found == []
    else:
        [text] = found
        assert text.endswith(said)
        assert "70.6 billion weights are over 30 billion" in text


def test_the_rule_of_30_billion_begins_above_it() -> None:
    """A vocabulary that brings the model to 30 billion weights exactly, and one with a token more."""
    base = replace(shape("llama-3.1-8b"), vocab_size=0)
    without = model_weights(base).total
    tokens, left = divmod(LARGE_PARAMETERS - without, 2 * base.hidden_size)
    exact = replace(base, vocab_size=tokens)
    more = replace(base, vocab_size=tokens + 1)
    assert 0 <= left < 2 * base.hidden_size
    machines = Machines(device=device("h100"), devices_per_node=4)
    fired = [
        "over-30b" in rules(place(config, machines, Workload(), FORMATS["fp8"], Mesh())) for config in (exact, more)
    ]
    assert fired == [False, True]


@pytest.mark.parametrize(("more", "fires"), [(0, False), (-1, True)])
def test_a_model_of_exactly_so_many_weights_is_not_over_them(
    monkeypatch: pytest.MonkeyPatch, more: int, fires: bool
) -> None:
    weights = model_weights(shape("llama-3.1-8b")).total
    monkeypatch.setattr("inference_core.placement.planner.LARGE_PARAMETERS", weights + more)
    assert ("over-30b" in rules(placed("llama-3.1-8b", "h100"))) == fires


def test_tensor_parallel_groups_stay_within_the_devices_that_nvlink_joins() -> None:
    """The same eight cards: NVLink over all of them, over two fours, and over pairs."""
    plans = {island: placed("llama-3.1-405b", "h100", devices=8, island=island, weights="fp8") for island in (8, 4, 2)}
    assert {island: (plan.mesh.tensor, plan.mesh.pipeline) for island, plan in plans.items()} == {
        8: (8, 1), 4: (4, 2), 2: (2, 3),
    }  # fmt: skip
    for island, plan in plans.items():
        [said] = [each.text for each in plan.decisions if each.rule == "tensor-parallel-within-a-node"]
        assert said.startswith(f"{island} devices joined by nvlink share every layer")
    with pytest.raises(MeshError, match="a tensor-parallel group stays within an island"):
        placed("llama-3.1-405b", "h100", devices=8, island=4, weights="fp8", mesh=Mesh(tensor=8))


def test_a_link_slower_than_pcie_gen4_makes_stages_of_what_would_be_tensor_parallel() -> None:
    """The same four cards, PCIe Gen4 against Gen3 (SPEC PX-06)."""
    fast = replace(device("l4"), link="pcie4", link_bandwidth=32e9)
    slow = replace(device("l4"), link="pcie3", link_bandwidth=16e9)
    config, workload = shape("llama-3.3-70b"), Workload(batch=4)

    tensor = place(config, Machines(device=fast, devices_per_node=4), workload, AWQ)
    stages = place(config, Machines(device=slow, devices_per_node=4), workload, AWQ)

    assert tensor.mesh == Mesh(tensor=4)
    assert stages.mesh == Mesh(pipeline=4)
    assert "link-too-slow-for-tensor-parallel" in rules(stages)
    assert "link-too-slow-for-tensor-parallel" not in rules(tensor)


def test_what_sums_over_a_link_cost_is_worked_out() -> None:
    """2 x 80 sums of 8,192 tokens x 8,192 numbers x 2 bytes; a ring of four moves 1.5 times its data: 32.2 GB."""
    plan = placed("llama-3.3-70b", "l4", devices=4, weights="awq-int4", batch=16)
    text = next(each.text for each in plan.decisions if each.rule == "tensor-parallel-within-a-node")
    assert pytest.approx(32.2e9, rel=1e-3) == 160 * 8192 * 8192 * 2 * 1.5
    assert "32.2 GB on each device's link = 1 s" in text


def test_the_ceiling_is_bandwidth_over_the_weights_that_are_read_one_after_another() -> None:
    one = placed("llama-3.1-8b", "h200", weights="bfloat16")
    assert "at most 299 tokens/s" in one.lines[-2]  # 4,800 GB/s / 16.06 GB
    two = placed("llama-3.3-70b", "l4", devices=4, nodes=2, weights="bfloat16")
    stages = sum(max(r.weight_bytes for r in two.ranks if r.stage == stage) for stage in (0, 1))
    assert f"at most {300e9 / stages:,.0f} tokens/s" in two.lines[-2]


@pytest.mark.parametrize(
    ("given", "rule", "said"),
    [
        ({"model": "llama-3.3-70b", "on": "h100", "weights": "bfloat16"}, "does-not-fit", "more or larger devices"),
        ({"model": "llama-3.3-70b", "on": "h100", "weights": "bfloat16", "host_bytes": 200 * GB}, "offload",
         "AIO does not do that"),
        ({"model": "llama-3.1-8b", "on": "p100"}, "tensor-cores", "has no tensor cores"),
        ({"model": "llama-3.1-8b", "on": "alveo-u280"}, "tensor-cores", "has no tensor cores"),
        ({"model": "llama-3.2-3b", "on": "h100", "max_watts": 60}, "power-limit", "takes 700 W; 60 W are allowed"),
        ({"model": "llama-3.2-1b", "on": "ipu-bow"}, "does-not-fit", "8,192 tokens are to fit"),
        ({"model": "llama-3.1-8b", "on": "l4", "batch": 15, "weights": "gptq-int4"}, "does-not-fit",
         "122,880 tokens are to fit .* but 121,094 do"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_names_the_rule_and_the_reason(given: Mapping[str, Any], rule: Rule, said: str) -> None:
    with pytest.raises(PlacementError, match=said) as caught:
        placed(**given)
    assert caught.value.rule == rule


def test_an_edge_device_within_its_power_is_planned_but_not_executable() -> None:
    plan = placed("llama-3.2-3b", "jetson-agx-orin", weights="awq-int4", max_watts=60)
    assert "power-limit" in rules(plan)
    assert "unsupported" in rules(plan)
    assert not plan.executable


def test_a_mesh_that_is_asked_for_is_taken_or_refused_with_the_reason() -> None:
    plan = placed("llama-3.1-8b", "l4", devices=4, weights="gptq-int4", mesh=Mesh(tensor=4))
    assert plan.mesh == Mesh(tensor=4)
    assert "asked-for" in rules(plan)
    with pytest.raises(MeshError, match="32 query heads cannot be split over 3 ranks evenly"):
        placed("llama-3.1-8b", "l4", devices=4, mesh=Mesh(tensor=3))
    with pytest.raises(MeshError, match="stays within an island"):
        placed("llama-3.1-8b", "l4", devices=2, nodes=2, mesh=Mesh(tensor=4))


def test_islands_have_to_make_up_the_machine() -> None:
    with pytest.raises(MeshError, match="a machine of 4 devices cannot be divided into islands of 3"):
        Machines(device=device("h100"), devices_per_node=4, island=3)


def test_heads_that_no_number_of_devices_divides_stay_on_one_unless_allowed() -> None:
    """SmolLM2 has 9 query heads over 3 KV heads."""
    with pytest.raises(MeshError, match="9 query heads"):
        placed("smollm2-135m", "l4", devices=2, weights="bfloat16", mesh=Mesh(tensor=2))
    plan = placed("smollm2-135m", "l4", devices=2, weights="bfloat16", mesh=Mesh(tensor=2), uneven_splits=True)
    assert [rank.kv_bytes_per_token for rank in plan.ranks] == [2 * 30 * 5 * 64 * 2, 2 * 30 * 4 * 64 * 2]
