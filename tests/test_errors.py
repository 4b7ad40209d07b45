"""What a user gets wrong is answered in one line, and exit code 2."""

import json
import shlex
import sys

import pytest

pytestmark = pytest.mark.slow

_BUILD = "build_corpus --output_dir={d}/new --vocab={d}/corpus/vocab.txt"
_RECIPE = "--gin_file=gin/runs/inverse_cloze.gin --corpus_dir={d}/corpus"
_MODEL = "--gin_file=gin/models/tiny.gin"
_TRAIN = f"train {_MODEL} {_RECIPE} --model_dir={{d}}/run"
_LENGTH = "--gin.BLOCK_LENGTH=64"
_QA = (
  f"train {_MODEL} --gin_file=gin/runs/open_qa.gin --corpus_dir={{d}}/corpus "
  "--model_dir={d}/qa --gin.TRAIN_QUESTIONS={d}/none.jsonl"
)
_PRETRAIN = (
  f"train {_MODEL} --gin_file=gin/runs/pretrain.gin --corpus_dir={{d}}/corpus "
  "--model_dir={d}/realm"
)
_INDEX = (
  f"build_index --once {_MODEL} --gin_file=gin/runs/build_index.gin "
  "--corpus_dir={d}/corpus --model_dir={d}/run"
)
# What is typed after `python -m realm_jax.`, and words that the answer has.
_REFUSED = [
  # Inputs of a corpus.
  (f"{_BUILD} --input={{d}}/text/", ["{d}/text/*.jsonl", "folder"]),
  (f"{_BUILD} --input={{d}}/none*.jsonl", ["{d}/none*.jsonl", "JSON Lines"]),
  (f"{_BUILD} --input={{d}}/word.jsonl", ["word.jsonl:1", "3,000,000"]),
  (f"{_BUILD} --input=seqio:tasks:nope", ["'nope'", "inverse_cloze"]),
  (f"{_BUILD} --input=seqio:tasks:open_qa", ["open_qa", "run"]),
  (f"{_BUILD} --input=seqio:tasks:inverse_cloze", ["inverse_cloze", "run"]),
  ("build_corpus {d}/text/a.jsonl", ["--input", "--output_dir"]),
  (
    "build_corpus --output_dir={d}/new --input=a.jsonl --update --overwrite",
    ["--overwrite", "whole"],
  ),
  (f"{_BUILD} --input={{d}}/text/a.jsonl b.jsonl", ["'b.jsonl'", "no flag"]),
  # Places.
  (
    "build_corpus --vocab={d}/corpus/vocab.txt --input={d}/text/a.jsonl "
    "--output_dir=/proc/none/corpus",
    ["/proc/none/corpus", "cannot be written"],
  ),
  (f"train {_MODEL} {_RECIPE} --model_dir={{d}}/file", ["{d}/file", "file"]),
  (
    f"train {_MODEL} {_RECIPE} --model_dir=/proc/none/run",
    ["/proc/none/run", "cannot be written"],
  ),
  (f"{_TRAIN} --gin.CORPUS_DIR={{d}}/text", ["corpus_dir", "CORPUS_DIR"]),
  (
    f"{_TRAIN} {_LENGTH} --gin.INITIAL_CHECKPOINT={{d}}/text",
    ["{d}/text is not a checkpoint", "MODEL_DIR"],
  ),
  (
    f"{_TRAIN} {_LENGTH} --gin.INITIAL_CHECKPOINT={{d}}/file",
    ["{d}/file is not a checkpoint", "MODEL_DIR"],
  ),
  # What is missing, and names that do not exist.
  ("compare a b", ["--predictions"]),
  ("compare --predictions=a", ["--predictions", "twice"]),
  (f"train {_RECIPE} --model_dir={{d}}/run", ["RETRIEVER", "gin/models/"]),
  (
    f"train {_RECIPE} --model_dir={{d}}/run --gin.JOINT_LENGTH=64",
    ["JOINT_LENGTH", "gin/models/"],
  ),
  (f"{_TRAIN} --gin.NUM_STEP=3", ["NUM_STEP", "NUM_STEPS"]),
  (f"{_TRAIN} --gin.NUM_STEPS", ["--gin.NUM_STEPS=VALUE"]),
  (f"{_TRAIN} --gin.NUM_STEPS=", ["--gin.NUM_STEPS=VALUE"]),
  (f"{_TRAIN} --num_steps=3", ["num_steps"]),
  (f"{_TRAIN} {_LENGTH} --gin.TASK=inverse_close", ["inverse_cloze"]),
  (f"{_INDEX} --gin.INDEX=%HNSW", ["HNSW", "%EXACT", "%FAISS", "%SCANN"]),
  (f"{_INDEX} --gin.INDEX=faiss", ["'faiss'", "%EXACT", "%FAISS", "%SCANN"]),
  (f"{_INDEX} --gin.MODE=newst", ["MODE", "'newst'", "'newest'", "'every'"]),
  # Numbers outside the range of a setting.
  *(
    (f"{_TRAIN} --gin.{name}={value}", [name, value.strip("-"), "number"])
    for name, value in (
      ("LEARNING_RATE", "nan"),
      ("ADAM_B2", "1.5"),
      ("OptimizerConfig.clip_norm", "0"),
    )
  ),
  (f"{_TRAIN} --gin.LEARNING_RATE=1e400", ["LEARNING_RATE", "inf"]),
  *(
    (f"{_TRAIN} --gin.{name}={value}", [name, value, "an integer of at least"])
    for name, value in (
      ("NUM_STEPS", "-1"),
      ("QUERY_LENGTH", "2"),
      ("BATCH_SIZE", "many"),
    )
  ),
  (f"{_PRETRAIN} --gin.NUM_CANDIDATES=0", ["NUM_CANDIDATES=0"]),
  (f"{_PRETRAIN} --gin.LOSS_FORM=sum", ["LOSS_FORM", "'per_token'", "'joint'"]),
  (f"{_QA} --gin.NUM_READ=0", ["NUM_READ=0"]),
  (f"{_QA} --gin.RENAMED_SHARE=2", ["RENAMED_SHARE=2", "from 0 to 1"]),
  (f"{_INDEX} --gin.RECALL_TARGET=2", ["RECALL_TARGET=2", "above 0"]),
  (f"{_TRAIN} --gin.BLOCK_LENGTH=65", ["65", "--gin.BLOCK_LENGTH=64"]),
  (f"{_TRAIN} --gin.BLOCK_LENGTH=63", ["63", "--gin.BLOCK_LENGTH=64"]),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, command_server):
  """The directory, and the exit code and output of each of `_REFUSED`."""
  directory = tmp_path_factory.mktemp("errors")
  (directory / "file").touch()
  (directory / "text").mkdir()
  line = json.dumps({"title": "Velt", "text": "The river of Velt is long."})
  (directory / "text" / "a.jsonl").write_text(f"{line}\n")
  word = json.dumps({"title": "A word", "text": "a" * 3_000_000})
  (directory / "word.jsonl").write_text(f"{word}\n")
  built = (
    "build_corpus --input={d}/text/*.jsonl --output_dir={d}/corpus "
    "--vocab=train:200 --block_length=64"
  )
  (directory / "changes").write_text(f'{{"id": "velt", {line[1:]}\n')
  updated = "build_corpus --update --input={d}/changes --output_dir={d}/corpus"
  found = {}
  for line in (built, updated, *(typed for typed, _ in _REFUSED)):
    module, *words = shlex.split(line.replace("{d}", str(directory)))
    done = command_server.run(
      [sys.executable, "-m", f"realm_jax.{module}", *words]
    )
    found[line] = done.returncode, done.stdout + done.stderr
  for line in (built, updated):
    assert found[line][0] == 0, found[line][1]
  return directory, found


@pytest.mark.parametrize(
  ("typed", "words"), _REFUSED, ids=[typed for typed, _ in _REFUSED]
)
def test_an_error_of_a_user_is_one_line_that_names_it(outcomes, typed, words):
  directory, found = outcomes
  code, output = found[typed]
  # Lines of progress, as absl writes them, may come before it.
  lines = [
    line
    for line in output.splitlines()
    if line and not line.startswith(("I1", "I0", "W1", "W0"))
  ]
  assert (code, len(lines)) == (2, 1), output
  assert lines[0].startswith(f"{typed.partition(' ')[0]}: ")
  missing = [
    word
    for word in (word.replace("{d}", str(directory)) for word in words)
    if word not in lines[0]
  ]
  assert not missing, lines[0]
