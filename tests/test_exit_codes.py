"""The codes of commands, by which a cluster tells failures apart."""

import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
from absl import flags

from harness.object_store import StoreFault
from realm_jax.configuration import command_line
from realm_jax.errors import ExitCode, RealmError
from realm_jax.partitioning.processes import LostProcessError
from realm_jax.storage.access import require_readable
from realm_jax.storage.paths import read_bytes
from realm_jax.storage.sole_process import sole_process


def _code(function, *arguments) -> int:
  """The exit code of a command that fails as a function does."""
  # Other tests of this process may have imported commands with required flags.
  flags.FLAGS.mark_as_parsed()
  with pytest.raises(BaseException) as failed:
    function(*arguments)
  return command_line.exit_code(failed.value)


def _unreadable(cause: Exception) -> ValueError:
  error = RealmError("checkpoint 0 cannot be read")
  error.__cause__ = cause
  return error


@pytest.mark.parametrize("function", [require_readable, read_bytes])
@pytest.mark.parametrize(
  ("status", "code"), [(503, ExitCode.STORE_OUTAGE), (401, ExitCode.USER_ERROR)]
)
def test_a_store_that_is_away_is_told_from_one_that_refuses(
  object_store, function, status, code, capsys
):
  object_store.inject(StoreFault("refuse", ".", status=status, times=99))
  assert _code(function, object_store.path("a")) == code
  assert capsys.readouterr().err.count("\n") == 1


def test_a_second_trainer_has_lost_the_role(tmp_path, capsys):
  def start():
    with sole_process(tmp_path), sole_process(tmp_path):
      pass

  assert _code(start) == ExitCode.LOST_ROLE
  assert "already has a trainer" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("error", "code"),
  [
    (RealmError("k=0; want at least 1"), ExitCode.USER_ERROR),
    (FileNotFoundError("none"), ExitCode.USER_ERROR),
    (PermissionError(13, "denied", "file"), ExitCode.USER_ERROR),
    (ValueError("UNAVAILABLE: no route"), ExitCode.STORE_OUTAGE),
    (_unreadable(ValueError("UNAVAILABLE: no route")), ExitCode.STORE_OUTAGE),
    (_unreadable(ValueError("a wrong checksum")), ExitCode.USER_ERROR),
    (LostProcessError("it does not answer"), ExitCode.LOST_PROCESS),
    # All processes end with the code of the one that failed first.
    (LostProcessError("it has failed", ExitCode.USER_ERROR), 2),
  ],
)
def test_an_error_that_explains_itself_is_a_line_and_a_code(
  error, code, capsys
):
  assert _code(Mock(side_effect=error)) == code
  assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
  "error",
  [
    ZeroDivisionError(),
    # Of a library, such as NumPy: no user has said something wrong.
    ValueError("operands could not be broadcast together"),
    OSError(5, "no file has a name here"),
  ],
)
def test_a_bug_keeps_its_traceback(error, capsys):
  assert _code(Mock(side_effect=error)) == 1
  assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_a_word_and_a_code(capsys):
  assert _code(Mock(side_effect=KeyboardInterrupt)) == 128 + signal.SIGINT
  assert capsys.readouterr().err == "interrupted\n"


_COMMAND = "from realm_jax.configuration import command_line as c; c.run({})"
_PRINT_WORDS = _COMMAND.format("lambda a: print(*a[1:]), takes_texts=True")


def _run(environment, program, *words, streams="", stdout=subprocess.PIPE):
  """Runs a program by a shell, which may close its streams."""
  command = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-c"]
  return subprocess.run(
    [*command, program, *words],
    env=environment,
    stdin=subprocess.DEVNULL,
    stdout=stdout,
    stderr=subprocess.PIPE,
  )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nobody_reads_what_is_printed(command_environment, unbuffered):
  environment = {**command_environment, "PYTHONUNBUFFERED": unbuffered}
  reader, writer = os.pipe()
  os.close(reader)
  with open(writer, "wb") as pipe:
    done = _run(environment, _PRINT_WORDS, "words", stdout=pipe)
  assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_the_output_is_said(command_environment, unbuffered):
  environment = {**command_environment, "PYTHONUNBUFFERED": unbuffered}
  with open("/dev/full", "wb") as full:
    done = _run(environment, _PRINT_WORDS, "words", stdout=full)
  assert done.returncode == ExitCode.USER_ERROR
  assert b"output cannot be written (No space left" in done.stderr
  assert done.stderr.count(b"\n") == 1
  # Where nothing can be said, the code says it.
  fails = _COMMAND.format("lambda a: open('/not/there')")
  done = _run(command_environment, fails, streams="2>/dev/full")
  assert done.returncode == ExitCode.USER_ERROR


def test_ctrl_c_during_the_imports_is_a_word_and_a_code(
  command_environment, tmp_path
):
  # What is imported first, which Ctrl-C finds at its work.
  module = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
  (tmp_path / "absl.py").write_text(module)
  path = os.pathsep.join([str(tmp_path), command_environment["PYTHONPATH"]])
  # A shell that starts tests in the background has Ctrl-C ignored.
  program = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, '-m', 'realm_jax.show_task'])"
  )
  done = subprocess.run(
    [sys.executable, "-c", program],
    env={**command_environment, "PYTHONPATH": path},
    capture_output=True,
  )
  assert done.returncode == 128 + signal.SIGINT
  assert done.stderr == b"interrupted\n"


def test_a_stream_takes_what_its_encoding_lacks(command_environment):
  environment = {**command_environment, "PYTHONIOENCODING": "ascii"}
  done = _run(environment, _PRINT_WORDS, "Zoë 北")
  assert (done.stdout, done.stderr) == (b"Zo\\xeb \\u5317\n", b"")


def test_streams_may_be_closed(command_environment):
  program = "import sys; " + _COMMAND.format(
    "lambda a: print(sys.stdin.read(), sys.stdout.isatty())"
  )
  done = _run(command_environment, program, streams="<&- >&-")
  assert (done.returncode, done.stderr) == (0, b"")
  assert not _run(command_environment, program, streams="2>&-").returncode


def test_an_argument_in_another_encoding_is_named(command_environment):
  done = _run(command_environment, _PRINT_WORDS, b"caf\xe9")
  assert done.returncode == ExitCode.USER_ERROR
  assert done.stderr.count(b"\n") == 1 and b"'caf\\udce9'" in done.stderr


def test_a_device_that_is_not_there_is_named(command_environment):
  environment = {**command_environment, "JAX_PLATFORMS": "cuda"}
  program = f"import jax; {_COMMAND.format('lambda a: jax.devices()')}"
  done = _run(environment, program)
  assert done.returncode == ExitCode.USER_ERROR
  assert b"no device to compute on with JAX_PLATFORMS=cuda" in done.stderr
