"""Publication: whole or not at all, whoever dies and whoever else builds."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from realm_jax.files import remote
from realm_jax.files.disk_full import DiskFullError
from realm_jax.generations.follow.loading import load_generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import Lease, leased_steps
from realm_jax.generations.store.publisher import (
  publish,
  remove_damaged,
  remove_leftovers,
)
from tests.generations.conftest import fill, make_corpus, prune, publish_one

_OLD = 1_000_000_000

# Publishes step 500 beside a sound step 0, once as the first and once in place
# of another, and kills itself with SIGKILL at the n-th call into the file
# system, for n = 0, 1, … until one survives. Each attempt is a fork, so that
# Python starts once.
_KILLED_AT_EVERY_CALL = textwrap.dedent(
  """
  import os, sys, time
  from pathlib import Path
  from realm_jax.corpus.store import Corpus
  from realm_jax.generations.store import layout, manifest, publisher
  from tests.generations.conftest import fill

  WATCHED = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove"}

  def attempt(root, n, replacing):
    calls = 0
    def audit(event, arguments):
      nonlocal calls
      if replacing and not calls and event != "os.rename":
        return  # It is written aside, as another is.
      if event in WATCHED:
        calls += 1
        if calls > n:
          os.kill(os.getpid(), 9)
    def write(directory):
      sys.addaudithook(audit)
      return fill(directory, corpus, 500)
    publisher.publish(root, 500, write, replaces=lambda other: True)
    os._exit(0)

  def survives(directory, n, replacing):
    publisher.publish(directory, 0, lambda d: fill(d, corpus, 0))
    if replacing:
      publisher.publish(
        directory, 500, lambda d: fill(d, corpus, 500, embed_seconds=7.0)
      )
    child = os.fork()
    if not child:
      attempt(directory, n, replacing)
    return os.waitpid(child, 0)[1] == 0

  root, corpus = Path(sys.argv[1]), Corpus.open(sys.argv[2])
  for kind in ("first", "replacing"):
    n = 0
    while not survives(root / kind / f"{n:03d}", n, kind == "replacing"):
      n += 1
  """
)


def _sound(generations_dir):
  """The published steps; each of them must be sound to the last byte."""
  steps = layout.published_steps(generations_dir)
  for step in steps:
    path = layout.path_of(generations_dir, step)
    manifests.verify(path, manifests.read(path))
  return steps


@pytest.fixture(scope="module")
def killed(tmp_path_factory, corpus):
  """The directories of all attempts, below `first` and `replacing`."""
  root = tmp_path_factory.mktemp("killed")
  subprocess.run(
    [sys.executable, "-c", _KILLED_AT_EVERY_CALL, root, corpus.source],
    check=True,
    cwd=Path(__file__).parents[3],
    timeout=240,
  )
  return root


@pytest.mark.slow
def test_a_builder_killed_at_any_call_publishes_nothing_or_everything(
  killed, corpus
):
  attempts = sorted((killed / "first").iterdir())
  assert len(attempts) > 20
  outcomes = {tuple(_sound(path)) for path in attempts}
  assert outcomes == {(0,), (0, 500)}
  assert _sound(attempts[0]) == [0] and _sound(attempts[-1]) == [0, 500]
  for path in attempts:
    # Starting again is all it takes, and nothing stays behind.
    for leftover in path.glob(".tmp-*"):
      os.utime(leftover, (_OLD, _OLD))
    publish_one(path, corpus, 500)
    assert _sound(path) == [0, 500]
    assert not list(path.glob(".tmp-*")) and not list(path.glob(".trash-*"))


@pytest.mark.slow
def test_a_builder_killed_while_it_replaces_leaves_the_old_or_the_new(killed):
  attempts = sorted((killed / "replacing").iterdir())
  before = [_sound(path) for path in attempts]
  # Between two calls there is none.
  assert [steps for steps in before if steps != [0, 500]] == [[0]]
  found = []
  for path in attempts:
    remove_leftovers(path)
    assert _sound(path) == [0, 500]
    found.append(manifests.read(path / "00000500").embed_seconds)
    assert not list(path.glob(".replaced-*"))
    assert not list(path.glob(".trash-*"))
  assert sorted(found, reverse=True) == found and set(found) == {7.0, 1.0}


def test_a_generation_that_cannot_be_put_in_place_leaves_the_old(
  generations_dir, corpus, monkeypatch
):
  publish_one(generations_dir, corpus, 500)
  rename = os.rename

  def fail(source, target):
    if str(source).startswith(str(generations_dir / ".tmp-")):
      raise OSError(errno.EIO, "input/output error")
    rename(source, target)

  monkeypatch.setattr(os, "rename", fail)
  with pytest.raises(OSError, match="input/output error"):
    publish(
      generations_dir,
      500,
      lambda directory: fill(directory, corpus, 500),
      replaces=lambda other: True,
    )
  assert _sound(generations_dir) == [500]
  assert not list(generations_dir.glob(".replaced-*"))


def test_what_is_made_again_while_damage_is_looked_for_stays(
  generations_dir, corpus, monkeypatch
):
  publish_one(generations_dir, corpus, 500, embed_seconds=7.0)
  path = generations_dir / "00000500"
  (path / "embeddings-00000-of-00003.npy").write_bytes(b"")
  verify = manifests.verify

  def verify_late(directory, manifest):
    monkeypatch.setattr(manifests, "verify", verify)
    try:
      verify(directory, manifest)
    finally:
      # Another builder has seen the damage, too, and is done with it.
      assert remove_damaged(generations_dir) == [500]
      publish_one(generations_dir, corpus, 500)

  monkeypatch.setattr(manifests, "verify", verify_late)
  assert remove_damaged(generations_dir) == []
  assert _sound(generations_dir) == [500]


def test_what_goes_while_it_is_verified_is_called_damaged(
  generations_dir, corpus, monkeypatch
):
  publish_one(generations_dir, corpus, 500)
  path = generations_dir / "00000500"
  manifest = manifests.read(path)
  checksum = manifests.sha256_of

  def remove_and_read(file, **settings):
    shutil.rmtree(path, ignore_errors=True)
    return checksum(file, **settings)

  monkeypatch.setattr(manifests, "sha256_of", remove_and_read)
  with pytest.raises(manifests.DamagedGenerationError, match="is missing"):
    manifests.verify(path, manifest)
  monkeypatch.undo()
  publish_one(generations_dir, corpus, 500)
  monkeypatch.setattr(manifests, "sha256_of", remove_and_read)
  # Nothing is left for a builder to remove, and it goes on.
  assert remove_damaged(generations_dir) == []


def test_an_error_while_writing_leaves_nothing(generations_dir, corpus):
  def write(directory):
    fill(directory, corpus, 500)
    raise RuntimeError("the model broke")

  with pytest.raises(RuntimeError, match="the model broke"):
    publish(generations_dir, 500, write)
  assert not list(generations_dir.glob("*500*"))
  assert not list(generations_dir.glob(".tmp-*"))


def test_a_full_disk_is_said_and_harms_nothing(generations_dir, corpus):
  publish_one(generations_dir, corpus, 0)
  # The kernel refuses files above a size, as it refuses blocks on a full disk.
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
  try:
    with pytest.raises(DiskFullError, match="500 was not written: free some"):
      publish_one(generations_dir, corpus, 500)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  assert _sound(generations_dir) == [0]
  assert not list(generations_dir.glob(".tmp-*"))


def test_other_errors_of_the_system_are_not_called_a_full_disk(
  generations_dir,
):
  def write(directory):
    raise OSError(errno.EIO, "input/output error")

  with pytest.raises(OSError, match="input/output error"):
    publish(generations_dir, 500, write)


@pytest.mark.parametrize("is_remote", [False, True])
def test_of_two_builders_the_first_wins(
  generations_dir, corpus, is_remote, monkeypatch
):
  monkeypatch.setattr(remote, "is_remote", lambda path: is_remote)
  inner = []

  def write(directory):
    # While this one builds, another builds the same and is done earlier.
    inner.append(
      publish(
        generations_dir,
        500,
        lambda d: fill(d, corpus, 500, embed_seconds=7.0),
      )
    )
    return fill(directory, corpus, 500, embed_seconds=8.0)

  outer = publish(generations_dir, 500, write)
  assert (inner, outer) == ([True], False)
  assert _sound(generations_dir) == [500]
  assert manifests.read(generations_dir / "00000500").embed_seconds == 7.0


def test_a_damaged_generation_is_replaced_and_a_sound_one_is_not(
  generations_dir, corpus
):
  assert publish_one(generations_dir, corpus, 500)
  assert not publish_one(generations_dir, corpus, 500)
  (generations_dir / "00000500" / "embeddings-00000-of-00003.npy").unlink()
  assert publish_one(generations_dir, corpus, 500)
  assert _sound(generations_dir) == [500]


def test_a_generation_of_another_corpus_gives_way_when_told(
  generations_dir, corpus, tmp_path
):
  other = make_corpus(tmp_path / "other", num_blocks=20, seed=1)
  publish_one(generations_dir, other, 500)
  published = publish(
    generations_dir,
    500,
    lambda directory: fill(directory, corpus, 500),
    replaces=lambda old: old.corpus_fingerprint != corpus.fingerprint,
  )
  assert published
  assert load_generation(generations_dir, 500, corpus=corpus).num_blocks == 150


def test_without_rename_the_manifest_is_the_commit(
  generations_dir, corpus, monkeypatch
):
  monkeypatch.setattr(remote, "is_remote", lambda path: True)
  seen = []

  def write(directory):
    seen.append(layout.published_steps(generations_dir))
    return fill(directory, corpus, 500)

  assert publish(generations_dir, 500, write)
  assert seen == [[]]
  manifest = manifests.read(generations_dir / "00000500")
  assert manifest.folder.startswith("build-")
  generation = load_generation(generations_dir, 500, corpus=corpus)
  assert generation.num_blocks == 150


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(
  generations_dir, corpus
):
  dead = generations_dir / ".tmp-00000100-1-abc"
  dead.mkdir(parents=True)
  (dead / "embeddings-00000-of-00001.npy").write_bytes(b"half")
  trash = generations_dir / ".trash-00000000-abc"
  trash.mkdir()
  os.utime(dead, (_OLD, _OLD))

  def write(directory):
    os.utime(directory, (_OLD, _OLD))
    publish_one(generations_dir, corpus, 0)
    assert directory.exists()
    return fill(directory, corpus, 500)

  assert publish(generations_dir, 500, write)
  assert _sound(generations_dir) == [0, 500]
  assert not dead.exists() and not trash.exists()


def test_the_last_few_the_leased_and_the_pinned_are_kept(
  generations_dir, corpus
):
  for step in (0, 500, 1000, 1500, 2000, 2500):
    publish_one(generations_dir, corpus, step)
  lease = Lease(generations_dir)
  lease.hold({500})
  assert prune(generations_dir, keep=2, pinned={1000, 77}) == [0, 1500]
  assert _sound(generations_dir) == [500, 1000, 2000, 2500]
  lease.release()
  assert prune(generations_dir, keep=2) == [500, 1000]
  with pytest.raises(ValueError, match="keep=0"):
    prune(generations_dir, keep=0)


def test_a_lease_runs_out_unless_it_is_renewed(generations_dir):
  short = Lease(generations_dir, lifetime_seconds=0.4)
  long = Lease(generations_dir)
  short.hold({500})
  long.hold({500, 1000})
  assert leased_steps(generations_dir) == {500, 1000}
  long.release()
  deadline = time.monotonic() + 1.2
  while time.monotonic() < deadline:
    short.hold({500})
    assert leased_steps(generations_dir) == {500}
    time.sleep(0.05)
  time.sleep(0.5)
  assert leased_steps(generations_dir) == set()
  assert not list((generations_dir / "leases").glob("*.json"))


def test_a_lease_that_was_removed_is_written_again(generations_dir):
  lease = Lease(generations_dir)
  lease.hold({500})
  shutil.rmtree(generations_dir)
  lease.hold({500})
  assert leased_steps(generations_dir) == {500}


def test_a_file_that_is_no_lease_holds_nothing(generations_dir):
  Lease(generations_dir).hold({3})
  (generations_dir / "leases" / "x.json").write_text("{")
  (generations_dir / "leases" / "y.json").write_text("[]")
  assert leased_steps(generations_dir) == {3}


def test_a_missing_directory_has_no_generations(tmp_path):
  assert layout.published_steps(tmp_path / "nowhere") == []
  assert leased_steps(tmp_path / "nowhere") == set()
  assert prune(tmp_path / "nowhere", keep=1) == []
