"""Publication: whole or not at all, whoever dies and whoever else builds."""

import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from realm_jax.files.local_disk.disk_full import DiskFullError
from realm_jax.generations.follow.loading import load_generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import Lease, leased_steps
from realm_jax.generations.store.publisher import (
  publish,
  remove_damaged,
  remove_drafts,
)
from tests.generations.conftest import fill, make_corpus, prune, publish_one

# Publishes step 500 beside a sound step 0, once as the first and once in place
# of another, and is killed at its first call into the file system, at its
# second, … until one survives.
_KILLED_AT_EVERY_CALL = """
import sys
from pathlib import Path
from realm_jax.corpus.store import Corpus
from realm_jax.generations.store import publisher
from tests.generations.conftest import fill
from tests.killed_at_each_call import survives

def publish(directory, step, **values):
  publisher.publish(directory, step, lambda d: fill(d, corpus, step, **values))

root, corpus = Path(sys.argv[1]), Corpus.open(sys.argv[2])
for kind in ("first", "replacing"):
  calls, is_killed = 0, True
  while is_killed:
    directory = root / kind / f"{calls:03d}"
    publish(directory, 0)
    if kind == "replacing":
      publish(directory, 500, embed_seconds=7.0)
    is_killed = not survives(lambda: publish(directory, 500), calls=calls)
    calls += 1
"""


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
    publish_one(path, corpus, 500)
    assert _sound(path) == [0, 500]
    assert len(list((path / "00000500").iterdir())) == 2


@pytest.mark.slow
def test_a_builder_killed_while_it_replaces_leaves_the_old_or_the_new(killed):
  attempts = sorted((killed / "replacing").iterdir())
  found = []
  for path in attempts:
    assert _sound(path) == [0, 500]
    found.append(manifests.read(path / "00000500").embed_seconds)
  assert sorted(found, reverse=True) == found and set(found) == {7.0, 1.0}


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
  # A builder that finds nothing left to remove goes on.
  assert remove_damaged(generations_dir) == [500]


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
  assert not (generations_dir / "00000500").exists()


def test_another_of_the_same_step_takes_its_place(
  generations_dir, corpus, tmp_path
):
  other = make_corpus(tmp_path / "other", num_blocks=20, seed=1)
  publish_one(generations_dir, other, 500)
  seen = []

  def write(directory):
    # Until the manifest is written, the old one is the generation.
    seen.append(load_generation(generations_dir, 500, corpus=other).num_blocks)
    return fill(directory, corpus, 500)

  publish(generations_dir, 500, write)
  assert seen == [20]
  assert load_generation(generations_dir, 500, corpus=corpus).num_blocks == 150
  assert len(list((generations_dir / "00000500").iterdir())) == 2


def test_drafts_go_unless_they_are_needed(generations_dir, corpus):
  publish_one(generations_dir, corpus, 500)
  for step, name in (
    ("00000100", "aaaa"),
    ("00000500", "bbbb"),
    ("00000500", "cccc"),
    ("00000700", "build-dddd"),
    ("00000800", "eeee"),
  ):
    (generations_dir / step / name).mkdir(parents=True)
  remove_drafts(generations_dir, lambda step, name: name in ("bbbb", "eeee"))
  assert _sound(generations_dir) == [500]
  left = {str(p.relative_to(generations_dir)) for p in _drafts(generations_dir)}
  assert left == {"00000500/bbbb", "00000700/build-dddd", "00000800/eeee"}
  assert not (generations_dir / "00000100").exists()


def _drafts(generations_dir):
  folder = manifests.read(generations_dir / "00000500").folder
  folders = (path for path in generations_dir.glob("*/*") if path.is_dir())
  return [path for path in folders if path.name != folder]


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
