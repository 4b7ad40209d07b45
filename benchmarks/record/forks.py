"""Runs commands in forks of a process that has imported their libraries.

To import jax, TensorFlow and the others takes half of the time of a command
that does as little as those of the record. What is forked has imported nothing
of the project. Requests come as lines of JSON on the standard input: the
module, its arguments, and the files for its output, its process id and its
exit status.
"""

import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

_LIBRARIES = ("jax", "flax.linen", "optax", "orbax.checkpoint", "seqio")


def main() -> None:
  """Serves requests until the input ends."""
  for library in _LIBRARIES:
    importlib.import_module(library)
  # Those that watch over the commands leave no zombies.
  signal.signal(signal.SIGCHLD, signal.SIG_IGN)
  for line in sys.stdin:
    if os.fork() == 0:
      _watch(json.loads(line))
      return


def _watch(request: dict[str, Any]) -> None:
  """Forks once more, for the command; writes its id and its exit status."""
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  command = os.fork()
  if command == 0:
    _become(request)
    return
  _write(request["pid"], command)
  _, status = os.waitpid(command, 0)
  _write(request["status"], os.waitstatus_to_exitcode(status))
  os._exit(0)


def _write(path: str, number: int) -> None:
  aside = Path(f"{path}.aside")
  aside.write_text(str(number))
  aside.rename(path)


def _become(request: dict[str, Any]) -> None:
  """Is `python -m MODULE` from here on, with a normal exit."""
  os.setsid()
  files = (
    (os.open(os.devnull, os.O_RDONLY), 0),
    (os.open(request["stdout"], os.O_WRONLY | os.O_APPEND), 1),
    (os.open(request["stderr"], os.O_WRONLY | os.O_APPEND), 2),
  )
  for opened, descriptor in files:
    os.dup2(opened, descriptor)
  sys.argv = [request["module"], *request["arguments"]]
  runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
  main()
