"""Commands that start in a moment, because their libraries are imported.

To start Python, jax, TensorFlow and orbax takes each command four seconds of a
core. A server imports them once and forks for each command, which then runs as
`python -m MODULE` or `python -c PROGRAM` would: in a process of its own, with
its own environment, streams and exit code.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from realm_jax import supervisor

_PROJECT_DIR = Path(__file__).resolve().parent.parent
# What commands import; none of it defines flags, or starts a thread.
MODULES = (
  "fsspec.implementations.local",
  "realm_jax.corpus.build",
  "realm_jax.inputs.display",
  "realm_jax.inputs.seqio_rows",
  "realm_jax.evaluation.evaluate",
  "realm_jax.evaluation.open_qa",
  "realm_jax.snapshots.index_builder",
  "realm_jax.tasks.inverse_cloze",
  "realm_jax.tasks.masked_sentences",
  "realm_jax.tasks.open_qa",
  "realm_jax.training.trainer",
  "realm_jax.weights.importing",
)
_MAX_MESSAGE = 1 << 18
_POLL_SECONDS = 0.01


class Started:
  """A process of the server, with what is used of `subprocess.Popen`.

  Attributes:
    pid: Id of the process.
    returncode: Exit status, or minus the signal; None while it is not known.
  """

  def __init__(self, server: "CommandServer", pid: int):
    self.pid = pid
    self.returncode: int | None = None
    self._server = server

  def poll(self) -> int | None:
    """Returns the exit status; None while the process runs."""
    if self.returncode is None:
      self.returncode = self._server.ask({"poll": self.pid})
    return self.returncode

  def wait(self, timeout: float = float("inf")) -> int:
    """Waits for the end, and returns the exit status."""
    deadline = time.monotonic() + timeout
    while (code := self.poll()) is None:
      if time.monotonic() > deadline:
        raise subprocess.TimeoutExpired(str(self.pid), timeout)
      time.sleep(_POLL_SECONDS)
    return code

  def send_signal(self, number: int) -> None:
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self) -> None:
    self.send_signal(signal.SIGKILL)


class CommandServer:
  """The server, as its user sees it.

  Args:
    environment: Environment in which the libraries are imported.
    modules: What is imported, jax or what imports it among them.
  """

  def __init__(
    self, environment: Mapping[str, str], modules: Sequence[str] = MODULES
  ):
    self._environment = dict(environment)
    self._lock = threading.Lock()
    kind = socket.SOCK_SEQPACKET
    self._socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with theirs:
      number = theirs.fileno()
      self._server = subprocess.Popen(
        [
          *(sys.executable, "-m", "tests.command_server"),
          *(str(number), *modules),
        ],
        cwd=_PROJECT_DIR,
        env=self._environment,
        stdin=subprocess.DEVNULL,
        pass_fds=[number],
      )

  def ask(self, message: dict[str, Any], files: Sequence[int] = ()) -> Any:
    with self._lock:
      content = json.dumps(message).encode()
      socket.send_fds(self._socket, [content], files)
      answer = self._socket.recv(_MAX_MESSAGE)
    if not answer:
      raise RuntimeError(f"the server ended with {self._server.wait()}")
    return json.loads(answer)

  def start(
    self,
    command: Sequence[str],
    *,
    stdout: IO[Any],
    stderr: IO[Any] | int = subprocess.STDOUT,
    cwd: os.PathLike | str = _PROJECT_DIR,
    env: Mapping[str, str] | None = None,
  ) -> Started:
    """Starts a command that begins with Python, and `-m` or `-c`."""
    assert command[0] == sys.executable and command[1] in ("-m", "-c"), command
    errors = stdout if isinstance(stderr, int) else stderr
    message = {
      "command": [str(word) for word in command[1:]],
      "cwd": str(cwd),
      "env": dict(self._environment if env is None else env),
    }
    return Started(self, self.ask(message, [stdout.fileno(), errors.fileno()]))

  def run(
    self, command: Sequence[str], *, timeout: float = 600.0, **settings: Any
  ) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, and returns its code and what it printed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
      process = self.start(command, stdout=out, stderr=errors, **settings)
      try:
        code = process.wait(timeout)
      finally:
        process.kill()
      printed = []
      for file in (out, errors):
        file.seek(0)
        printed.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(list(command), code, *printed)

  def close(self) -> None:
    """Ends the server, and all of its processes."""
    self._socket.close()
    self._server.wait()


class _Restarted:
  """What a supervisor starts: a fork, which need not import the libraries."""

  def __init__(
    self,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    start_new_session: bool,
    preexec_fn: Callable[[], None],
  ):
    del start_new_session
    self._pid = os.fork()
    if not self._pid:
      os.setsid()
      preexec_fn()
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
      signal.signal(signal.SIGINT, signal.default_int_handler)
      _become({"command": command[1:], "cwd": os.getcwd(), "env": dict(env)})

  def send_signal(self, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
      os.kill(self._pid, number)

  def wait(self) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _become(message: dict[str, Any], files: Sequence[int] = ()) -> NoReturn:
  """Runs a command in this process, and ends it."""
  for number, file in enumerate(files, start=1):
    os.dup2(file, number)
    os.close(file)
  supervisor.subprocess = types.SimpleNamespace(Popen=_Restarted)
  os.chdir(message["cwd"])
  os.environ.clear()
  os.environ.update(message["env"])
  # jax has read its settings when it was imported.
  log_compiles = os.environ.get("JAX_LOG_COMPILES") == "1"
  sys.modules["jax"].config.update("jax_log_compiles", log_compiles)
  random.seed()
  kind, what, *arguments = message["command"]
  sys.path[0] = message["cwd"]
  sys.argv = [what if kind == "-m" else kind, *arguments]
  sys.orig_argv = [sys.executable, *message["command"]]
  try:
    if kind == "-m":
      runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
      exec(what, {"__name__": "__main__"})
    code: Any = 0
  except SystemExit as ended:
    code = ended.code or 0
    if isinstance(code, str):
      print(code, file=sys.stderr)
  except BaseException:
    sys.excepthook(*sys.exc_info())
    code = 1
  # What else Python does at its end takes a second, and has no effect.
  threading._shutdown()  # type: ignore[attr-defined]
  atexit._run_exitfuncs()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code if isinstance(code, int) else 1)


def _serve(channel: socket.socket) -> None:
  """Starts commands, and tells how they have ended, until nobody asks."""
  running = set()
  while True:
    content, files, *_ = socket.recv_fds(channel, _MAX_MESSAGE, 2)
    if not content:
      break
    message = json.loads(content)
    if "poll" in message:
      pid, status = os.waitpid(message["poll"], os.WNOHANG)
      running.discard(pid)
      answer = os.waitstatus_to_exitcode(status) if pid else None
    else:
      answer = os.fork()
      if answer == 0:
        channel.close()
        _become(message, files)
      running.add(answer)
      for file in files:
        os.close(file)
    channel.send(json.dumps(answer).encode())
  for pid in running:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)
  # What is left of Python's end takes a second.
  os._exit(0)


def main() -> None:
  number, *modules = sys.argv[1:]
  for module in modules:
    importlib.import_module(module)
  if normalization := sys.modules.get("realm_jax.text.normalization"):
    # A table of all of Unicode would take each command half a second.
    normalization.character_table(normalization.Normalization())
  # A collection in a command would otherwise copy the pages of all modules.
  gc.collect()
  gc.freeze()
  with socket.socket(fileno=int(number)) as channel:
    _serve(channel)


if __name__ == "__main__":
  main()
