"""Questions: their tokens, their answers as texts and tokens."""

from realm_jax.inputs.examples import ExampleStream
from tests.inputs import tiny_corpus


def _examples(context, *, task="open_qa", query=64):
  config = tiny_corpus.config(task, context, query_length=query)
  return list(ExampleStream(config, shuffle=False, repeat=False))


def _texts(array):
  return [text.decode() for text in array]


def test_the_questions_of_the_tiny_file(tiny):
  words = tiny.corpus.vocabulary
  nile, when, basel = _examples(tiny)
  assert (
    words.decode(nile["query"].tolist()) == "[CLS] where is the nile ? [SEP]"
  )
  assert nile["question"] == b"where is the nile ?"
  assert nile["question_id"] == b"questions:1"
  assert when["question_id"] == b"w"
  assert _texts(when["answers"]) == ["1900", "since 1900"]
  year, since = words.pieces.index("1900"), words.pieces.index("since")
  assert when["answer_tokens"].tolist() == [[year, 0], [since, year]]
  assert when["answer_kind"] == b"string"
  # One answer, not in a list, spelt "Rhine": folded as the blocks are.
  assert _texts(basel["answers"]) == ["Rhine"]
  assert basel["answer_tokens"].tolist() == [[words.pieces.index("rhine")]]


def test_a_long_question_ends_with_a_separator(tiny):
  decode = tiny.corpus.vocabulary.decode
  queries = [decode(e["query"].tolist()) for e in _examples(tiny, query=4)]
  assert queries == [
    "[CLS] where is [SEP]",
    "[CLS] when ? [SEP]",
    "[CLS] what passes [SEP]",
  ]


def test_patterns_have_no_tokens(tiny):
  for example in _examples(tiny, task="open_qa_regex"):
    assert example["answer_kind"] == b"regex"
    assert example["answer_tokens"].shape == (len(example["answers"]), 0)
