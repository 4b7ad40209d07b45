"""The corpus and questions of each seed."""

import json

import pytest

from experiments.data import GeneratedWorlds
from experiments.world.world import WorldConfig
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError

_WORLD = WorldConfig(num_people=24, num_cities=24, num_companies=16)


@pytest.mark.slow
def test_each_seed_has_a_world_of_its_own_which_is_made_once(tmp_path):
  worlds = GeneratedWorlds(_WORLD, block_length=40)
  fingerprints = []
  for seed in (0, 1):
    folder = tmp_path / f"seed-{seed}"
    worlds.prepare(folder, seed)
    files = worlds.files(folder)
    fingerprints.append(Corpus.open(files.corpus_dir).fingerprint)
    with open(files.sentences) as lines:
      assert json.loads(next(lines)).keys() >= {"question", "answer"}
  assert fingerprints[0] != fingerprints[1]
  made = (tmp_path / "seed-0/world/articles.jsonl").stat().st_mtime_ns
  worlds.prepare(tmp_path / "seed-0", 0)
  assert (tmp_path / "seed-0/world/articles.jsonl").stat().st_mtime_ns == made
  with pytest.raises(RealmError, match=r"a world of other settings.*remove it"):
    GeneratedWorlds(_WORLD, block_length=48).prepare(tmp_path / "seed-0", 0)
