"""pyproject.toml allows no version that lacks what is relied on: tests run with newer ones."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def test_no_grpcio_is_allowed_whose_asyncio_server_would_serve_none_of_our_methods() -> None:
    """With 1.80 to 1.83 add_registered_method_handlers does nothing: the processor is healthy, and
    each request is answered UNIMPLEMENTED."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {need.name: need for need in map(Requirement, project["dependencies"])}
    for name in ("grpcio", "grpcio-health-checking"):
        assert not needed[name].specifier.contains("1.83.1")
        assert needed[name].specifier.contains("1.85.3")
