"""Compiled programs are kept for the next process, and nothing else changes."""

import subprocess
import sys

import pytest

# Compiles two programs, and prints whether the cache had each, and its result.
_PROGRAM = """
from realm_jax.configuration import compilation_cache
compilation_cache.enable()
import jax

hits, eye = [], jax.numpy.eye(3)
jax.monitoring.register_event_listener(
  lambda event, **_: hits.append(event.endswith("/cache_hits"))
)

def spoilt(x):
  return (x @ x).sum()

def whole(x):
  return (x @ x @ x).sum()

for program in (spoilt, whole):
  hits.clear()
  result = jax.jit(program)(eye)
  print(any(hits), result)
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing_but_what_was_spoilt(
  tmp_path, command_environment
):
  environment = {**command_environment, "XDG_CACHE_HOME": str(tmp_path)}
  for name in ("JAX_COMPILATION_CACHE_DIR", "REALM_JAX_CACHE_DIR"):
    environment.pop(name, None)
  environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

  def run():
    return subprocess.run(
      [sys.executable, "-c", _PROGRAM],
      env=environment,
      stderr=subprocess.STDOUT,
      stdout=subprocess.PIPE,
      text=True,
      check=True,
    ).stdout.split()

  assert run() == ["False", "3.0", "False", "3.0"]
  (program,) = tmp_path.rglob("jit_spoilt-*-cache")
  # It is killed while it writes; jax writes the time of use afterwards.
  program.write_bytes(program.read_bytes()[:100])
  used = program.with_name(program.name.replace("-cache", "-atime"))
  used.unlink()
  assert run() == ["False", "3.0", "True", "3.0"]
  assert used.exists() and program.stat().st_size > 100
  # Who can write there can have this user run anything.
  assert program.parent.stat().st_mode & 0o077 == 0
