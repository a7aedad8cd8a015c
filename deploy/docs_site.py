"""A hook of mkdocs (mkdocs.yml): links that leave docs/, and what pages load.

Pages are read in the repository too, where a link may lead to a source file. The site has no such file: there the
link becomes its path, as code. A built page that would load anything from another server fails the build.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?!https?:|mailto:|#)[^)\s]+)\)")
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|link(?![^>]*rel=\"canonical\"))\b[^>]*?(?:src|href)=[\"']?(https?:)?//"
)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page with each link to a file outside docs/ as text and the file's path; raise where it is missing."""
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent

    def outside(found: re.Match[str]) -> str:
        target = (here / found[2].partition("#")[0]).resolve()
        in_site = target.is_relative_to(docs) and not target.is_relative_to(docs / "measurements")
        if in_site:
            return found[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {found[2]}, which does not exist")
        path = target.relative_to(docs.parent).as_posix()
        return found[1] if found[1].strip("`") in path else f"{found[1]} (`{path}`)"

    return _LINK.sub(outside, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Raise if a page would load a font, script, style or picture from elsewhere."""
    site = Path(config["site_dir"])
    loading = [page for page in site.rglob("*.html") if _LOADED.search(page.read_text(encoding="utf-8"))]
    if loading:
        raise PluginError(
            f"pages load from other servers: {', '.join(str(page.relative_to(site)) for page in loading)}"
        )
