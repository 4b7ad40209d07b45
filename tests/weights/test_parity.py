"""Imported models compute what transformers computes with them.

The values are transformers': see `tests/golden/make_hf.py`.
"""

import numpy as np
import pytest

from harness.agreement import comparison, imported_model, realm
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.run import RunConfig, TrainedRun
from tests.weights import models

pytestmark = pytest.mark.slow


def _load(directory, **options):
  return imported_model.load(models.read("hf_bert", directory, **options))


def test_vectors():
  folder = models.GOLDEN / "hf_bert" / "with_pooler"
  model = _load(folder, pooling="pooler")
  expected = np.load(folder / "expected.npz")
  for side, ours in (
    ("query", model.query_vectors(expected["query"])),
    ("block", model.block_vectors(expected["block"])),
  ):
    row = comparison.differences(side, ours, expected[f"{side}_pooled"])
    assert row.passed, row


def test_masked_words():
  folder = models.GOLDEN / "hf_bert" / "masked_lm"
  expected = np.load(folder / "expected.npz")
  query = expected["query"]
  ours = _load(folder).masked_lm_logits(
    query,
    expected["block"][:, None],
    np.tile(expected["mask_positions"], (len(query), 1)),
  )
  row = comparison.differences("logits", ours[:, 0], expected["joint_logits"])
  assert row.passed, row


@pytest.mark.parametrize(
  "compare", realm.COMPARISONS, ids=lambda compare: compare.__name__
)
def test_realm(compare):
  rows = compare(models.GOLDEN / "hf_realm")
  assert [row for row in rows if not row.passed] == []


def test_open_qa_answers_from_its_imported_blocks(tmp_path):
  folder = models.GOLDEN / "hf_realm" / "open_qa"
  with np.load(folder / "expected.npz", allow_pickle=False) as arrays:
    expected = dict(arrays)
  corpus_dir = tmp_path / "corpus"
  models.import_weights(
    "hf_realm",
    str(folder),
    tmp_path / "run",
    corpus_dir=corpus_dir,
    index="exact",
  )
  retriever, reader = models.load(tmp_path / "run")
  run = TrainedRun.load(
    RunConfig(
      model_dir=tmp_path / "run",
      corpus_dir=corpus_dir,
      retriever=retriever,
      reader=reader,
      query_length=expected["query"].shape[1],
      block_length=Corpus.open(corpus_dir).block_length,
      num_searched=expected["rows"].shape[1],
      # In its config.json: reader_beam_size.
      num_read=4,
      rank_answers_by="best_span",
    )
  )
  for i, question in enumerate(expected["question"]):
    answer = ask(run, [str(question)])[0].answers[0]
    row = int(expected["predicted_row"][i])
    assert answer.block.row == row
    _, first, width = expected["span"][i]
    ranges = run.corpus.block(row).byte_ranges[first : first + width + 1]
    start, limit = ranges[0, 0], ranges[-1, 1]
    body = run.corpus.block(row).text.encode()
    pieces = str(expected["prediction"][i]).replace("##", "").replace(" ", "")
    assert pieces
    assert body[start:limit].decode().lower().replace(" ", "") == pieces
    # Theirs may begin or end inside a word; ours has the whole of it.
    start = body.rfind(b" ", 0, start) + 1
    limit += len(body[limit:].partition(b" ")[0])
    assert answer.text == body[start:limit].decode()
