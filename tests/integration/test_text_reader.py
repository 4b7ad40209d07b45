"""A reader that writes, from its pre-training to questions, by commands."""

import contextlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import linen as nn

import realm_jax
from harness.jobs import wait_until
from harness.served_run import TEMPLATES, ServedRun
from realm_jax.checkpoints.store import CheckpointStore, loop_record
from realm_jax.corpus.update import add_views
from realm_jax.errors import RealmError
from realm_jax.evaluation.evaluate import evaluate
from realm_jax.models.cross_encoder import CrossEncoder
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.integration.commands import MODEL_FILE, Commands, losses
from tests.json_lines import read_lines
from tests.text.test_sentencepieces import MODEL
from tests.tiny_world import World

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_MODEL = "tests/integration/tiny_text.gin"
_MASKED = {
  "NUM_STEPS": 6,
  "SAVE_EVERY_STEPS": 2,
  "KEEP_CHECKPOINTS": 4,
  "LAG_STEPS": 2,
  "WAIT_FOR_SNAPSHOTS": True,
  "TASK": "masked_salient_spans",
  "QUESTION_FILES": {},
  "UNMASKED_SPAN_KINDS": [],
  "DROP_SOURCE": True,
  "PROMPT": "{query}",
  "NUM_READ": 3,
}


def with_view(world: World, folder: Path, view: str) -> World:
  """A copy of a world whose corpus has a view."""
  shutil.copytree(world.corpus_dir, folder / "corpus")
  shutil.copy(world.question_file, folder)
  add_views(folder / "corpus", [view])
  return World(folder)


@pytest.fixture(scope="module")
def viewed(world, tmp_path_factory) -> World:
  return with_view(world, tmp_path_factory.mktemp("viewed"), "t5:train:300")


@pytest.fixture(scope="module")
def commands(viewed) -> Commands:
  return Commands(viewed, _MODEL)


@pytest.fixture(scope="module")
def pretrained(commands, tmp_path_factory) -> Path:
  """A pre-training that swaps the snapshot of step 0 for that of step 2."""
  folder = tmp_path_factory.mktemp("pretrained") / "run"

  def build(step: int) -> None:
    checkpoint = folder / "checkpoints" / str(step)
    wait_until(checkpoint.exists, what="checkpoint")
    commands.world.build_snapshot(folder, checkpoint_step=step)

  with ThreadPoolExecutor(1) as thread:
    building = [thread.submit(build, step) for step in (0, 2)]
    commands.train("text_to_text", folder, **_MASKED)
    for one in building:
      one.result()
  return folder


def test_it_resumes_exactly_though_snapshots_are_swapped(
  pretrained, commands, tmp_path
):
  assert [row["snapshot"] for row in read_rows(pretrained)] == [0] * 4 + [2] * 2
  for name in ("checkpoints/2", "snapshots"):
    shutil.copytree(pretrained / name, tmp_path / name)
  commands.train("text_to_text", tmp_path, **_MASKED)
  assert losses(tmp_path) == losses(pretrained)[2:]


def test_its_masked_sentences_are_evaluated(pretrained, commands, tmp_path):
  metrics = commands.call(
    *(evaluate, "eval_masked_text"),
    MODEL_DIR=pretrained,
    OUTPUT_DIR=tmp_path,
    NUM_BATCHES=2,
    BATCH_SIZE=8,
    NUM_READ=3,
    PROMPT="{query}",
  )
  assert metrics["num_candidates"] == 3 and metrics["num_queries"] == 16
  assert 0 <= metrics["exact_targets"] <= metrics["token_accuracy"] <= 1
  assert metrics["perplexity"] > 1


@pytest.fixture(scope="module")
def answering(pretrained, commands, tmp_path_factory) -> Path:
  """A run that has learned to answer questions from that pre-training."""
  folder = tmp_path_factory.mktemp("answering") / "run"
  with commands.index_builder(folder):
    commands.train(
      *("text_to_text", folder),
      TRAIN_QUESTIONS=commands.world.question_file,
      INITIAL_CHECKPOINT=pretrained,
      NUM_READ=3,
      NUM_STEPS=4,
      SAVE_EVERY_STEPS=4,
      SWAP_SNAPSHOTS=False,
    )
  return folder


