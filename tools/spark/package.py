"""The modules that executors need, as one file for ``--py-files`` where the package is not installed.

    python -m tools.spark.package quintlog.zip
    spark-submit --py-files quintlog.zip ...

Plain Python only: on executors that have compiled modules decoding is several times faster. The libraries (pyarrow,
numpy, xxhash, msgpack, cramjam) have to be there.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("engine/**/*.py", "netserver/**/*.py", "tools/**/*.py", "pyspark_quintlog.py", "quintlog.py")
"""All of it: a list of what executors import would fall behind the imports, and the whole is below one megabyte."""


def write_package(path: Path) -> None:
    """Writes the file, replacing one that is there. Raises OSError."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for pattern in SOURCES:
            for source in sorted(ROOT.glob(pattern)):
                package.write(source, source.relative_to(ROOT))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.spark.package FILE.zip")
    write_package(Path(sys.argv[1]))
