"""Runs many commands without starting Python for each.

`python -m tests.commands_child` reads a list of command lines as JSON, imports
the libraries once, which takes seconds, and forks for each command, which then
runs as `python -m` would. It writes a list of exit codes and standard errors.
"""

import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from typing import Any

# What the commands import; none of it defines flags.
_IMPORTED = (
  "realm_jax.corpus.build",
  "realm_jax.corpus.seqio_rows",
  "realm_jax.evaluation.open_qa",
  "realm_jax.generations.sidecar",
  "realm_jax.training.trainer",
)


def _run(module: str, *arguments: str) -> int:
  sys.argv = [module, *arguments]
  try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  except SystemExit as ended:
    return ended.code if isinstance(ended.code, int) else bool(ended.code)
  except BaseException:
    traceback.print_exc()
    return 1
  return 0


def _outcome(command: list[str]) -> tuple[int, str]:
  with tempfile.TemporaryFile("w+") as errors:
    child = os.fork()
    if child == 0:
      os.dup2(errors.fileno(), sys.stderr.fileno())
      os.dup2(errors.fileno(), sys.stdout.fileno())
      code = _run(*command)
      sys.stdout.flush()
      sys.stderr.flush()
      os._exit(code)
    _, status = os.waitpid(child, 0)
    errors.seek(0)
    return os.waitstatus_to_exitcode(status), errors.read()


def main() -> None:
  for module in _IMPORTED:
    importlib.import_module(module)
  commands: list[list[str]] = json.load(sys.stdin)
  outcomes: list[Any] = [_outcome(command) for command in commands]
  json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
  main()
