"""The sources' checklist of best practice (SPEC CK-01 to CK-09): every item with its evidence and result.

An item is backed by tests, by measurements, or by both. `run_items` runs the tests and writes a record with the commit
and the day; `checklist` only reads that record, so a page can show it quickly. Items never run are "not measured".
"""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

Status = Literal["pass", "fail", "not measured"]
RECORD = "checklist.json"
_RUN_SECONDS = 1800


class ChecklistItem(msgspec.Struct, frozen=True, kw_only=True):
    """`tests`: files under tests/; `measurements`: files of docs/measurements; `gap`: what no evidence covers."""

    row: str
    area: str
    item: str
    tests: tuple[str, ...] = ()
    measurements: tuple[str, ...] = ()
    gap: str = ""

    @property
    def key(self) -> str:
        """Stable name of the item in a record."""
        return f"{self.row} {self.item}"


class EvidenceRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an item's tests: pytest's exit status and last line, at a commit, on a day (UTC)."""

    passed: bool
    summary: str
    commit: str
    day: str


class CheckedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item, its status and a summary of its evidence."""

    item: ChecklistItem
    status: Status
    evidence: str


ITEMS = (
    ChecklistItem(
        row="CK-01",
        area="hardware",
        item="cards with tensor cores and memory for the model",
        tests=("inference_core/kv_cache/test_memory_plan.py", "inference_core/placement/test_planner.py"),
    ),
    ChecklistItem(
        row="CK-01",
        area="hardware",
        item="NVLink or PCIe 4 between cards is planned with",
        tests=("inference_core/placement/test_hardware.py",),
    ),
    ChecklistItem(
        row="CK-02",
        area="model",
        item="4- or 8-bit weights",
        tests=("inference_core/quantization/test_awq.py", "inference_core/quantization/test_smoothquant.py"),
    ),
    ChecklistItem(
        row="CK-02",
        area="model",
        item="flash attention and fused kernels",
        tests=(
            "inference_core/attention/test_attention_backends.py",
            "inference_core/triton_kernels/test_rope_and_write.py",
        ),
    ),
    ChecklistItem(
        row="CK-02",
        area="model",
        item="a distilled model for prompts below 30 tokens",
        gap="the fast path sends them to a named tier (gateway/routing/test_edge_path.py); no student was distilled",
    ),
    ChecklistItem(
        row="CK-03",
        area="serving",
        item="dynamic batching with a delay of at most 5 ms",
        tests=("inference_core/engine/test_batching.py",),
    ),
    ChecklistItem(
        row="CK-03",
        area="serving",
        item="tokens over SSE and WebSocket",
        tests=("gateway/api/test_chat_stream.py", "gateway/api/test_chat_socket.py"),
    ),
    ChecklistItem(
        row="CK-03",
        area="serving",
        item="speculation where it helps",
        tests=("inference_core/speculation/test_draft_lengths.py", "inference_core/speculation/test_step_costs.py"),
        measurements=("draft.jsonl", "lookup.jsonl"),
    ),
    ChecklistItem(
        row="CK-04",
        area="scheduling",
        item="preferred batch sizes follow the traffic",
        tests=("inference_core/scheduling/test_preferred_sizes.py",),
    ),
    ChecklistItem(
        row="CK-04",
        area="scheduling",
        item="priority queues for traffic under an agreement",
        tests=("inference_core/engine/test_waiting_queue.py", "gateway/cores/test_batch_priority.py"),
    ),
    ChecklistItem(
        row="CK-04",
        area="scheduling",
        item="batching by token",
        tests=("inference_core/engine/test_scheduler.py", "inference_core/engine/test_speculation.py"),
    ),
    ChecklistItem(
        row="CK-05",
        area="scale",
        item="stateless workers on a durable queue",
        tests=("gateway/jobs/test_workers_of_batches.py", "gateway/jobs/test_job_queue.py"),
    ),
    ChecklistItem(
        row="CK-05",
        area="scale",
        item="replicas follow utilisation, queue depth and a forecast",
        tests=("gateway/fleet/test_hpa.py", "gateway/fleet/test_simulation.py", "gateway/fleet/test_targets.py"),
    ),
    ChecklistItem(
        row="CK-05",
        area="scale",
        item="edge first, below 20 ms",
        gap="no edge device was measured; `benchmarks edge` can (docs/routing.md), the planner counts edge nodes",
    ),
    ChecklistItem(
        row="CK-06",
        area="observability",
        item="latency histograms with p50, p95 and p99",
        tests=("gateway/telemetry/test_metric_families.py", "gateway/telemetry/test_core_metrics.py"),
    ),
    ChecklistItem(
        row="CK-06", area="observability", item="traces from end to end", tests=("gateway/telemetry/test_traces.py",)
    ),
    ChecklistItem(
        row="CK-06",
        area="observability",
        item="alerts on memory, throttling and cost",
        tests=(
            "gateway/telemetry/test_alerts.py",
            "gateway/telemetry/test_alert_rules_file.py",
            "gateway/telemetry/test_gpus.py",
        ),
    ),
    ChecklistItem(
        row="CK-07",
        area="validation",
        item="load tests with bursts",
        tests=("gateway/bench/test_bench_workload.py",),
        measurements=("sweep.jsonl", "peers.jsonl"),
    ),
    ChecklistItem(
        row="CK-07",
        area="validation",
        item="ROUGE-L and BLEU after quantising",
        tests=("quality/comparison/test_text_overlap.py", "quality/comparison/test_model_comparison.py"),
    ),
    ChecklistItem(row="CK-07", area="validation", item="A/B tests", tests=("quality/rollout/test_experiments.py",)),
    ChecklistItem(
        row="CK-08",
        area="order",
        item="one technique at a time, kept only if it pays",
        tests=("benchmarks/core/test_ablation.py",),
        measurements=("ablation.jsonl",),
    ),
    ChecklistItem(
        row="CK-09",
        area="takeaways",
        item="paging and continuous batching always on",
        tests=("inference_core/engine/test_block_pool.py", "inference_core/engine/test_core.py"),
    ),
    ChecklistItem(
        row="CK-09",
        area="takeaways",
        item="requests routed by what they need",
        tests=("classifier/policy/test_policy.py", "gateway/api/test_routing_over_http.py"),
    ),
    ChecklistItem(
        row="CK-09",
        area="takeaways",
        item="TTFT, tokens per second and p99 are watched",
        tests=("gateway/telemetry/test_service_levels.py",),
    ),
)


