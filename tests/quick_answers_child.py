"""Runs many commands in one process, and tells what each has imported.

`python -m tests.quick_answers_child`, with a JSON list of command lines on its
standard input, forks for each of them, which then runs as `python -m` would. It
writes a JSON list of the exit code, the output and the imported modules of
each.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback
from typing import IO, Any

# Libraries that an answer may take its time for, imported once for all.
import jax  # noqa: F401
import orbax.checkpoint  # noqa: F401
from flax import linen  # noqa: F401


def _run(argv: list[str], output: IO[bytes], report: str) -> None:
  os.dup2(output.fileno(), sys.stdout.fileno())
  os.dup2(output.fileno(), sys.stderr.fileno())
  sys.argv = list(argv)
  code: Any = 0
  try:
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
  except SystemExit as end:
    code = end.code
  except BaseException:
    traceback.print_exc()
    code = "a traceback"
  sys.stdout.flush()
  with open(report, "w") as file:
    json.dump({"code": code, "modules": sorted(sys.modules)}, file)
  os._exit(0)


def main() -> None:
  answers = []
  for argv in json.load(sys.stdin):
    with (
      tempfile.TemporaryFile() as output,
      tempfile.NamedTemporaryFile() as to,
    ):
      child = os.fork()
      if child == 0:
        _run(argv, output, to.name)
      os.waitpid(child, 0)
      output.seek(0)
      text = output.read().decode()
      answers.append({**json.load(to), "output": text})
  json.dump(answers, sys.stdout)


if __name__ == "__main__":
  main()
