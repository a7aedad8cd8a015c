"""Folders of small files, such as artefacts, sent between machines that share no disk."""

from pathlib import Path

Files = dict[str, bytes]


def files_of(folder: Path) -> Files:
    """Return every file below `folder` by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def write_files(files: Files, folder: Path) -> None:
    """Write the folder; an existing one is kept."""
    if folder.exists():
        return
    unfinished = folder.with_name(f".{folder.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = unfinished / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    unfinished.replace(folder)
