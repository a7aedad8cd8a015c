"""A tier's model described for Triton: its published protobuf parses our knobs (GW-14)."""

import importlib.metadata
import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.gateway.in_process_cli import aio
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog, parse_catalog
from tiers.dialects.triton_config import Instances, triton_files
from tiers.errors import CatalogError

COMPOSE_CATALOGUE = Path(__file__).parents[3] / "deploy" / "compose" / "triton.toml"
text_format = pytest.importorskip("google.protobuf.text_format")


@cache
def model_config() -> ModuleType:
    """Triton's `model_config.proto` as its own client has it compiled, without the gRPC that the client needs."""
    distribution = importlib.metadata.distribution("tritonclient")
    path = next(f for f in distribution.files or [] if str(f).endswith("tritonclient/grpc/model_config_pb2.py"))
    spec = importlib.util.spec_from_file_location("model_config_pb2", str(distribution.locate_file(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(text: str) -> Any:
    """As Triton reads it: a field that the protobuf lacks is an error."""
    return text_format.Parse(text, model_config().ModelConfig())


def catalog_with(knobs: dict[str, Any]) -> Catalog:
    catalog = load_catalog("laptop")
    table: dict[str, Any] = {
        "name": "knobs",
        "core": {"models": [{"name": "m", "path": "m.gguf", "compute": "bfloat16"}], "knobs": knobs},
        "tiers": [
            {
                "number": tier.number,
                "name": tier.name,
                "class": tier.tier_class.value,
                "model": "m",
                "price": {"input_usd_per_million": 10.0**tier.number, "output_usd_per_million": 10.0**tier.number},
                "objective": {"ttft_ms": 1000, "itl_ms": 100},
                "expected_answer_tokens": 200,
                "mean_latency_ms": 1000,
                "max_tokens": 512,
            }
            for tier in catalog.tiers
        ],
    }
    return parse_catalog(table, "knobs")


def test_default_knobs_are_batches_of_64_after_2_ms() -> None:
    config = parsed(triton_files(catalog_with({}), 1, "python", Instances())["m/config.pbtxt"])
    assert (config.name, config.max_batch_size) == ("m", 64)
    assert list(config.dynamic_batching.preferred_batch_size) == [8, 16, 32, 64]
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 1000


def test_the_catalogues_knobs_parse_back_equal() -> None:
    knobs = {"max_num_seqs": 48, "preferred_batch_sizes": [24, 48], "max_queue_delay_ms": 0.5, "max_waiting": 200}
    config = parsed(triton_files(catalog_with(knobs), 3, "python", Instances())["m/config.pbtxt"])
    batching = config.dynamic_batching
    assert config.max_batch_size == knobs["max_num_seqs"]
    assert list(batching.preferred_batch_size) == knobs["preferred_batch_sizes"]
    assert batching.max_queue_delay_microseconds == 500
    assert batching.default_queue_policy.max_queue_size == knobs["max_waiting"]


def test_no_preferred_batch_is_larger_than_the_largest() -> None:
    config = parsed(triton_files(catalog_with({"max_num_seqs": 20}), 1, "python", Instances())["m/config.pbtxt"])
    assert list(config.dynamic_batching.preferred_batch_size) == [8, 16]


def test_tensors_are_those_that_the_remote_kind_fills() -> None:
    config = parsed(triton_files(catalog_with({}), 1, "python", Instances())["m/config.pbtxt"])
    inputs = {tensor.name: tensor for tensor in config.input}
    assert inputs["text_input"].data_type == model_config().TYPE_STRING
    assert not inputs["text_input"].optional
    assert inputs["temperature"].optional
    assert inputs["seed"].data_type == model_config().TYPE_UINT64
    assert config.output[0].name == "text_output"
    assert config.model_transaction_policy.decoupled


def test_instances_are_replicas_on_each_gpu() -> None:
    config = parsed(triton_files(catalog_with({}), 1, "python", Instances(count=2, gpus=[0, 1]))["m/config.pbtxt"])
    (group,) = config.instance_group
    assert (group.count, list(group.gpus)) == (2, [0, 1])
    assert group.kind == model_config().ModelInstanceGroup.KIND_GPU


def test_a_vllm_engine_gets_the_groups_plan_and_knobs() -> None:
    files = triton_files(load_catalog("datacenter"), 3, "vllm", Instances())
    config = parsed(files["llama-3.3-70b-awq/config.pbtxt"])
    assert config.backend == "vllm"
    # Its own engine batches: the backend refuses a batch size, and Triton's batcher stays out of its way.
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert config.instance_group[0].kind == model_config().ModelInstanceGroup.KIND_MODEL
    arguments = json.loads(files["llama-3.3-70b-awq/1/model.json"])
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (4, 1)
    assert arguments["max_model_len"] == 8192
    assert arguments["max_num_seqs"] == 256


def test_a_remote_tier_has_the_name_and_context_of_its_server_and_the_given_weights() -> None:
    files = triton_files(load_catalog(str(COMPOSE_CATALOGUE)), 4, "vllm", Instances(), "/weights/large")
    arguments = json.loads(files["llama-3.1-8b/1/model.json"])
    assert (arguments["model"], arguments["max_model_len"]) == ("/weights/large", 8192)


def test_settings_that_a_backend_does_not_support_are_refused() -> None:
    with pytest.raises(CatalogError, match="places its own engine"):
        triton_files(load_catalog("datacenter"), 3, "vllm", Instances(gpus=[0]))
    with pytest.raises(CatalogError, match="give --weights"):
        triton_files(load_catalog(str(COMPOSE_CATALOGUE)), 4, "vllm", Instances())
    with pytest.raises(CatalogError, match="--gpus goes with --kind gpu"):
        triton_files(catalog_with({}), 1, "python", Instances(kind="cpu", gpus=[0]))


def test_the_command_writes_a_model_repository(tmp_path: Path) -> None:
    arguments = ["triton-config", "--catalog", "datacenter", "--tier", "2"]
    done = aio(*arguments, "--backend", "vllm", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"llama-3.1-8b-int4/config.pbtxt", "llama-3.1-8b-int4/1/model.json"}
    printed = CliRunner().invoke(main, arguments)
    assert parsed(printed.output).max_batch_size == 256
    refused = aio(*arguments, "--gpus", "first")
    assert refused.exit_code == 2
    assert "--gpus" in refused.output
