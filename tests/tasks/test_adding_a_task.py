"""The page on adding a data set, followed to the letter."""

import re
import sys

import pytest

from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import TaskContext
from realm_jax.inputs.display import describe
from realm_jax.inputs.examples import ExampleStream
from tests.inputs import tiny_corpus


def _block(page: str, language: str) -> str:
  """The only fenced block of a language."""
  (block,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
  return block


@pytest.mark.slow
@pytest.mark.usefixtures("new_tasks")
def test_ten_lines_make_a_task(project_dir, tiny, tmp_path, monkeypatch):
  page = (project_dir / "docs" / "training.md").read_text()
  code = _block(page, "python")
  assert len([line for line in code.splitlines() if line.strip()]) <= 10
  (tmp_path / "quiz.py").write_text(code)
  (tmp_path / "quiz.jsonl").write_text(_block(page, "json"))
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
  assert shown == _block(page, "text").rstrip()
  assert batch.texts("question_id")[0] in ("g7", "g8")
