"""Writes the help of many commands without starting Python for each.

`python -m tests.help_child DIRECTORY MODULE…` imports the libraries once
(they take seconds) and forks for every module, which then runs as
`python -m MODULE --helpfull` would, its output in DIRECTORY/MODULE. The
benchmarks have no flags but their own, which --help tells.
"""

import importlib
import os
import runpy
import sys
import traceback
from pathlib import Path

_SLOW_TO_IMPORT = (
  "flax.linen",
  "orbax.checkpoint",
  "seqio",
  "tensorflow_text",
)


def _run(module: str, output: Path) -> None:
  with output.open("w") as file:
    os.dup2(file.fileno(), sys.stdout.fileno())
    os.dup2(file.fileno(), sys.stderr.fileno())
  is_benchmark = module.startswith("benchmarks.")
  sys.argv = [module, "--help" if is_benchmark else "--helpfull"]
  try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  except SystemExit:
    pass
  except BaseException:
    traceback.print_exc()
  sys.stdout.flush()
  os._exit(0)


def main() -> None:
  for library in _SLOW_TO_IMPORT:
    importlib.import_module(library)
  directory, *modules = sys.argv[1:]
  for module in modules:
    child = os.fork()
    if child == 0:
      _run(module, Path(directory) / module)
    os.waitpid(child, 0)


if __name__ == "__main__":
  main()
