"""A RealmForOpenQA, imported with its blocks, answers as transformers does.

Retrieval from the imported generation, the blocks and spans that training
takes for right, and the answers, all against transformers' own: see
`tests/golden/make_hf.py`.
"""

import numpy as np
import pytest

from realm_jax.answers.in_blocks import AnswersInBlocks
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.answers import ask
from realm_jax.evaluation.run import Run, RunConfig
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.training.stages.open_qa import OpenQa
from realm_jax.training.stages.stage import StageContext
from tests.weights.models import import_weights, load

pytestmark = pytest.mark.slow

# In its config.json: reader_beam_size.
_NUM_READ = 4


@pytest.fixture(scope="module")
def golden(project_dir):
  return project_dir / "tests" / "golden" / "hf_realm" / "open_qa"


@pytest.fixture(scope="module")
def expected(golden):
  with np.load(golden / "expected.npz", allow_pickle=False) as arrays:
    return dict(arrays)


@pytest.fixture(scope="module")
def run(golden, expected, tmp_path_factory):
  folder = tmp_path_factory.mktemp("open_qa")
  import_weights(
    "hf_realm",
    str(golden),
    folder / "run",
    corpus_dir=folder / "corpus",
    index="exact",
  )
  retriever, reader = load(folder / "run")
  return Run.load(
    RunConfig(
      model_dir=folder / "run",
      corpus_dir=folder / "corpus",
      retriever=retriever,
      reader=reader,
      query_length=expected["query"].shape[1],
      block_length=Corpus.open(folder / "corpus").block_length,
      num_searched=expected["rows"].shape[1],
      num_read=_NUM_READ,
      rank_answers_by="best_span",
    )
  )


def test_answers_are_the_same(run, expected):
  for i, question in enumerate(expected["question"]):
    answer = ask(run, [str(question)])[0].answers[0]
    row = int(expected["predicted_row"][i])
    assert answer.block.row == row
    _, first, width = expected["span"][i]
    ranges = run.corpus.block(row).byte_ranges[first : first + width + 1]
    start, limit = ranges[0, 0], ranges[-1, 1]
    body = run.corpus.block(row).body.encode()
    pieces = str(expected["prediction"][i]).replace("##", "").replace(" ", "")
    assert pieces
    assert body[start:limit].decode().lower().replace(" ", "") == pieces
    # Theirs may begin or end inside a word; ours has the whole of it.
    start = body.rfind(b" ", 0, start) + 1
    limit += len(body[limit:].partition(b" ")[0])
    assert answer.text == body[start:limit].decode()


def test_blocks_and_spans_that_hold_the_answer_are_the_same(run, expected):
  words = run.corpus.vocabulary
  answers = [words.encode(str(answer)) for answer in expected["answer"]]
  width = max(map(len, answers))
  padded = [[[*row, *[0] * (width - len(row))]] for row in answers]
  batch = Batch(
    arrays={"query": expected["query"]},
    host={
      "answers": np.array([[a.encode()] for a in expected["answer"]], object),
      "answer_kind": np.array([b"string"] * len(answers), object),
      "answer_tokens": np.array(padded),
    },
    positions=np.arange(len(answers)),
    next_positions=np.arange(len(answers)) + len(answers),
  )
  stage = OpenQa(num_read=_NUM_READ)
  made, _ = stage.assemble(
    batch,
    SearchResult(expected["rows"].astype(np.int32), expected["relevance"]),
    StageContext(
      run.corpus,
      run.generation,
      expected["span_logits"].shape[2],
      answers=AnswersInBlocks(run.corpus, ()),
    ),
  )
  np.testing.assert_array_equal(made.has_answer, expected["has_answer"])
  # The reader masks what it is not given.
  is_span = ~np.isnan(expected["span_logits"])
  np.testing.assert_array_equal(made.is_answer & is_span, expected["is_answer"])
