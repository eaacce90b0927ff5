"""Regenerate extproc/_generated from protos/*.proto (`make protos`).

The generated code is checked in, so users need no compiler; a test proves that it is fresh.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PACKAGE_DIR = HERE.parent / "extproc" / "_generated"


def generate(out_dir: Path) -> None:
    """Write `*_pb2.py` and `*_pb2.pyi` of each proto to `out_dir`; RuntimeError if it fails."""
    out_dir.mkdir(parents=True, exist_ok=True)
    well_known = files("grpc_tools") / "_proto"
    protos = [str(path) for path in sorted(HERE.glob("*.proto"))]
    status = protoc.main(
        [
            "protoc",
            f"-I{HERE}",
            f"-I{well_known}",
            f"--python_out={out_dir}",
            f"--pyi_out={out_dir}",
            *protos,
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


if __name__ == "__main__":
    generate(PACKAGE_DIR)
    sys.stdout.write(f"wrote {PACKAGE_DIR}\n")
