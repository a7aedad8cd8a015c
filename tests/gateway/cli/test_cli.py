"""The command line: fast to ask, clear when wrong, JSON for programs."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from classifier.decision import Decision, PolicyInputs, Prediction
from classifier.policy.decide import decide
from gateway.base.settings import Settings
from gateway.cli.planning.models import placement_lines
from quality.records.record import Record, Timings
from quality.retraining.retrain import RetrainResult
from quality.store.queries import insert_records
from tests.gateway.in_process_cli import aio
from tests.quality.store.records import make_embedding
from tests.support.database import migrated
from tiers.catalog.load import load_catalog


def status_of(code: str) -> int:
    """The exit status of a new process that runs `code`; it prints what was wrong."""
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_every_command_has_a_help_text() -> None:
    listed = aio("--help")
    assert listed.exit_code == 0
    for command in ("serve", "route", "models", "kv-calc", "migrate", "retrain", "classifier", "bench", "new-key"):
        assert command in listed.output
    for path in (*((c,) for c in ("serve", "route", "models", "kv-calc", "migrate", "retrain")), ("bench", "core")):
        shown = aio(*path, "--help")
        assert shown.exit_code == 0
        assert len(shown.output.splitlines()) > 5
    assert "--data" in aio("classifier", "train", "--help").output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from gateway.cli import main; main(['--help'], standalone_mode=False); "
        "heavy = {'torch', 'numpy', 'litestar', 'sqlalchemy', 'uvicorn'} & set(sys.modules); sys.exit(len(heavy))"
    )
    assert status_of(code) == 0


def test_options_import_nothing_that_starts_threads() -> None:
    code = "import sys, gateway.cli.serving.serve; sys.exit('numpy' in sys.modules)"
    assert status_of(code) == 0


def test_numpy_delays_no_core_that_loads_in_a_process_of_its_own() -> None:
    code = (
        "import sys; from tiers.catalog.load import load_catalog; "
        "from gateway.runtime.cores.core_clients import core_clients; "
        "from gateway.base.settings import Settings; core_clients(load_catalog('laptop'), Settings()); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert status_of(code) == 0


def test_checking_a_machine_imports_no_format_that_its_models_do_not_have(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from tiers.catalog.load import load_catalog; from gateway.base.settings import Settings; "
        "from gateway.runtime.cores.next_core import require_machine; "
        f"asyncio.run(require_machine(load_catalog('laptop'), Settings(cache_dir={str(tmp_path)!r}), ['cpu'])); "
        "sys.exit('inference_core.loaders.huggingface.hf_checkpoint' in sys.modules)"
    )
    assert status_of(code) == 0


def test_the_documented_settings_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "settings.md").read_text()
    assert aio("settings", "--markdown").output.strip() in page


def test_settings_are_shown_with_their_variables_and_defaults() -> None:
    shown = {one["variable"]: one for one in json.loads(aio("settings", "--json").output)}
    assert shown["AIO_PORT"]["default"] == "8080"
    assert len(shown) == len(Settings.__struct_fields__)


def test_a_gateway_process_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from gateway.app import create_app; from gateway.base.settings import Settings; "
        f"create_app(Settings(role='gateway', data_dir={str(tmp_path)!r})); "
        "heavy = {'torch', 'transformers', 'sklearn', 'scipy'} & set(sys.modules); "
        "print(heavy); sys.exit(len(heavy))"
    )
    assert status_of(code) == 0


def test_route_shows_tier_probabilities_prices_and_reason(tmp_path: Path) -> None:
    shown = aio("route", "Why is the sky blue?", "--data-dir", str(tmp_path))
    assert shown.exit_code == 0
    assert shown.output.startswith("tier ")
    for part in ("P(good enough)", "predicted cost", "smollm2-int4", "quality target", "CPU time"):
        assert part in shown.output


def test_route_in_json_can_be_steered(tmp_path: Path) -> None:
    def tier(*options: str) -> int:
        shown = aio(
            "route",
            "A shop sells 12 pens a day at $2 each. What does it earn in 5 days?",
            "--json",
            "--data-dir",
            str(tmp_path),
            *options,
        )
        decision = json.loads(shown.output)["decision"]
        assert len(decision["inputs"]["prediction"]["p_ok"]) == len(decision["inputs"]["costs"]) == 4
        return int(decision["tier"])

    assert tier("--quality", "1") == 4
    assert tier("--quality", "0") <= 2
    assert tier("--min-tier", "3", "--quality", "0") == 3
    assert tier("--max-cost", "0.0005", "--quality", "1") <= 2


def test_a_quality_target_is_given_by_name_or_number_and_anything_else_is_refused(tmp_path: Path) -> None:
    def target(quality: str) -> float:
        shown = aio("route", "Hi", "--quality", quality, "--json", "--data-dir", str(tmp_path))
        assert shown.exit_code == 0, shown.output
        return float(json.loads(shown.output)["decision"]["inputs"]["quality_target"])

    assert (target("careful"), target("0.4")) == (0.9, 0.4)
    refused = aio("route", "Hi", "--quality", "frugal", "--data-dir", str(tmp_path))
    assert refused.exit_code == 2
    assert "neither economy, balanced or careful nor a number from 0 to 1" in refused.output


def test_estimated_prices_are_marked_by_the_commands(tmp_path: Path) -> None:
    catalog = tmp_path / "short.toml"
    entries = (f'[[tiers]]\nname = "{name}"\nurl = "http://localhost:1/v1"\n' for name in ("small-3b", "large-70b"))
    catalog.write_text("".join(entries))
    options = ("--catalog", str(catalog), "--data-dir", str(tmp_path))
    shown = aio("models", *options)
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("(estimated by size)") == 2
    assert aio("route", "Hi", *options).output.count(" estimated") == 2


def test_route_replays_a_recorded_decision(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    decision = decide(
        PolicyInputs(
            prediction=Prediction(p_ok=[0.5, 0.9, 0.95, 1.0], kind="measured", novelty=0.2, classifier_version="v1"),
            costs=[0.0001, 0.0005, 0.003, 0.01],
            quality_target=0.9,
            tau=0.9,
        )
    )
    asyncio.run(_store(settings, decision))
    shown = aio("route", "--replay", "chatcmpl-1", "--json", "--data-dir", str(tmp_path))
    assert shown.exit_code == 0, shown.output
    replay = json.loads(shown.output)
    assert replay["same"] is True
    assert replay["replayed"]["tier"] == 2
    # The catalogue of this folder is another one than the server's.
    models = [
        line[2:].split()[1]
        for line in aio("route", "--replay", "chatcmpl-1", "--data-dir", str(tmp_path)).output.splitlines()[3:7]
    ]
    assert models == ["?", "m", "?", "?"]
    missing = aio("route", "--replay", "chatcmpl-2", "--data-dir", str(tmp_path))
    assert missing.exit_code == 1
    assert "chatcmpl-2" in missing.output
    vectors = aio("route", "--replay", "embd-1", "--data-dir", str(tmp_path))
    assert (vectors.exit_code, "not routed" in vectors.output) == (1, True)


async def _store(settings: Settings, decision: Decision) -> None:
    async with migrated(settings.database) as engine:
        record = Record(
            request_id="chatcmpl-1", created_at=1.0, api="chat", requested_model="auto", key_id=None, stream=False,
            status="ok", http_status=200, error=None, decision=decision, tier=2, model="m", attempts=[], messages=None,
            answer=None, reasoning=None, finish_reason="stop", prompt_tokens=1, completion_tokens=1, cached_tokens=0,
            reasoning_tokens=0, cost_usd=0.0, baseline_cost_usd=0.0,
            timings=Timings(route_ms=1, ttft_ms=1, e2e_ms=1, overhead_ms=1),
        )  # fmt: skip
        async with engine.begin() as connection:
            await insert_records(connection, [record, make_embedding("embd-1")])


def test_route_wants_a_prompt_or_an_id() -> None:
    assert aio("route").exit_code == 2
    assert aio("route", "x", "--replay", "y").exit_code == 2


def test_kv_calc_reproduces_the_70b_example() -> None:
    shape = ("--layers", "80", "--heads", "64", "--kv-heads", "8", "--length", "8192")
    cards = ("--weights-gb", "40", "--device-gb", "24", "--devices", "4")
    shown = aio("kv-calc", *shape, *cards, "--batch", "1", "--json")
    result = json.loads(shown.output)
    assert result["bytes_per_token"] == 327_680
    assert result["plan"]["kv_tokens"] == pytest.approx(141_000, rel=0.01)
    refused = aio("kv-calc", *shape, *cards, "--batch", "32")
    assert refused.exit_code == 1
    assert "does not fit" in refused.output
    assert aio("kv-calc").exit_code == 2


def test_kv_calc_places_a_known_model_on_known_devices_and_says_why() -> None:
    options = ("kv-calc", "--shape", "llama-3.3-70b", "--weights", "awq-int4", "--device", "l4", "--devices", "4")
    plan = json.loads(aio(*options, "--batch", "16", "--json").output)
    assert (plan["mesh"], plan["replicas"]) == ({"tensor": 4, "pipeline": 1}, 1)
    assert (plan["kv_tokens"], plan["max_sequences"]) == (142_286, 17)
    shown = aio(*options, "--batch", "16").output
    for part in (
        "tensor-parallel-within-a-node: 4 devices",
        "ranks 0 to 3, each (stage 0, shards 0 to 3)",
        "17 at the same time",
    ):
        assert part in shown
    refused = aio(*options, "--batch", "64")
    assert refused.exit_code == 1
    assert "does-not-fit: 524,288 tokens are to fit" in refused.output


def test_models_shows_where_the_models_of_a_catalogue_are_placed_and_why() -> None:
    shown = aio("models", "--catalog", "datacenter")
    assert shown.exit_code == 0
    for part in ("gpu-70b: 4 x 24.0 GB x 0.9 = 86.4 GB usable", "4 tensor x 1 pipeline ranks were asked for",
                 "its draft llama-3.1-8b-draft (awq-int4)", "and its draft's: 32,768 bytes, 114,688 in all",
                 "121,094 tokens / 8,192 = 14"):  # fmt: skip
        assert part in shown.output
    assert "tokens if one model uses all of it" in aio("models", "--catalog", "laptop").output


def test_a_group_whose_models_name_no_shape_is_not_placed() -> None:
    (_, group) = load_catalog("datacenter").gpu_groups
    shapeless = msgspec.structs.replace(
        group, models=[msgspec.structs.replace(model, shape=None) for model in group.models]
    )
    assert list(placement_lines(shapeless)) == [
        "start within 500 ms: 10.59 GiB (11.37 GB) of weights / 0.5 s = 22.7 GB/s"
    ]


def test_models_and_kv_calc_say_how_fast_weights_have_to_move_for_a_start_in_half_a_second() -> None:
    groups = json.loads(aio("models", "--catalog", "datacenter", "--json").output)["groups"]
    for group, needed in zip(groups, ("11.5", "22.8"), strict=True):
        line = group["placement"][-1]
        assert line.startswith("start within 500 ms: ")
        assert f"/ 0.5 s = {needed} GB/s; pcie4 moves 32 GB/s one way into each device: enough" in line
    assert aio("models", "--catalog", "laptop").output.count("start within 500 ms: ") == 2
    # A 70B in 16 bits: more than this link moves to 8 cards. NVLink joins cards, and no host.
    options = ("kv-calc", "--shape", "llama-3.3-70b", "--weights", "bfloat16", "--devices", "8", "--json")
    large = json.loads(aio(*options, "--device", "l4").output)
    seconds = large["ranks"][0]["weight_bytes"] / 32e9
    assert large["lines"][-1].endswith(f"pcie4 moves 32 GB/s one way into each device: at best {seconds:.2g} s")
    assert json.loads(aio(*options, "--device", "h100").output)["lines"][-1].endswith("GB/s")


def test_migrate_can_be_run_again(tmp_path: Path) -> None:
    first = json.loads(aio("migrate", "--json", "--data-dir", str(tmp_path)).output)
    again = json.loads(aio("migrate", "--json", "--data-dir", str(tmp_path)).output)
    assert first["before"] is None
    assert again["before"] == again["after"] == first["after"]


def test_migrate_takes_the_schema_back_for_an_earlier_version(tmp_path: Path) -> None:
    folder = ("--json", "--data-dir", str(tmp_path))
    newest = json.loads(aio("migrate", *folder).output)["after"]
    back = json.loads(aio("migrate", "--to", "0041", *folder).output)
    assert back == {"before": newest, "after": "0041"}
    assert json.loads(aio("migrate", "--to", newest, *folder).output) == {"before": "0041", "after": newest}
    refused = aio("migrate", "--to", "base", *folder)
    assert refused.exit_code == 1
    assert "'base'" in refused.output


def test_retraining_prints_the_calibration_slope_of_each_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RT-06."""
    calibration = [{"tier": 1, "rows": 160, "slope": [0.974, 0.8, 1.148]}, {"tier": 2, "rows": 60, "slope": None}]
    made = RetrainResult(
        run_id="r", outcome="refused", reason="x", incumbent="v1", candidate="v2",
        judgement={"calibration": calibration},
    )  # fmt: skip
    monkeypatch.setattr("gateway.cli.classifier.training._retrain", lambda *_, **__: made)
    shown = aio("retrain", "--data-dir", tmp_path).output
    assert "tier 1: calibration slope 0.97 [0.80, 1.15] (wanted: 0.9 to 1.1) on 160 rows" in shown
    assert "tier 2: calibration slope not determined" in shown


