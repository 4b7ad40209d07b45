"""A text-to-text task, as the page on readers adds it."""

import re
import sys

import pytest

from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import TaskContext
from realm_jax.inputs.reader_texts import texts_of
from tests.inputs import tiny_corpus

_CLAIMS = "the nile flows in Norway .\tREFUTES\nfish swim .\tSUPPORTS\n"


@pytest.mark.usefixtures("new_tasks")
def test_claims_are_retrieved_for_and_labels_are_written(
  project_dir, tiny, tmp_path, monkeypatch
):
  page = (project_dir / "docs" / "readers.md").read_text()
  (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
  (tmp_path / "claims.py").write_text(code)
  (tmp_path / "train.tsv").write_text(_CLAIMS)
  (tmp_path / "test.tsv").write_text(_CLAIMS)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(tmp_path)
  config = tiny_corpus.config(
    "claims",
    TaskContext(tiny.corpus_dir),
    task_modules=["realm_jax.tasks", "claims"],
    batch_size=2,
    split="test",
  )
  try:
    (batch,) = stream_batches(config, shuffle=False, repeat=False)
  finally:
    sys.modules.pop("claims")
  claims = ["the nile flows in Norway .", "fish swim ."]
  assert texts_of(batch, tiny.corpus) == (claims, ["REFUTES", "SUPPORTS"])
  words = tiny.corpus.vocabulary
  assert [words.decode(row[row != 0]) for row in batch.arrays["query"]] == [
    f"[CLS] {claim.lower()} [SEP]" for claim in claims
  ]
  # What evaluation compares answers with.
  assert [answers.texts for answers in batch.answers] == [
    ["REFUTES"],
    ["SUPPORTS"],
  ]
  assert batch.texts("question_id") == ["0", "1"]
