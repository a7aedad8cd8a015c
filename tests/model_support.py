"""`python -m tests.model_support`: write docs/results/models.md, what is served where, and the test that shows it.

What works and what is refused, with the reason, is what the loaders say of tiny models (`tests.inference_core
.model_files`); what works has a test. A new architecture or format gets its rows from a row in those tables.
"""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gateway.planning.model_check import DEVICES, DeviceName, ModelCheck, check_model, engine_line
from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format.gguf_checkpoint import KINDS
from inference_core.loaders.gguf_format.gguf_header import TENSOR_KINDS
from inference_core.loaders.huggingface.hf_config import ARCHITECTURES, COMPUTATION, read_config
from inference_core.loaders.huggingface.hf_quantization import layer_format
from tests.inference_core.model_files import (
    FAMILIES,
    FORMATS,
    GGUF_FILES,
    Write,
    architecture_of,
    gguf_case,
    gguf_name,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "models.md"
_CORE = "tests/inference_core"
# By the letter under which cells of the page name it.
TESTS = {
    "L": f"{_CORE}/models/test_decoder_against_transformers.py::test_logits_equal_those_of_transformers",
    "C": f"{_CORE}/device/test_served_files.py::test_the_cpu_computes_what_the_plain_weights_do",
    "G": f"{_CORE}/device/test_served_files.py::test_a_card_computes_what_the_plain_weights_do",
    "M": f"{_CORE}/parallel/test_mesh_files.py::test_two_ranks_answer_as_one_device",
}
# What quantisers write that may be refused, as their config.json has it.
QUANTISATIONS: dict[str, dict[str, Any]] = {
    "GPTQ, 3 bits": {"quant_method": "gptq", "bits": 3, "group_size": 128},
    "AWQ, version gemv": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"},
    "compressed-tensors NVFP4": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}, "format": "nvfp4-pack-quantized"}},
    },
    "HQQ": {"quant_method": "hqq"},
    "AQLM": {"quant_method": "aqlm"},
}


@dataclass(frozen=True)
class Answer:
    """`letter`, `case`: the test of `TESTS`, and which of its cases, that shows that a device serves a model; `reason`:
    why it is refused, and what serves it instead."""

    letter: str = ""
    case: str = ""
    reason: str = ""

    @property
    def test(self) -> str:
        """The node id of the test."""
        return f"{TESTS[self.letter]}[{self.case}]" if self.letter else ""

    @property
    def cell(self) -> str:
        return f"works: `{self.letter}[{self.case}]`" if self.letter else f"refused: {self.reason}"


@dataclass(frozen=True)
class Row:
    """One model in one format; an answer for each of `DEVICES`."""

    model: str
    files: str
    answers: dict[DeviceName, Answer]

    @property
    def cells(self) -> list[str]:
        cells = [answer.cell for answer in self.answers.values()]
        # One reason for all devices is written once.
        return [self.model, self.files, *(cells if len(set(cells)) > 1 else [cells[0], '"', '"'])]


def architecture_rows() -> list[Row]:
    """Every architecture that a loader knows, in safetensors and in GGUF files."""
    rows = []
    for architecture in ARCHITECTURES:
        names = [name for name in FAMILIES if architecture_of(name) == architecture]
        if not names:
            raise AssertionError(f"{architecture} is loaded, but tests have no model of it: add it to ARCHITECTURES")
        cases = {"cpu": ("L", f"{names[0]}-native"), "gpu": ("G", names[0]), "mesh": ("M", names[0])}
        rows.append(_row(architecture, "safetensors", FAMILIES[names[0]], cases))
    for architecture in ARCHITECTURES:
        stated = gguf_name(architecture)
        files = "GGUF" if stated == architecture else f"GGUF, as `{stated}`"
        rows.append(_row(architecture, files, GGUF_FILES[architecture], _file_cases(f"GGUF {gguf_case(architecture)}")))
    return rows


def format_rows() -> list[Row]:
    """Every format of the linear layers, of a Llama, and those that are refused whatever the model."""
    rows = [_row("llama", name, write, _file_cases(name)) for name, write in FORMATS.items()]
    for name, config in QUANTISATIONS.items():
        try:
            layer_format(Path("config.json"), config)
        except ModelFileError as error:
            rows.append(_refused(name, str(error), engine_line("safetensors")))
    others = [name for name, _, _ in TENSOR_KINDS.values() if name not in KINDS]
    return [*rows, _refused(f"GGUF {', '.join(others)}", f"read are {', '.join(KINDS)}", engine_line("gguf"))]


def other_architectures() -> str:
    """What the loader says of any other `model_type`."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text('{"model_type": "OTHER"}')
        try:
            read_config(Path(folder))
        except ModelFileError as error:
            return str(error).replace(f"{folder}/", "")
    raise AssertionError("a model_type that nobody has was read")


def _file_cases(name: str) -> dict[DeviceName, tuple[str, str]]:
    return {"cpu": ("C", name), "gpu": ("G", name), "mesh": ("M", name)}


def _row(model: str, files: str, write: Write, cases: dict[DeviceName, tuple[str, str]]) -> Row:
    found, path = _checked(write)
    answers = {}
    for one in found.devices:
        if one.refused is None:
            answers[one.device] = Answer(*cases[one.device])
        else:
            short = one.refused.replace(str(path), "").lstrip("/: ")
            answers[one.device] = Answer(reason=_with_engine(short, found.engine))
    return Row(model, files, answers)


def _refused(files: str, reason: str, engine: str) -> Row:
    return Row("any", files, dict.fromkeys(DEVICES, Answer(reason=_with_engine(reason, engine))))


@cache
def _checked(write: Write) -> tuple[ModelCheck, Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "model")
        return check_model(str(path)), path


def _with_engine(reason: str, engine: str) -> str:
    """A reason in one cell, with the line of a catalogue that serves the model, unless it says so itself."""
    text = " ".join(reason.split()).replace("|", "\\|")
    return text if "engine =" in text else f"{text}; `{engine}`"


def page() -> str:
    """The whole page."""
    head = ["model", "files", "CPU", "GPU", "mesh"]
    settings = [[f"`{key}`", ", ".join(read) or "none"] for key, read in COMPUTATION.items()]
    others = other_architectures().replace(". An", f". Of GGUF files: `{engine_line('gguf')}`. An")
    return "\n".join(
        [
            "# Which models are served where",
            "",
            "Written by `python -m tests.model_support` from what the loaders say of a tiny model of every kind.",
            "`aio models check` says the same of any model before it is downloaded. What works names its test:",
            "",
            *(f"- {letter}: `{test}`" for letter, test in TESTS.items()),
            "",
            "G and M compute by the kernels' references on the CPU, M on two ranks; `make test-gpu` runs the kernels.",
            "Over HTTP: `tests/gateway/inference/api/test_model_families.py`.",
            "",
            "## Architectures",
            "",
            *_table(head, [row.cells for row in architecture_rows()]),
            "",
            f"Any other: {others}.",
            "",
            "## Formats of weights",
            "",
            *_table(head, [row.cells for row in format_rows()]),
            "",
            "## Settings that change the computation",
            "",
            "`config.json` may set these for the architectures named; any other model with one is refused by its name.",
            "",
            *_table(["setting", "read for"], settings),
            "",
        ]
    )


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def named_tests() -> list[str]:
    """The node ids of all answers that work."""
    rows = [*architecture_rows(), *format_rows()]
    return [answer.test for row in rows for answer in row.answers.values() if answer.letter]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
