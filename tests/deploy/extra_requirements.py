"""The requirements of an extra without the package itself, for an environment that has it already: `python -m
tests.deploy.extra_requirements ray`."""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print them, one a line."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for requirement in project["optional-dependencies"][sys.argv[1]]:
        if not requirement.startswith(f"{project['name']}["):
            print(requirement)


if __name__ == "__main__":
    main()
