"""Measures which branches of each package its own tests take.

    python -m benchmarks.record.coverage objectives checkpoints --json=FILE
    python -m benchmarks.record.coverage --json=FILE

For each package, `tests/PACKAGE` runs under coverage.py, its subprocesses
included, and the table has the lines and branches of `realm_jax/PACKAGE`.
Before a package is rewritten, its row says what its tests protect, and
afterwards whether they still do. --tests names other tests, such as
tests/integration.

coverage.py is no dependency of the project: `pip install 'coverage>=7.10'`. To
measure the subprocesses, it puts a file into the environment while it runs.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_PROJECT_DIR = Path(__file__).resolve().parents[2]
_SETTINGS = """
[run]
branch = true
parallel = true
sigterm = true
patch = subprocess, _exit
source = realm_jax
data_file = {folder}/data
"""


@dataclasses.dataclass(frozen=True)
class Covered:
  """What tests cover of a package.

  Attributes:
    package: Folder below `realm_jax`.
    tests: Files or folders of the tests that ran.
    exit_status: Exit status of pytest.
    lines, branches: Numbers in the package.
    lines_covered, branches_covered: Numbers that the tests reach.
    missing: Lines that no test reaches, by file.
  """

  package: str
  tests: Sequence[str]
  exit_status: int
  lines: int
  lines_covered: int
  branches: int
  branches_covered: int
  missing: dict[str, list[int]]

  @property
  def percent(self) -> float:
    """Lines and branches that are reached, in percent."""
    reached = self.lines_covered + self.branches_covered
    return 100 * reached / max(1, self.lines + self.branches)


def measure(package: str, tests: Sequence[str]) -> Covered:
  """Runs tests under coverage.py, and reads what they cover of a package."""
  with tempfile.TemporaryDirectory() as folder:
    settings, report = Path(folder) / "rc", Path(folder) / "report.json"
    settings.write_text(_SETTINGS.format(folder=folder))

    def coverage(*words: str) -> int:
      command = [sys.executable, "-m", "coverage", *words]
      environment = {**os.environ, "COVERAGE_RCFILE": str(settings)}
      return subprocess.run(
        command, cwd=_PROJECT_DIR, env=environment, check=False
      ).returncode

    status = coverage("run", "-m", "pytest", "-n", "0", "-q", *tests)
    coverage("combine", "-q")
    coverage("json", "-q", "-o", str(report))
    files = json.loads(report.read_text())["files"]
  inside = {
    name: file
    for name, file in files.items()
    if name.startswith(f"realm_jax/{package}/")
  }

  def total(field: str) -> int:
    return sum(file["summary"][field] for file in inside.values())

  return Covered(
    package=package,
    tests=tests,
    exit_status=status,
    lines=total("num_statements"),
    lines_covered=total("covered_lines"),
    branches=total("num_branches"),
    branches_covered=total("covered_branches"),
    missing={
      name: file["missing_lines"]
      for name, file in inside.items()
      if file["missing_lines"]
    },
  )


def main(argv: Sequence[str]) -> int:
  """Measures packages, and prints and writes the table."""
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.record.coverage",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("packages", nargs="*", help="all by default")
  parser.add_argument("--tests", nargs="*", help="instead of tests/PACKAGE")
  parser.add_argument("--json", type=Path, help="file for the same as JSON")
  flags = parser.parse_args(argv)
  if importlib.util.find_spec("coverage") is None:
    print("coverage.py is missing: pip install 'coverage>=7.10'")
    return 2
  rows = []
  print(f"{'package':<20}{'lines':>16}{'branches':>16}{'covered':>9}")
  for package in flags.packages or _packages():
    row = measure(package, flags.tests or [f"tests/{package}"])
    rows.append({**dataclasses.asdict(row), "percent": round(row.percent, 1)})
    lines = f"{row.lines_covered} of {row.lines}"
    branches = f"{row.branches_covered} of {row.branches}"
    failed = "" if row.exit_status == 0 else f"  pytest: {row.exit_status}"
    print(
      f"{package:<20}{lines:>16}{branches:>16}{row.percent:>8.1f}%{failed}",
      flush=True,
    )
  if flags.json:
    flags.json.write_text(json.dumps(rows, indent=2) + "\n")
  return 0


def _packages() -> list[str]:
  """Returns the packages that have tests of their own."""
  return sorted(
    path.name
    for path in (_PROJECT_DIR / "realm_jax").iterdir()
    if (_PROJECT_DIR / "tests" / path.name).is_dir()
  )


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
