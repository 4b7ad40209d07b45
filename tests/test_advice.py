"""Who does what a refusal advises is not refused again."""

import shlex
import sys

import pytest

from tests.weights.models import GOLDEN

pytestmark = pytest.mark.slow

_TRAIN = (
  "train --gin_file=gin/runs/{}.gin --gin_file=tests/integration/tiny.gin "
  "--corpus_dir={{d}}/corpus --model_dir={{new}} --gin.NUM_STEPS={} "
  "--gin.BATCH_SIZE=4"
)
_CLOZE, _LONGER = (_TRAIN.format("inverse_cloze", steps) for steps in (1, 2))
# Of no step: they end once all settings are right.
_NO_CLOZE = _TRAIN.format("inverse_cloze", 0)
_PRETRAIN = _TRAIN.format("pretrain", 0)
# With what the mistakes in it need, so that all have the same remedy.
_SET = (
  f"{_PRETRAIN} --gin.NUM_CANDIDATES=4 --gin.OBJECTIVE=leave_one_out "
  "--gin.FREEZE_READER=True --gin.WAIT_FOR_SNAPSHOTS=True --gin.LAG_STEPS=100"
)
_QA = _TRAIN.format("open_qa", 0)
_SHOW = "show_task --num=1 --corpus_dir={d}/corpus --task=open_qa"
_BUILD = "build_corpus --input={d}/text.jsonl --output_dir={new}"
_ASK = "ask --model_dir={run} who? --gin.NUM_READ=20"
_IMPORT = "import_weights --from=hf_bert --input={bert}"
_EXPORT = "export_weights --output_dir={new} --model_dir={run}"
_VOCAB = "--vocab=train:109"
_QUESTIONS = "{d}/questions.jsonl"
# A command, what is wrong with it, the advice, and what one writes then.
_ADVICE = [
  (
    _NO_CLOZE,
    "--gin.BATCH_SIZE=6 DEVICES=4",
    "4 or 8",
    "--gin.BATCH_SIZE=8 DEVICES=4",
  ),
  (_NO_CLOZE, "--gin.HELD_OUT_BLOCKS=99", "lower HELD_OUT_BLOCKS", ""),
  (_NO_CLOZE, "--gin.FSDP=3", "change FSDP", ""),
  (_NO_CLOZE, "--gin.BLOCK_LENGTH=41", "=40", ""),
  (
    _PRETRAIN,
    "--gin.BLOCKS_PER_STEP=3",
    "RETRIEVE_ON_DEVICE = True",
    "--gin.BLOCKS_PER_STEP=3 --gin.RETRIEVE_ON_DEVICE=True "
    "--gin.WAIT_FOR_SNAPSHOTS=False --gin.NUM_CANDIDATES=4",
  ),
  (_SET, "--gin.NUM_CANDIDATES=99", "lower NUM_CANDIDATES", ""),
  (_SET, "--gin.NUM_CANDIDATES=1", "to 2 or more", ""),
  (_SET, "--gin.LAG_STEPS=100000", "lower LAG_STEPS", ""),
  (_SET, "--gin.FREEZE_RETRIEVER_STEPS=4", "FREEZE_RETRIEVER_STEPS = 0", ""),
  (
    f"{_QA} --gin.TRAIN_QUESTIONS={_QUESTIONS}",
    "--gin.NUM_READ=99",
    "NUM_READ",
    "--gin.NUM_READ=3",
  ),
  (_SHOW, "", "--questions", f"--questions={_QUESTIONS}"),
  (_BUILD, "", "--vocab=train:SIZE", f"{_VOCAB} --tagger=none"),
  (_BUILD, "--vocab=train:100", "take 109", f"{_VOCAB} --tagger=none"),
  (f"{_BUILD} {_VOCAB}", "--tagger=nope", "none", "--tagger=none"),
  (_ASK, "--gin.NUM_READ=28", "NUM_READ from 1 to 20", ""),
  (
    f"{_ASK} --gin.NUM_READ=28",
    "",
    "raise NUM_SEARCHED (the corpus has 28 blocks)",
    "--gin.NUM_SEARCHED=28",
  ),
  (_ASK, "--gin.CHECKPOINT_STEP=7", "[0]", ""),
  (_IMPORT, "--output_dir={d}/corpus", "new directory", "--output_dir={new}"),
  *(
    (f"{_IMPORT} --output_dir={{new}}", wrong, words, "")
    for wrong, words in (
      ("--index=exact", "leave these out"),
      ("--corpus_dir={new}-corpus", "build_corpus"),
      ("--revision=v1", "leave the flag out"),
    )
  ),
  (
    f"{_EXPORT} --to=hf_bert",
    "--corpus_dir={d}/nowhere",
    "vocab.txt",
    "--corpus_dir={d}/corpus",
  ),
  (f"{_EXPORT} --to=sentence_transformers", "--tower=query", "leave", ""),
  ("list_snapshots list", "", "--model_dir", "--model_dir={run}"),
  (
    "evaluate --model_dir={run} --gin.OUTPUT_DIR={new}",
    "",
    "QUESTIONS",
    f"--gin.QUESTIONS={_QUESTIONS}",
  ),
]


@pytest.fixture
def run(world, recorded_run, command_server, command_environment, tmp_path):
  """`run(typed)` runs a command, and returns its code and what it says."""
  places = {
    "d": world.directory,
    "run": recorded_run("open_qa"),
    "new": tmp_path / "new",
    "bert": GOLDEN / "hf_bert" / "masked_lm",
  }

  def run(typed):
    typed, _, devices = typed.format(**places).partition(" DEVICES=")
    environment = dict(command_environment)
    if devices:
      flag = f" --xla_force_host_platform_device_count={devices}"
      environment["XLA_FLAGS"] += flag
    module, *arguments = shlex.split(typed)
    done = command_server.run(
      [sys.executable, "-m", f"realm_jax.{module}", *arguments],
      env=environment,
    )
    return done.returncode, done.stderr

  return run


def _assert_refused(done, words):
  code, said = done
  assert code == 2, said
  assert words in said.splitlines()[-1]


# What several refusals advise, once it was done.
_HELPED = set()


@pytest.mark.parametrize(
  ("command", "wrong", "words", "right"),
  _ADVICE,
  ids=[f"{row[0].partition(' ')[0]} {row[1]}" for row in _ADVICE],
)
def test_advice_helps(run, command, wrong, words, right):
  _assert_refused(run(f"{command} {wrong}"), words)
  if (advised := f"{command} {right}") not in _HELPED:
    code, said = run(advised)
    assert code == 0, said
    _HELPED.add(advised)


def test_advice_helps_a_run_that_goes_on(run):
  assert run(_CLOZE)[0] == 0
  for wrong, words in (
    ("DEVICES=3", "on a number of devices that divides it"),
    ("--gin.SEED=7", "give SEED as before"),
  ):
    _assert_refused(run(f"{_LONGER} {wrong}"), words)
  code, said = run(f"{_LONGER} DEVICES=2")
  assert code == 0, said
