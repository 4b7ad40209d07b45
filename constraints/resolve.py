"""Writes the constraints of the Python that runs it; see `make constraints`.

Asks pip for the newest releases that install together, for every extra of the
project, with nothing pinned but constraints/knots.txt. Nothing is installed.
"""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PROJECT = "realm_jax"


def main() -> None:
  python = f"python{sys.version_info.major}.{sys.version_info.minor}"
  extras = importlib.metadata.metadata(_PROJECT).get_all("Provides-Extra")
  command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
  command += ["--ignore-installed", "--report=-", "-c", _HERE / "knots.txt"]
  report = subprocess.run(
    [*command, f"{_HERE.parent}[{','.join(extras)}]"],
    stdout=subprocess.PIPE,
    check=True,
  )
  chosen = [item["metadata"] for item in json.loads(report.stdout)["install"]]
  pins = [f"{one['name']}=={one['version']}" for one in chosen]
  pins = [pin for pin in pins if not pin.startswith(f"{_PROJECT}==")]
  target = _HERE / f"{python}.txt"
  target.write_text(
    f"# Written by `make constraints PYTHON={python}`: the newest versions of\n"
    "# all that the extras need which install together. constraints/knots.txt\n"
    "# says what holds some of them back.\n"
    + "".join(f"{pin}\n" for pin in sorted(pins, key=str.lower))
  )
  print(f"wrote {target}: {len(pins)} versions")


if __name__ == "__main__":
  main()
