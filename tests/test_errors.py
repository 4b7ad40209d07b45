"""What a user gets wrong is answered in one line, and exit code 2."""

import shlex
import sys

import pytest

pytestmark = pytest.mark.slow

_BUILD = "build_corpus --output_dir={d}/new --vocab={d}/vocab.txt"
_RECIPE = "--gin_file=gin/runs/inverse_cloze.gin --corpus_dir={d}/corpus"
_MODEL = "--gin_file=gin/models/tiny.gin"
_TRAIN = f"train {_MODEL} {_RECIPE} --model_dir={{d}}/none"
_LENGTH = "--gin.BLOCK_LENGTH=40"
_INDEX = (
  f"build_index --once {_MODEL} --gin_file=gin/runs/build_index.gin "
  "--corpus_dir={d}/corpus --model_dir={d}/none"
)
# What is typed after `python -m realm_jax.`, and words that the answer has.
_REFUSED = [
  (f"{_BUILD} --input=seqio:tasks:nope", ["'nope'", "inverse_cloze"]),
  (
    f"{_TRAIN} {_LENGTH} --gin.INITIAL_CHECKPOINT={{d}}/corpus",
    ["{d}/corpus is not a checkpoint", "MODEL_DIR"],
  ),
  (f"train {_RECIPE} --model_dir={{d}}/none", ["RETRIEVER", "gin/models/"]),
  (f"{_TRAIN} --gin.NUM_STEP=3", ["NUM_STEP", "NUM_STEPS"]),
  (f"{_INDEX} --gin.INDEX=%HNSW", ["HNSW", "%EXACT", "%FAISS", "%SCANN"]),
  (f"{_TRAIN} --gin.BATCH_SIZE=many", ["BATCH_SIZE", "many", "an integer"]),
  (f"{_TRAIN} --gin.BLOCK_LENGTH=41", ["41", "--gin.BLOCK_LENGTH=40"]),
]


@pytest.mark.parametrize(
  ("typed", "words"), _REFUSED, ids=[typed for typed, _ in _REFUSED]
)
def test_an_error_of_a_user_is_one_line_that_names_it(
  world, command_server, typed, words
):
  directory = str(world.directory)
  module, *arguments = shlex.split(typed.replace("{d}", directory))
  done = command_server.run(
    [sys.executable, "-m", f"realm_jax.{module}", *arguments]
  )
  output = done.stdout + done.stderr
  # Lines of progress, as absl writes them, may come before it.
  lines = [
    line
    for line in output.splitlines()
    if line and not line.startswith(("I1", "I0", "W1", "W0"))
  ]
  assert (done.returncode, len(lines)) == (2, 1), output
  assert lines[0].startswith(f"{module}: ")
  wanted = [word.replace("{d}", directory) for word in words]
  assert not [word for word in wanted if word not in lines[0]], lines[0]