def test_retraining_without_outcomes_says_that_there_is_nothing_new(tmp_path: Path) -> None:
    shown = aio("retrain", "--json", "--data-dir", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["outcome"] == "nothing new"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("models", "--catalog", "nowhere"), "nowhere"),
        (("migrate", "--database-url", "mysql://x/y"), "mysql"),
        (("serve", "--port", "70000"), "AIO_PORT"),
        (("serve", "--catalog", "nowhere"), "nowhere"),
        (("retrain", "--rollback"), "current version"),
        (("bench", "core", "--rounds", "0"), "rounds"),
        (("bench", "core", "--set", "prefill_chunk=many"), "--set takes KNOB=VALUE"),
        (("bench", "core", "--set", "prefil_chunk=64"), "prefil_chunk is no knob"),
        (("bench", "serve", "--output-tokens", "0"), "--output-tokens"),
        (("bench", "serve", "--catalog", "laptop"), "start `aio serve` with the catalogue"),
        (("bench", "serve", "--url", "http://127.0.0.1:9"), "warm-up"),
        (("bench", "sweep", "--levels", "1", "2"), "run: python -m benchmarks sweep"),
        (("kv-calc", "--model", "nowhere.gguf"), "nowhere.gguf"),
        (("kv-calc", "--shape", "llama-9"), "known are smollm2-135m"),
        (("kv-calc", "--shape", "llama-3.1-8b", "--device", "l5"), "known are l4"),
        (("kv-calc", "--shape", "llama-3.1-8b", "--device", "l4", "--weights", "int3"), "known are float32"),
        (("kv-calc", "--layers", "2", "--heads", "2", "--device", "l4"), "give its whole shape"),
        (("kv-calc", "--shape", "llama-3.1-8b", "--model", "x.gguf"), "name different models"),
        (("kv-calc", "--catalog", "laptop"), "`aio models --catalog NAME`"),
        (("kv-calc", "--shape", "llama-3.1-8b", "--device", "l4", "--tensor", "2"), "do not fit on 1 devices"),
    ],
)
def test_a_mistake_is_explained_without_a_traceback(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    folder = ("--data-dir", str(tmp_path)) if arguments[0] in ("migrate", "serve", "retrain") else ()
    shown = aio(*arguments, *folder)
    assert shown.exit_code in (1, 2)
    assert said in shown.output
    assert "Traceback" not in shown.output


def test_models_shows_files_and_memory() -> None:
    shown = json.loads(aio("models", "--json").output)
    assert [file["name"] for file in shown["files"]] == ["smollm2-int4", "smollm2-bf16"]
    assert all(file["problem"] is None and file["weight_bytes"] > 10**7 for file in shown["files"])
    assert "fits" in " ".join(shown["memory"])


def test_a_new_key_is_shown_with_its_setting() -> None:
    made = json.loads(aio("new-key", "ann", "--json").output)
    assert made["setting"].startswith("ann=sha256:")
    assert made["key"] not in made["setting"]


def test_a_group_can_be_named_for_a_core_process_only() -> None:
    refused = aio("serve", "--group", "cpu")
    assert refused.exit_code == 2
    assert "--group cpu goes with --role core" in refused.output


def test_a_gateway_whose_chats_are_queued_starts_no_cores_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIO_CHAT_QUEUE", "put")
    refused = aio("serve", "--cluster", "127.0.0.1:1", "--data-dir", str(tmp_path))
    assert refused.exit_code == 2
    assert "--cluster would start unused cores" in refused.output


def test_models_shows_gpu_groups_with_their_memory_and_what_this_machine_lacks_for_them() -> None:
    shown = aio("models", "--catalog", "datacenter")
    assert shown.exit_code == 0, shown.output
    for part in (
        "GPU group gpu-8b",
        "gpu-70b: 4 x 24.0 GB x 0.9 = 86.4 GB usable",
        "= 40.9 GB for keys and values",
    ):
        assert part in shown.output
    groups = json.loads(aio("models", "--catalog", "datacenter", "--json").output)["groups"]
    assert [(group["name"], group["cards"]) for group in groups] == [("gpu-8b", [0]), ("gpu-70b", [1, 2, 3, 4])]
    assert all("needs" in group["problems"][0] or "missing" in group["problems"][0] for group in groups)
