"""Pages stay true and few: links resolve, named files exist, dependencies have rows, the README's file loads."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiers.catalog.load import load_catalog

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PACKAGES = "gateway|quality|classifier|tiers|inference_core|migrations|benchmarks|tests|deploy"
# Pages to read: what somebody goes through who sets AIO up, operates it or changes it.
MOST_PAGES = 20
_PAGE = re.compile(r"(?<![\w./])(docs/[\w/-]+\.md)(?:#([\w-]+))?")
# Of other projects, and of a made-up one.
OTHER_PAGES = {"docs/guide.md", "docs/protocol/extension_generate.md", "docs/user_guide/model_configuration.md"}
# Created by the commands on the page; not part of the repository.
MADE = {"deploy/compose/models", "deploy/compose/weights"}


def prose_lines(page: Path) -> Iterator[str]:
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line


def anchors(page: Path) -> set[str]:
    titles = [line.lstrip("#").strip() for line in prose_lines(page) if re.match(r"#+ ", line)]
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def by_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose_lines(page))):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(rf"`((?:{PACKAGES})/[\w./-]+)`", "\n".join(prose_lines(page)))
    assert [name for name in named if name not in MADE and not (ROOT / name).exists()] == []


def test_every_page_that_code_names_exists_with_its_heading() -> None:
    """In docstrings, comments and messages of what is shipped."""
    shipped = [ROOT / package for package in PACKAGES.split("|") if package != "tests"]
    kinds = ("*.py", "*.toml", "*.yaml", "*.txt", "*.html", "*Dockerfile")
    files = [file for folder in shipped for kind in kinds for file in folder.rglob(kind)]
    lost = set()
    for file in (ROOT / "Makefile", ROOT / "pyproject.toml", *files):
        for name, anchor in _PAGE.findall(file.read_text(encoding="utf-8")):
            page = ROOT / name
            if name not in OTHER_PAGES and not (page.exists() and (not anchor or anchor in anchors(page))):
                lost.add((by_name(file), f"{name}#{anchor}"))
    assert lost == set()


def test_the_pages_to_read_stay_few_and_all_are_in_the_table_of_contents() -> None:
    assert len(list((ROOT / "docs").glob("*.md"))) <= MOST_PAGES
    shown = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert shown == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def test_the_page_on_alerts_says_what_to_do_for_each() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"- alert: (\w+)", rules) if f"`{name}`" not in page] == []


def test_the_page_on_dependencies_names_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[\[<>=!~; ]", one)[0] for one in asked} - {"aio-gateway"}
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8").lower()
    assert {name for name in names if name.lower() not in page} == set()


def test_the_catalogue_in_the_readme_loads(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    file = tmp_path / "tiers.toml"
    file.write_text(found[1], encoding="utf-8")
    assert [tier.name for tier in load_catalog(str(file)).tiers] == ["small", "large"]
