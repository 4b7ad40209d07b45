"""The tasks on paragraphs of Wikipedia that nobody here wrote."""

import itertools
import json

import numpy as np
import pytest

from realm_jax.corpus.building.corpus import build_corpus
from realm_jax.inputs.context import TaskContext
from realm_jax.inputs.examples import ExampleStream
from realm_jax.text import salient_spans
from tests.inputs import tiny_corpus


@pytest.fixture(scope="module")
def wikipedia(shared_data, tmp_path_factory):
  """150 paragraphs of Natural Questions, in blocks of at most 128 pieces."""
  directory = tmp_path_factory.mktemp("wikipedia")
  with (shared_data / "qed" / "qed_dev_part.jsonl").open() as lines:
    rows = [json.loads(line) for line in itertools.islice(lines, 150)]
  documents = {row["paragraph_text"]: row["title_text"] for row in rows}
  (directory / "text.jsonl").write_text(
    "\n".join(
      json.dumps({"title": title, "text": text})
      for text, title in documents.items()
    )
  )
  build_corpus(
    [str(directory / "text.jsonl")],
    directory / "corpus",
    vocab="train:2000",
    block_length=128,
    tagger=salient_spans.tag,
  )
  return TaskContext(directory / "corpus")


def _examples(context, task, *, num, query):
  config = tiny_corpus.config(
    task, context, query_length=query, block_length=128, max_masks=10
  )
  return list(itertools.islice(ExampleStream(config), num))


def test_query_and_rest_make_up_the_block(wikipedia):
  corpus = wikipedia.corpus
  for example in _examples(wikipedia, "inverse_cloze", num=300, query=128):
    row = corpus.rows_of(example["source_id"]).item()
    body = corpus.body_token_ids(row)
    query = example["query"][1:-1]
    rest = example["block"][corpus.title_length(row) + 2 : -1]
    starts = [start for start, _ in corpus.sentences(row)]
    if not example["removed"]:
      np.testing.assert_array_equal(rest, body)
      continue
    assert any(
      np.array_equal(np.insert(rest, [start] * len(query), query), body)
      for start in starts
    )


def test_masked_words_are_salient_spans_of_the_source(wikipedia):
  corpus = wikipedia.corpus
  task = "masked_salient_spans"
  for example in _examples(wikipedia, task, num=300, query=48):
    row = corpus.rows_of(example["source_id"]).item()
    body = corpus.body_token_ids(row).tolist()
    spans = [body[start:limit] for start, limit in corpus.salient_spans(row)]
    targets = example["mask_targets"].tolist()
    assert any(span[:10] == targets for span in spans)
    assert example["mask_positions"][-1] < 47
    assert np.all(np.diff(example["mask_positions"]) == 1)
