"""The corpus and questions of each seed."""

import json

import pytest

from experiments.data import GeneratedWorlds, read_lines, write_judged
from experiments.world.world import WorldConfig
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from tests.json_lines import write_lines

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
  written_at = (tmp_path / "seed-0/world/articles.jsonl").stat().st_mtime_ns
  worlds.prepare(tmp_path / "seed-0", 0)
  assert (
    tmp_path / "seed-0/world/articles.jsonl"
  ).stat().st_mtime_ns == written_at
  with pytest.raises(RealmError, match=r"a world of other settings.*remove it"):
    GeneratedWorlds(_WORLD, block_length=48).prepare(tmp_path / "seed-0", 0)


def test_judged_questions_are_complete_or_absent(tmp_path):
  articles = [{"id": "a", "text": "Velt"}, {"id": "b", "text": "Tarn"}]
  asked = [{"question": f"{name}?", "documents": [name]} for name in "ab"]
  write_lines(tmp_path / "articles.jsonl", articles[:1])
  write_lines(tmp_path / "questions-train.jsonl", asked)
  path = tmp_path / "judged.jsonl"
  with pytest.raises(KeyError):
    write_judged(tmp_path, path)
  assert not path.exists()
  write_lines(tmp_path / "articles.jsonl", articles)
  write_judged(tmp_path, path)
  assert read_lines(path) == [
    {"query": "a?", "positive_passages": [articles[0]]},
    {"query": "b?", "positive_passages": [articles[1]]},
  ]
