"""The page on adding a data set, followed to the letter."""

import json
import re
import sys

import pytest

from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import TaskContext
from realm_jax.inputs.display import describe
from realm_jax.inputs.examples import ExampleStream
from tests.inputs import tiny_corpus
from tests.printed_commands import fenced

_PAGE = "docs/extending.md"
# What `show_task` prints of the page's line.
_SHOWN = """\
position 0
  query           [CLS] where is the nile ? [SEP]
  question        where is the nile?
  question_id     g7
  answers         Africa
  answer_tokens   africa
  answer_kind     string"""


@pytest.mark.slow
@pytest.mark.usefixtures("new_tasks")
def test_the_pages_task_is_whole(project_dir, tiny, tmp_path, monkeypatch):
  (line,) = re.findall(r"`(\{.*\})`", (project_dir / _PAGE).read_text())
  (tmp_path / "quiz.py").write_text(fenced(_PAGE, "## A task"))
  other = json.dumps({**json.loads(line), "number": "g8"})
  (tmp_path / "quiz.jsonl").write_text(f"{line}\n{other}\n")
  monkeypatch.syspath_prepend(tmp_path)
  config = tiny_corpus.config(
    "quiz",
    TaskContext(tiny.corpus_dir, {"train": tmp_path / "quiz.jsonl"}),
    task_modules=["realm_jax.tasks", "quiz"],
  )
  try:
    stream = ExampleStream(config, shuffle=False, repeat=False)
    first, _ = stream
    (batch,) = list(stream_batches(config, repeat=False))[:1]
  finally:
    sys.modules.pop("quiz")
  features = stream.task.output_features
  shown = describe(first, features=features, corpus=tiny.corpus)
  assert shown == _SHOWN
  assert batch.texts("question_id")[0] in ("g7", "g8")
