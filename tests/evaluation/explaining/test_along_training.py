"""Sentences along a run, of which one generation and one checkpoint stand."""

import dataclasses
import json

import numpy as np
import pytest

from realm_jax.evaluation.explaining.along_training import follow_sentences
from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.masked_text import MaskLimits
from realm_jax.evaluation.explaining.sentences import read_sentences
from realm_jax.evaluation.explaining.tables import along_training_text
from tests.evaluation.explaining.conftest import NUM_CANDIDATES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_SENTENCES = {
  "Ada was born in [MASK].": "Velt in",
  "Later [MASK] the bridge of Tarn.": "Léa built",
}
_PIECES = {
  "ada was born in [MASK] [MASK] .": ("velt", "in"),
  "later [MASK] [MASK] the bridge of tarn .": ("lea", "built"),
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
  path = tmp_path_factory.mktemp("sentences") / "sentences.jsonl"
  path.write_text(
    "\n".join(
      json.dumps({"sentence": sentence, "answer": answer})
      for sentence, answer in _SENTENCES.items()
    )
  )
  return path


@pytest.fixture(scope="module")
def later(world, model_dir, tmp_path_factory):
  """Checkpoint 4 of a run whose generation 0 stands, but not checkpoint 0."""
  directory = tmp_path_factory.mktemp("later")
  params = world.save_checkpoint(directory, step=4, seed=1, generation=0)
  (directory / "generations").symlink_to(model_dir / "generations")
  return directory, params


@pytest.fixture(scope="module")
def followed(source, sentences_config, later, lines, one_device):
  return follow_sentences(
    source=dataclasses.replace(source, model_dir=later[0]),
    data=sentences_config,
    num_candidates=NUM_CANDIDATES,
    sentences=lines,
  )


@pytest.fixture(scope="module")
def sentences_config(questions):
  return dataclasses.replace(questions, task="masked_salient_spans")


def test_each_point_has_its_own_tower_and_the_reader_that_is_kept(followed):
  found = [
    (p.step, p.generation, p.query_tower, p.reader_step)
    for p in followed.points
  ]
  assert found == [(0, 0, "generation", 4), (4, 0, "checkpoint", 4)]
  first, second = followed.points
  assert first.share_changed is None
  changed = [
    a.block != b.block for a, b in zip(first.tops, second.tops, strict=True)
  ]
  assert [top.changed for top in second.tops] == changed
  assert second.share_changed == sum(changed) / 2


def test_the_best_block_is_of_the_tower_and_its_utility_of_the_reader(
  world, followed, by_hand, params, later
):
  corpus, point = world.corpus, followed.points[0]
  rows = list(range(corpus.num_blocks))
  for top, (text, answer) in zip(point.tops, _PIECES.items(), strict=True):
    pieces = text.split()
    # The generation was built from the parameters of checkpoint 0.
    scores = by_hand.scores(params, pieces, rows)
    best = int(scores.argmax())
    assert (top.block, top.title) == (
      corpus.block_name(best),
      corpus.title(best),
    )
    kept = np.exp(np.sort(scores)[-(NUM_CANDIDATES - 1) :])
    assert top.probability == pytest.approx(kept[-1] / kept.sum(), rel=1e-4)
    null, own = by_hand.likelihoods(later[1], pieces, [-1, best], answer)
    assert top.utility == pytest.approx(np.log(own / null), abs=1e-4)


def test_the_tables_and_the_json_have_the_same(followed):
  text = along_training_text(followed)
  for point, values in zip(
    followed.points, followed.to_json()["points"], strict=True
  ):
    for top, own in zip(point.tops, values["tops"], strict=True):
      assert f"[{top.block}]" in text
      assert f"{own['utility']:+.4f}" in text
  assert all(sentence in text for sentence in _SENTENCES)


def test_a_run_without_generations(
  source, sentences_config, later, lines, tmp_path
):
  (tmp_path / "checkpoints").symlink_to(later[0] / "checkpoints")
  with pytest.raises(ExplanationError, match="no generation stands in"):
    follow_sentences(
      source=dataclasses.replace(source, model_dir=tmp_path),
      data=sentences_config,
      sentences=lines,
    )


@pytest.mark.parametrize(
  ("line", "said"),
  [
    ("no json", "line 2: Expecting value"),
    ("[1]", "line 2: it is a list; wanted"),
    ('{"sentence": "in [MASK]"}', "line 2: it has ['sentence']; wanted"),
    ('{"sentence": "in", "answer": "Velt"}', "line 2: 'in' has no [MASK]"),
  ],
)
def test_a_malformed_line_is_named(world, tmp_path, line, said):
  path = tmp_path / "sentences.jsonl"
  path.write_text('{"sentence": "in [MASK]", "answer": "Velt"}\n' + line)
  with pytest.raises(ExplanationError) as error:
    read_sentences(
      path, world.corpus.vocabulary, MaskLimits(16, 10), batch_size=8
    )
  assert said in str(error.value)


def test_a_file_without_sentences(world, tmp_path):
  words, limits = world.corpus.vocabulary, MaskLimits(16, 10)
  path = tmp_path / "sentences.jsonl"
  with pytest.raises(ExplanationError, match="there is no file"):
    read_sentences(path, words, limits, batch_size=8)
  path.write_text("\n")
  with pytest.raises(ExplanationError, match="has no sentence; wanted"):
    read_sentences(path, words, limits, batch_size=8)
