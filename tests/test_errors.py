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
_INDEX = (
  f"build_index --once {_MODEL} --gin_file=gin/runs/build_index.gin "
  "--corpus_dir={d}/corpus --model_dir={d}/run"
)
# What is typed after `python -m realm_jax.`, and words that the answer has.
_REFUSED = [
  (f"{_BUILD} --input={{d}}/text/", ["{d}/text/*.jsonl", "folder"]),
  (f"{_BUILD} --input=seqio:tasks:nope", ["'nope'", "inverse_cloze"]),
  (f"{_BUILD} --input={{d}}/text/a.jsonl b.jsonl", ["'b.jsonl'", "no flag"]),
  (f"train {_MODEL} {_RECIPE} --model_dir={{d}}/file", ["{d}/file", "file"]),
  (
    f"{_TRAIN} {_LENGTH} --gin.INITIAL_CHECKPOINT={{d}}/text",
    ["{d}/text is not a checkpoint", "MODEL_DIR"],
  ),
  (f"train {_RECIPE} --model_dir={{d}}/run", ["RETRIEVER", "gin/models/"]),
  (f"{_TRAIN} --gin.NUM_STEP=3", ["NUM_STEP", "NUM_STEPS"]),
  (f"{_TRAIN} --num_steps=3", ["num_steps"]),
  ("ask", ["--model_dir=MODEL_DIR", "--gin_file"]),
  (f"{_INDEX} --gin.INDEX=%HNSW", ["HNSW", "%EXACT", "%FAISS", "%SCANN"]),
  (f"{_INDEX} --gin.INDEX=faiss", ["'faiss'", "%EXACT", "%FAISS", "%SCANN"]),
  (f"{_INDEX} --gin.MODE=newst", ["MODE", "'newst'", "'newest'", "'every'"]),
  (f"{_TRAIN} --gin.LEARNING_RATE=1e400", ["LEARNING_RATE", "inf"]),
  (f"{_TRAIN} --gin.BATCH_SIZE=many", ["BATCH_SIZE", "many", "an integer"]),
  (f"{_TRAIN} --gin.BLOCK_LENGTH=65", ["65", "--gin.BLOCK_LENGTH=64"]),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, command_server):
  """The directory, and the exit code and output of each of `_REFUSED`."""
  directory = tmp_path_factory.mktemp("errors")
  (directory / "file").touch()
  (directory / "text").mkdir()
  line = json.dumps({"title": "Velt", "text": "The river of Velt is long."})
  (directory / "text" / "a.jsonl").write_text(f"{line}\n")
  built = (
    "build_corpus --input={d}/text/*.jsonl --output_dir={d}/corpus "
    "--vocab=train:200 --block_length=64"
  )
  found = {}
  for line in (built, *(typed for typed, _ in _REFUSED)):
    module, *words = shlex.split(line.replace("{d}", str(directory)))
    done = command_server.run(
      [sys.executable, "-m", f"realm_jax.{module}", *words]
    )
    found[line] = done.returncode, done.stdout + done.stderr
  assert found[built][0] == 0, found[built][1]
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