@pytest.fixture
def evaluated(commands, tmp_path):
  """`evaluated(model_dir, …)`: the metrics and lines of all questions."""

  def run(model_dir: Path, **bindings):
    metrics = commands.call(
      *(evaluate, "eval"),
      MODEL_DIR=model_dir,
      OUTPUT_DIR=tmp_path,
      QUESTIONS=commands.world.question_file,
      **bindings,
    )
    assert metrics["num_questions"] == 11
    return metrics, read_lines(tmp_path / "predictions.jsonl")

  return run


def test_answers_are_texts_with_their_parts_in_the_blocks(
  answering, commands, evaluated
):
  _, lines = evaluated(answering, NUM_READ=3)
  for line in lines:
    assert line["answer"] is None
    assert [e["read"] for e in line["evidence"]].count(True) == 3
  run = realm_jax.load(answering)
  (found,) = run.ask(["where was Ada born?"])
  assert [answer.block for answer in found.answers] == [None]
  assert len(found.hits) == 3
  assert sum(hit.share for hit in found.hits) == pytest.approx(1.0)
  given = run.explain("where was Ada born?", answer="Rome")
  assert given.answer == "Rome" and 0 < given.probability < 1
  assert [a.text for a in given.answers] == [a.text for a in found.answers]
  # What is read is the text as it is edited.
  row = found.hits[0].block.row
  edited = run.edited({row: "Nobody was born in Rome."})
  changed = edited.explain("where was Ada born?", answer="Rome")
  assert changed.probability != given.probability
  # The block tower was trained, too.
  assert run.snapshot_step == 0
  commands.world.build_snapshot(answering)
  assert realm_jax.load(answering).snapshot_step == 4


@pytest.mark.parametrize(
  ("stage", "reader"),
  [("text_to_text", _MODEL), ("open_qa", MODEL_FILE), ("pretrain", MODEL_FILE)],
)
def test_a_cross_encoder_chooses_what_is_read(stage, reader, viewed, tmp_path):
  model = tmp_path / "model.gin"
  model.write_text(
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.models import bert\n"
    "from realm_jax.models import cross_encoder\n"
    f'include "{reader}"\n'
    "cross_encoder.CrossEncoder.bert = @bert.BertConfig()\n"
    "cross_encoder.CrossEncoder.joint_length = %JOINT_LENGTH\n"
    'COMPONENTS = {"reranker": @cross_encoder.CrossEncoder()}\n'
  )
  commands = Commands(viewed, str(model))
  settings = {"RERANK_DEPTH": 7, "NUM_STEPS": 2}
  if stage == "pretrain":
    settings |= {
      "NUM_CANDIDATES": 3,
      "LAG_STEPS": 2,
      "RETRIEVE_ON_DEVICE": True,
    }
  else:
    settings |= {"NUM_READ": 3, "SWAP_SNAPSHOTS": False}
    settings["TRAIN_QUESTIONS"] = viewed.question_file
  with pytest.raises(RealmError, match="the reranker is not trained here"):
    commands.train(stage, tmp_path / "none", **settings)
  words = viewed.corpus.vocabulary
  module = CrossEncoder(
    tiny_world.RETRIEVER.bert, joint_length=tiny_world.JOINT_LENGTH
  ).for_vocabulary(vocab_size=words.size, separator_id=words.sep_id)
  lengths = {
    "query_length": tiny_world.QUERY_LENGTH,
    "block_length": tiny_world.BLOCK_LENGTH,
  }
  reranker = nn.unbox(module.init_parameters(jax.random.key(0), **lengths))
  with contextlib.closing(CheckpointStore(tmp_path / "initial")) as store:
    store.save(0, {"reranker": reranker, "loop": loop_record([])})
    store.wait()
  settings["INITIAL_CHECKPOINT"] = tmp_path / "initial"
  if stage == "open_qa":
    settings["NUM_MICROBATCHES"] = 2
  with commands.index_builder(tmp_path / "run"):
    commands.train(stage, tmp_path / "run", **settings)
  # What comes after has the same cross-encoder, and as many blocks for it.
  run = realm_jax.load(tmp_path / "run")
  assert run.reranks and run.config.rerank_depth == 7
  jax.tree.map(np.testing.assert_array_equal, run.params["reranker"], reranker)


