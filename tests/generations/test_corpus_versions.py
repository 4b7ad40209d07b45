"""`build_index` while the corpus is updated."""

import json
from pathlib import Path

import numpy as np
import pytest

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.generations.loading import load_generation
from realm_jax.generations.store import GenerationStore
from tests.generations.builds import (
  StopAfterWaits,
  build,
  embed,
  follow_until_idle,
  params_of,
  save,
)
from tests.generations.conftest import PIECES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


def _update(corpus, changes):
  """A new version of a corpus, by JSON Lines beside it."""
  path = Path(corpus.source).with_name("changes.jsonl")
  path.write_text("".join(json.dumps(change) + "\n" for change in changes))
  update_corpus([str(path)], corpus.source, tagger=None)


def _small_corpus(tmp_path):
  words = [f"w{i}" for i in range(59)]
  rows = [
    {"id": f"d{i}", "title": "w0", "text": " ".join(words[i : i + 6]) + "."}
    for i in range(40)
  ]
  (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
  # A full stop is in no word.
  (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, ".", *"w0123456789"]))
  build_corpus(
    [str(tmp_path / "rows.jsonl")],
    tmp_path / "small",
    vocab=str(tmp_path / "vocab.txt"),
    block_length=32,
    tagger=None,
  )
  return Corpus.open(tmp_path / "small")


def test_a_corpus_that_is_gone_for_a_while_stops_nobody(tmp_path):
  corpus = _small_corpus(tmp_path)
  manifest = Path(corpus.source) / "corpus.json"
  away = manifest.with_name("away")
  stop = StopAfterWaits(
    5,
    actions=[
      lambda: manifest.rename(away),
      lambda: save(tmp_path, corpus, 0),
      lambda: away.rename(manifest),
      lambda: _update(corpus, [{"id": "d7", "remove": True}]),
    ],
  )
  assert follow_until_idle(tmp_path, corpus, stop=stop) == [0, 0]
  store = GenerationStore(tmp_path / "generations")
  assert store.manifest(0).corpus_version == 2


def test_a_partial_refresh_embeds_what_is_new_in_a_version(tmp_path):
  corpus = _small_corpus(tmp_path)
  settings = {"refresh_fraction": 0.4}
  save(tmp_path, corpus, 0, 500)
  build(tmp_path, corpus, checkpoint_step=0, **settings)
  added = {"id": "new", "title": "w1", "text": "w50 w51."}
  _update(corpus, [{"id": "d7", "remove": True}, added])
  newest = corpus.newest()
  row = newest.rows_of(np.array([block_id(newest.name, "new", 0)]))

  def built(step):
    assert build(tmp_path, corpus, **settings) == [step]
    generation = load_generation(tmp_path / "generations", step, corpus=corpus)
    steps = generation.embeddings.steps(np.arange(newest.num_blocks))
    return generation, steps

  generation, steps = built(500)
  partial = generation.manifest.partial
  assert (partial["base"], partial["new_blocks"]) == (0, 1)
  assert steps[row] == [500]
  assert 10 < np.sum(steps == 0) < 30
  for step in (0, 500):
    old = steps == step
    tokens = newest.gather(np.flatnonzero(old), 64)
    np.testing.assert_allclose(
      generation.vectors(np.flatnonzero(old)),
      embed(corpus, params_of(corpus, step), tokens, "embed_blocks"),
      atol=1e-5,
    )
  # Of the same checkpoint, what is new alone is embedded.
  _update(corpus, [{"id": "more", "title": "w1", "text": "w52 w53."}])
  newest = corpus.newest()
  generation, later = built(500)
  partial = generation.manifest.partial
  assert (partial["base"], partial["embedded_blocks"]) == (500, 1)
  assert np.sum(later == 0) == np.sum(steps == 0)
  assert build(tmp_path, corpus, **settings) == []
