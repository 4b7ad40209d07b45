"""What is marked in a block."""

from realm_jax.serving.marks import marked_body

_BODY = "Béla was born in Tarn in 1901. Later Béla built the bridge of Pola."


def _marked(world, query, answers, said=None):
  # Row 1 is Béla's.
  assert world.corpus.block(1).body == _BODY
  segments = marked_body(
    world.corpus, 1, query=query, answers=answers, said=said
  )
  assert "".join(segment.text for segment in segments) == _BODY
  return [(s.text, s.mark) for s in segments if s.mark]


def test_words_of_the_query_are_marked_whatever_their_accents(world):
  # "where", "was" and "in" say nothing; "b" is no word of the block.
  assert _marked(world, "where was BELA born in, b?", []) == [
    ("Béla", "match"),
    ("born", "match"),
    ("Béla", "match"),
  ]


def test_every_occurrence_of_the_answer_is_marked_over_the_rest(world):
  start = len(b"B\xc3\xa9la was born in ")
  said = (start, start + len("Tarn in 1901"))
  assert _marked(world, "Tarn [MASK]", ["béla", "1901"], said) == [
    ("Béla", "answer"),
    ("Tarn in ", "said"),
    ("1901", "answer"),
    ("Béla", "answer"),
  ]


def test_a_part_of_a_word_is_no_answer(world):
  # The rare names are read letter by letter: row 8 is of Håkon.
  corpus = world.corpus
  segments = marked_body(corpus, 8, query="", answers=["h"])
  assert [s.mark for s in segments] == [""]
  segments = marked_body(corpus, 8, query="", answers=["hakon"])
  assert ("Håkon", "answer") in segments