def test_a_served_reader_teaches_what_it_does_inside(
  answering, commands, tmp_path
):
  settings = {
    "TRAIN_QUESTIONS": commands.world.question_file,
    "INITIAL_CHECKPOINT": answering,
    "OBJECTIVE": "perplexity",
    "NUM_READ": 3,
    "NUM_STEPS": 4,
    "SWAP_SNAPSHOTS": False,
    "LEARNING_RATE": 1e-2,
    # Its masks are drawn by the number of components.
    "retriever.BertRetriever.projection_dropout_rate": 0.0,
    "STEPS_AHEAD": 1,
  }
  inside, outside = tmp_path / "inside", tmp_path / "outside"
  with commands.index_builder(inside):
    commands.train("text_to_text", inside, FREEZE_READER=True, **settings)
  with (
    ServedRun(realm_jax.load(answering)) as server,
    commands.index_builder(outside),
  ):
    commands.train(
      *("served_reader", outside),
      READER_URL=server.url,
      READER_MODEL="answering",
      SCORE_CACHE=tmp_path / "scores.sqlite",
      **{**TEMPLATES, **settings},
    )
  one, other = (
    [row["retriever_loss"] for row in read_rows(folder)]
    for folder in (inside, outside)
  )
  assert one == pytest.approx(other, rel=1e-3)
  assert len({round(loss, 4) for loss in one}) == len(one)


def test_closed_book_neither_training_nor_answers_need_an_index(
  commands, evaluated, tmp_path
):
  folder = tmp_path / "closed"
  commands.train(
    *("text_to_text", folder),
    TRAIN_QUESTIONS=commands.world.question_file,
    NUM_READ=1,
    NULL_BLOCK=True,
    NUM_STEPS=2,
  )
  metrics, lines = evaluated(folder, CANDIDATES="none", NUM_READ=1)
  assert metrics["num_searched"] == 0 and "snapshot" not in metrics
  assert [len(line["evidence"]) for line in lines] == [1] * 11


def test_a_text_to_text_task_is_trained_and_evaluated_without_questions(
  commands, tmp_path, monkeypatch
):
  (tmp_path / "claims.tsv").write_text("Ada was born.\tSUPPORTS\n" * 3)
  (tmp_path / "own_claims.py").write_text(
    "import seqio, tensorflow as tf\n"
    "from realm_jax.tasks import text_to_text\n"
    "def read(records):\n"
    "  return records.map(lambda r: {**r, 'inputs': r['text'],\n"
    "    'targets': tf.strings.split(r['text'], '\\t')[1]})\n"
    f"path = {str(tmp_path / 'claims.tsv')!r}\n"
    "source = seqio.TextLineDataSource({'train': path, 'test': path})\n"
    "text_to_text.add('own_claims', source, [read])\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  task = {
    "TASK": "own_claims",
    "QUESTION_FILES": {},
    "TASK_MODULES": ["realm_jax.tasks", "own_claims"],
    "NUM_READ": 1,
  }
  folder = tmp_path / "run"
  commands.train(
    "text_to_text", folder, NULL_BLOCK=True, NUM_STEPS=2, BATCH_SIZE=2, **task
  )
  metrics = commands.call(
    *(evaluate, "eval"), MODEL_DIR=folder, CANDIDATES="none", **task
  )
  assert metrics["num_questions"] == 3
  lines = read_lines(folder / "eval" / "predictions.jsonl")
  assert [line["references"] for line in lines] == [["SUPPORTS"]] * 3
  right = [line["prediction"].lower() == "supports" for line in lines]
  assert metrics["exact_match"] == sum(right) / 3


def test_a_corpus_with_another_vocabulary_is_refused(
  answering, world, tmp_path
):
  other = with_view(world, tmp_path, f"t5:{MODEL}")
  with pytest.raises(RealmError, match=r"another view .* --view=NAME"):
    realm_jax.load(answering, corpus_dir=other.corpus_dir)
  with pytest.raises(RealmError, match="reads the view 't5'"):
    realm_jax.load(answering, corpus_dir=world.corpus_dir)
