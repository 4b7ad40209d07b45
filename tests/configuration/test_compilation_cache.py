"""Compiled programs are kept for the next process, and nothing else changes."""

import subprocess
import sys

import pytest

# Compiles one program, and prints how many the cache had, and its result.
_PROGRAM = """
from realm_jax.configuration import compilation_cache
compilation_cache.enable()
import jax

hits = []
jax.monitoring.register_event_listener(
  lambda event, **_: hits.append(event.endswith("/cache_hits"))
)
result = jax.jit(lambda x: (x @ x).sum())(jax.numpy.eye(3))
print(sum(hits) > 0, result)
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
    """What a process prints: whether the program was there, and its result."""
    return subprocess.run(
      [sys.executable, "-c", _PROGRAM],
      env=environment,
      stderr=subprocess.STDOUT,
      stdout=subprocess.PIPE,
      text=True,
      check=True,
    ).stdout.split()

  assert run() == ["False", "3.0"]
  for program in tmp_path.rglob("*-cache"):
    # It is killed while it writes; jax writes the time of use afterwards.
    program.write_bytes(program.read_bytes()[:100])
    program.with_name(program.name.replace("-cache", "-atime")).unlink()
  assert run() == ["False", "3.0"]
  assert run() == ["True", "3.0"]
  # Who can write there can have this user run anything.
  (folder,) = {program.parent for program in tmp_path.rglob("*-cache")}
  assert folder.stat().st_mode & 0o077 == 0