def checklist(measurements: Path) -> list[CheckedItem]:
    """Return every item, from the folder `measurements`: a record of test runs, and measurements. Runs nothing."""
    record = read_record(measurements)
    return [_checked(item, record.get(item.key), measurements) for item in ITEMS]


def read_record(measurements: Path) -> dict[str, EvidenceRun]:
    """Return the test runs by item; empty without a record. Raises `msgspec.ValidationError` for another file."""
    path = measurements / RECORD
    return msgspec.json.decode(path.read_bytes(), type=dict[str, EvidenceRun]) if path.is_file() else {}


def write_record(measurements: Path, runs: dict[str, EvidenceRun]) -> None:
    """Save the runs for `checklist`, in addition to the recorded ones."""
    kept = read_record(measurements) | runs
    (measurements / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def run_items(repository: Path, items: tuple[ChecklistItem, ...] = ITEMS) -> Iterator[tuple[str, EvidenceRun]]:
    """Run the tests of `items` from a checkout, a pytest process each; yield an item's key and its run when it ends."""
    commit = _commit(repository)
    day = datetime.now(UTC).date().isoformat()
    for item in items:
        if item.tests:
            yield item.key, _run(repository, item, commit, day)


def _run(repository: Path, item: ChecklistItem, commit: str, day: str) -> EvidenceRun:
    paths = [str(Path("tests") / test) for test in item.tests]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *paths]
    try:
        done = subprocess.run(  # noqa: S603 - our own tests
            command, cwd=repository, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return EvidenceRun(passed=False, summary=f"not done after {_RUN_SECONDS} s", commit=commit, day=day)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return EvidenceRun(passed=done.returncode == 0, summary=lines[-1] if lines else "no output", commit=commit, day=day)


def _commit(repository: Path) -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def _checked(item: ChecklistItem, run: EvidenceRun | None, measurements: Path) -> CheckedItem:
    missing = [name for name in item.measurements if not (measurements / name).is_file()]
    if item.gap:
        return CheckedItem(item=item, status="not measured", evidence=item.gap)
    evidence = [f"tests/{test}" for test in item.tests] + [
        f"{name}{' (missing)' if name in missing else ''}" for name in item.measurements
    ]
    if run is None:
        return CheckedItem(item=item, status="not measured", evidence="; ".join([*evidence, "tests not run"]))
    evidence.append(f"{run.summary} at {run.commit}, {run.day}")
    status: Status = "fail" if not run.passed else "not measured" if missing else "pass"
    return CheckedItem(item=item, status=status, evidence="; ".join(evidence))
