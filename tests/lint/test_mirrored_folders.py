"""Tests of a package stand in the folders that mirror it; suites of the whole product stand beside the packages."""

from pathlib import Path

from tests.lint.rooms import PRODUCT, ROOT


def test_every_folder_of_tests_is_a_folder_of_the_product() -> None:
    tested = {path.parent.relative_to(ROOT / "tests") for path in ROOT.glob("tests/**/test_*.py")}
    lost = sorted(str(folder) for folder in tested if folder.parts[:1] in {(name,) for name in PRODUCT})
    assert [folder for folder in lost if not Path(ROOT, folder).is_dir()] == []
