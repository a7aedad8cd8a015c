"""Packages that a user installs are imported by the shipped packages, in the roles given for them (SPEC FR-02)."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ("gateway", "quality", "classifier", "tiers", "inference_core", "migrations")
# Extras that no running product imports from.
FOR_DEVELOPMENT = ("clients", "dev")
# Where a package is not imported under its own name.
IMPORTED_AS = {
    "argon2-cffi": "argon2",
    "genai-prices": "genai_prices",
    "google-auth": "google.auth",
    "huggingface-hub": "huggingface_hub",
    "nvidia-ml-py": "pynvml",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "phonenumberslite": "phonenumbers",
    "presidio-analyzer": "presidio_analyzer",
    "prometheus-client": "prometheus_client",
    "python-stdnum": "stdnum",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
# Parts of the interfaces of jsonschema and of the OTLP exporter; plots of simulated fleets need the packages for
# development.
NOT_REQUIRED = {"matplotlib", "referencing", "requests"}
# The nine packages of the requirement, each with a folder whose code is made of it.
ROLES = {
    "litestar": "gateway/inference/api",
    "httpx": "tiers/remote",
    "torch": "inference_core/models",
    "transformers": "classifier/encoders",
    "sklearn": "classifier/training",
    "redis": "gateway/base/stores",
    "sqlalchemy": "quality/store",
    "opentelemetry.sdk": "gateway/telemetry",
    "pytest": "tests",
}

_MODULE_NAME = re.compile(r"(?:\w+\+)?([a-z]\w*(?:\.\w+)*)")


@cache
def imports_and_names_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The modules that a file's statements import, by their full names; and its strings by which a module may be
    loaded: its name, or that of a database's driver."""
    imports: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            imports.update({node.module, *(f"{node.module}.{name.name}" for name in node.names)})
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = _MODULE_NAME.fullmatch(node.value)
            if match is not None:
                names.add(match[1])
    return frozenset(imports), frozenset(names)


def imports_of(path: Path) -> frozenset[str]:
    return imports_and_names_of(path)[0]


def names_of(path: Path) -> frozenset[str]:
    return imports_and_names_of(path)[1]


def is_within(module: str, names: frozenset[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in names)


def files_of(place: str) -> Iterator[Path]:
    """The files of a package or of a module, which is given with dots or slashes."""
    path = ROOT / place.replace(".", "/")
    return path.rglob("*.py") if path.is_dir() else iter([path.with_suffix(".py")])


def shipped() -> Iterator[Path]:
    return (path for package in SHIPPED for path in files_of(package))


def required() -> set[str]:
    """Names of the packages that the base and the extras for users ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(one for name in extras if name not in FOR_DEVELOPMENT for one in extras[name])]
    return {re.split(r"[\[<>=!~; ]", one)[0] for one in asked} - {"aio-gateway"}


def places() -> dict[str, list[str]]:
    """Packages of docs/reference/dependencies.md and the places where the page says that each is used."""
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
    found = {}
    for names, where in re.findall(r"^- \*\*(.+?)\*\*: .*\(([^()]+)\)$", page, re.MULTILINE):
        for name in re.split(r"[,;] *", re.sub(r" \([^)]*\)", "", names)):
            found[name] = list(SHIPPED) if "everywhere" in where else re.findall(r"`([\w.]+)`", where)
    return found


@pytest.mark.parametrize(("module", "place"), ROLES.items())
def test_each_named_package_is_imported_in_its_role(module: str, place: str) -> None:
    assert any(is_within(module, imports_of(path)) for path in files_of(place))


@pytest.mark.parametrize("package", sorted(required()))
def test_what_a_user_installs_is_used_where_the_page_says(package: str) -> None:
    module = IMPORTED_AS.get(package, package)
    paths = [path for place in places()[package] for path in files_of(place)]
    assert any(is_within(module, imports_of(path) | names_of(path)) for path in paths), places()[package]


def test_what_the_product_imports_is_required() -> None:
    known = {IMPORTED_AS.get(package, package).partition(".")[0] for package in required()} | NOT_REQUIRED
    own = {*SHIPPED, "benchmarks", *sys.stdlib_module_names}
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in shipped()
        for name in imports_of(path)
        if name.partition(".")[0] not in known | own
    }
    assert unknown == set()


def test_a_package_imports_none_of_a_layer_above_its_own() -> None:
    """SPEC FR-01, by the layers that `make contracts` holds."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    [layers] = [contract["layers"] for contract in contracts if contract["name"].startswith("Layers: ")]
    above: set[str] = set()
    found: set[str] = set()
    for layer in layers:
        beside = set(layer.split(" | "))
        for package in beside:
            forbidden = above | beside - {package}
            found |= {
                f"{path.relative_to(ROOT)}: {name}"
                for path in files_of(package)
                for name in imports_of(path)
                if name.partition(".")[0] in forbidden
            }
        above |= beside
    assert found == set()
    assert above | {"migrations"} == set(SHIPPED)
