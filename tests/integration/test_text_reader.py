"""A reader that writes, from its pre-training to questions, by commands."""

import shutil
from pathlib import Path

import pytest

import realm_jax
from harness.faults import verdict
from harness.faults.disturbed import Disturbed, Fault, finish
from harness.pretraining import Run
from realm_jax import supervisor
from realm_jax.corpus.update import add_views
from realm_jax.errors import RealmError
from realm_jax.evaluation.evaluate import evaluate
from tests.integration.commands import Commands
from tests.json_lines import read_lines
from tests.text.test_sentencepieces import MODEL
from tests.tiny_world import World

pytestmark = [
  pytest.mark.slow,
  pytest.mark.usefixtures("quick_jobs", "one_device"),
]

_MODEL = "tests/integration/tiny_text.gin"
_STEPS, _SAVE_EVERY = 12, 4
_MASKED = {
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
def runs(viewed, tmp_path_factory, command_environment, quick_jobs):
  """The same pre-training undisturbed, and with both processes killed."""
  folder = tmp_path_factory.mktemp("runs")

  def run(name: str, environment: dict[str, str]) -> Run:
    return Run(
      directory=folder / name,
      corpus_dir=viewed.corpus_dir,
      model=_MODEL,
      num_steps=_STEPS,
      save_every_steps=_SAVE_EVERY,
      recipe="text_to_text",
      settings=_MASKED,
      environment=environment,
    )

  unbroken = run("unbroken", command_environment)
  assert finish(unbroken)["problems"] == []
  supervised = {**command_environment}
  del supervised[supervisor.VARIABLE]
  broken = run("broken", supervised)
  with Disturbed(broken) as here:
    here.inject(Fault("kill both", _SAVE_EVERY, 0.5, seed=0))
    here.complete()
  return unbroken, broken


def test_a_kill_changes_nothing_while_snapshots_are_swapped(runs):
  unbroken, broken = runs
  assert verdict.differences(unbroken, broken) == []
  assert {row["snapshot"] for row in verdict.curve(unbroken)} == {0, 4}


def test_its_masked_sentences_are_evaluated(runs, commands, tmp_path):
  figures = commands.call(
    *(evaluate, "eval_masked_text"),
    MODEL_DIR=runs[0].model_dir,
    OUTPUT_DIR=tmp_path,
    NUM_BATCHES=2,
    BATCH_SIZE=8,
    NUM_READ=3,
    PROMPT="{query}",
  )
  assert figures["num_candidates"] == 3 and figures["num_queries"] == 16
  assert 0 <= figures["exact_targets"] <= figures["token_accuracy"] <= 1
  assert figures["perplexity"] > 1


@pytest.fixture(scope="module")
def answering(runs, commands, tmp_path_factory) -> Path:
  """A run that has learned to answer questions from that pre-training."""
  folder = tmp_path_factory.mktemp("answering") / "run"
  with commands.index_builder(folder):
    commands.train(
      *("text_to_text", folder),
      TRAIN_QUESTIONS=commands.world.question_file,
      INITIAL_CHECKPOINT=runs[0].model_dir,
      NUM_READ=3,
      NUM_STEPS=4,
      SAVE_EVERY_STEPS=4,
      SWAP_SNAPSHOTS=False,
    )
  return folder


@pytest.fixture
def evaluated(commands, tmp_path):
  """`evaluated(model_dir, …)`: the figures and lines of all questions."""

  def run(model_dir: Path, **bindings):
    figures = commands.call(
      *(evaluate, "eval"),
      MODEL_DIR=model_dir,
      OUTPUT_DIR=tmp_path,
      QUESTIONS=commands.world.question_file,
      **bindings,
    )
    assert figures["num_questions"] == 11
    return figures, read_lines(tmp_path / "predictions.jsonl")

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
  figures, lines = evaluated(folder, CANDIDATES="none", NUM_READ=1)
  assert figures["num_searched"] == 0 and "snapshot" not in figures
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
  figures = commands.call(
    *(evaluate, "eval"), MODEL_DIR=folder, CANDIDATES="none", **task
  )
  assert figures["num_questions"] == 3
  lines = read_lines(folder / "eval" / "predictions.jsonl")
  assert [line["references"] for line in lines] == [["SUPPORTS"]] * 3
  right = [line["prediction"].lower() == "supports" for line in lines]
  assert figures["exact_match"] == sum(right) / 3


def test_a_corpus_with_another_vocabulary_is_refused(
  answering, world, tmp_path
):
  other = with_view(world, tmp_path, f"t5:{MODEL}")
  with pytest.raises(RealmError, match=r"another view .* --view=NAME"):
    realm_jax.load(answering, corpus_dir=other.corpus_dir)
  with pytest.raises(RealmError, match="reads the view 't5'"):
    realm_jax.load(answering, corpus_dir=world.corpus_dir)
