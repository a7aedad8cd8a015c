"""How many files one streamed chat enters on its way from the HTTP protocol to its record, and how often it comes back
to a folder."""

from pathlib import Path

from classifier.native import KERNELS
from tests.gateway.walk import Entered, walk_of

# By package, the most that it may enter; the table of the command names the files. How the core's steps and the
# ledger's writes fall together differs a little from walk to walk.
MOST = {
    "gateway": Entered(files=28, folders=6, returns=10),
    "tiers": Entered(files=11, folders=5, returns=9),
    # The objective is a file of its own, which every comparison uses. Without kernels the rules on a turn's words are
    # tried one by one, from files of their own.
    "classifier": Entered(files=13, folders=6, returns=5)
    if KERNELS is None
    else Entered(files=5, folders=3, returns=2),
    "inference_core": Entered(files=22, folders=5, returns=6),
    "quality": Entered(files=6, folders=2, returns=6),
    "migrations": Entered(files=1, folders=1, returns=0),
}
MOST_LAYERS = 6


async def test_a_streamed_chat_enters_few_files_and_rarely_comes_back_to_a_folder(tmp_path: Path) -> None:
    walk = await walk_of(str(tmp_path))

    for package, most in MOST.items():
        entered = walk.of(package)
        assert all(count <= bound for count, bound in zip(entered, most, strict=True)), f"{package}\n{walk.table()}"
    assert walk.of("gateway").files > 20  # it was recorded at all
    assert 3 < len(walk.layers) <= MOST_LAYERS, walk.table()
