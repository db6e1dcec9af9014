"""Turns a report of pip (`pip install --dry-run --report`) into a lock with hashes."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(report: Path) -> None:
    items = json.loads(report.read_text(encoding="utf-8"))["install"]
    for item in sorted(items, key=lambda item: str(item["metadata"]["name"]).lower()):
        archive = item["download_info"].get("archive_info")
        if archive is None:  # the project itself
            continue
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        print(f"{name}=={version} --hash=sha256:{archive['hashes']['sha256']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
