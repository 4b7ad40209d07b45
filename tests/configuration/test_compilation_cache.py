"""Compiled programs are kept for the next process, and nothing else changes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

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


@pytest.fixture
def compile_in_process(tmp_path, command_environment):
  """`compile_in_process(**environment)` returns whether programs were there."""

  def run(**environment):
    own = {"XDG_CACHE_HOME": str(tmp_path), **environment}
    given = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    inherited = dict(command_environment)
    for name in ("JAX_COMPILATION_CACHE_DIR", "REALM_JAX_CACHE_DIR"):
      inherited.pop(name, None)
    done = subprocess.run(
      [sys.executable, "-c", _PROGRAM],
      env=inherited | given | own,
      capture_output=True,
      text=True,
      check=True,
    )
    assert done.stderr == ""
    found, result = done.stdout.split()
    assert result == "3.0"
    return found == "True"

  return run


def _programs(folder):
  return [*folder.rglob("*-cache")]


def test_a_second_process_compiles_nothing_but_what_was_spoilt(
  compile_in_process, tmp_path
):
  assert not compile_in_process()
  for program in _programs(tmp_path):
    # It is killed while it writes; jax writes the time of use afterwards.
    program.write_bytes(program.read_bytes()[:100])
    program.with_name(program.name.replace("-cache", "-atime")).unlink()
  assert not compile_in_process()
  assert compile_in_process()
  # Who can write there can have this user run anything.
  (folder,) = {program.parent for program in _programs(tmp_path)}
  assert folder.stat().st_mode & 0o077 == 0


def test_a_folder_that_the_user_has_set_is_taken(compile_in_process, tmp_path):
  other = tmp_path / "other"
  compile_in_process(JAX_COMPILATION_CACHE_DIR=str(other))
  assert not (tmp_path / "realm_jax").exists()
  assert _programs(other)
