"""What the stages of paths learn from questions with their paths."""

import dataclasses

import numpy as np
import pytest

from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import DataConfig
from realm_jax.models.components import Components
from realm_jax.models.path_reader import PathReader
from realm_jax.training.path_search import BeamOverLinks
from realm_jax.training.stages.paths import PathReading, PathRetrieval
from realm_jax.training.stages.stage import StageContext
from tests import linked_world, tiny_world
from tests.json_lines import write_lines

STAGE = PathRetrieval(num_negatives=3, num_linked=2, prefix_rate=0.0)
# Rows of people, and of the towns to which they link.
ADA, BELA, CLEO, VELT, TARN, OSKER = 0, 1, 2, 8, 9, 10


@pytest.fixture(scope="module")
def world(tmp_path_factory):
  return linked_world.build(tmp_path_factory.mktemp("linked"))


@pytest.fixture
def features(world, tmp_path):
  """`features(stage, question, found)`: what a stage makes of a question."""

  def call(stage, question, found):
    path = write_lines(tmp_path / "own.jsonl", [question])
    data = DataConfig(
      task="open_qa",
      split="own",
      corpus_dir=world.corpus_dir,
      question_files={"own": path},
      batch_size=1,
      query_length=tiny_world.QUERY_LENGTH,
    )
    (batch,) = stream_batches(data, shuffle=False, repeat=False)
    rows = np.array([found], np.int32)
    context = StageContext(components, world.corpus, None, 40)
    return stage.features(batch, SearchResult(rows, np.float32(rows)), context)[
      0
    ]

  words = world.corpus.vocabulary
  reader = tiny_world.READER
  fields = {
    n: getattr(reader, n) for n in ("bert", "joint_length", "span_size")
  }
  components = Components({"reader": PathReader(**fields)}).for_vocabulary(
    vocab_size=words.size, separator_id=words.sep_id
  )
  return call


def _rows(world, tokens):
  """The rows of padded blocks."""
  known = world.corpus.gather(np.arange(NULL_ROW, 12), 40)
  return [int((known == one).all(axis=1).argmax()) - 1 for one in tokens]


def test_each_step_has_its_passage_and_others(world, features):
  (question, *_) = linked_world.questions()
  made = features(STAGE, question, [BELA, ADA, TARN, CLEO])
  # The path, what was found, and what Cleo links to.
  expected = [ADA, VELT, NULL_ROW, BELA, TARN, CLEO, OSKER, NULL_ROW]
  assert _rows(world, made.blocks[0]) == expected
  assert np.argwhere(made.is_next[0]).tolist() == [[0, 0], [1, 1], [2, 8]]
  others = [0, 0, 0, 1, 1, 1, 1, 0, 1]
  counts = [[1, *others[1:]], [0, 1, *others[2:]], others, [0] * 9]
  np.testing.assert_array_equal(made.counts[0], counts)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_path_may_begin_with_a_passage_that_leads_to_it(
  world, features, rate
):
  question = {"question": "in which land?", "answer": "peru"}
  stage = dataclasses.replace(STAGE, prefix_rate=rate)
  made = features(
    stage, {**question, "gold_ids": ["town-velt"]}, [BELA, ADA, CLEO, TARN]
  )
  rows, counts = _rows(world, made.blocks[0]), made.counts[0]
  if rate:
    assert rows[:3] == [ADA, VELT, NULL_ROW]
    assert np.argwhere(made.is_next[0]).tolist() == [[0, 0], [1, 1], [2, 8]]
    # It is wrong once it was chosen.
    assert counts[:4, 0].tolist() == [True, True, False, False]
  else:
    assert rows[:5] == [VELT, NULL_ROW, NULL_ROW, BELA, ADA]
    # Ada is not wrong as a first step, and is so as a second one.
    assert counts[:3, 4].tolist() == [False, True, False]


def test_distractors_lack_the_answer(world, features):
  (question, *_) = linked_world.questions()
  made = features(PathReading(num_negatives=3), question, [VELT, CLEO, TARN])
  words = world.corpus.vocabulary
  texts = [
    " ".join(words.pieces[i] for i in one[one != 0]) for one in made.paths[0]
  ]
  ada = "[CLS] ada stone [SEP] ada was born in velt ."
  assert texts == [
    f"{ada} velt velt lies in peru . [SEP]",
    f"{ada} cleo stone cleo was born in osker . [SEP]",
    f"{ada} tarn tarn lies in chad . [SEP]",
    "[CLS] [SEP] [SEP]",
  ]
  # The tenth token of the text, one token wide.
  assert np.argwhere(made.is_answer[0, 0]).tolist() == [[10, 0]]


def test_questions_without_a_path_teach_nothing(features):
  question = {"question": "in which land?", "answer": "peru"}
  unknown = {**question, "gold_titles": ["ada stone", "nowhere"]}
  assert not features(STAGE, unknown, [ADA, BELA]).counts.any()
  with pytest.raises(RealmError, match="no question has a path"):
    features(STAGE, question, [ADA, BELA])
  with pytest.raises(RealmError, match=r"path of 2 documents.*raise MAX_HOPS"):
    stage = dataclasses.replace(STAGE, paths=BeamOverLinks(max_hops=1))
    features(stage, linked_world.questions()[0], [ADA, BELA])
  with pytest.raises(RealmError, match="gold_ids and gold_titles; give one"):
    both = {"gold_ids": ["ada"], "gold_titles": ["ada stone"]}
    features(STAGE, {**question, **both}, [ADA, BELA])
