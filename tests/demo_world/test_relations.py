import itertools
import string

import pytest

from realm_jax.demo_world import relations

# Words that say nothing about which relation is meant.
FUNCTION_WORDS = set(
  "a an and are as at be been by did do does for from had has have how in "
  "into is it its of on or out over that the their they through to up was "
  "were what when where which who whom whose with".split()
)


PUNCTUATION = str.maketrans("", "", string.punctuation)


def content_words(templates):
  """The words of templates that carry meaning, without the names."""
  words = set()
  for template in templates:
    template = template.replace("{s}", " ").replace("{o}", " ")
    words |= set(template.lower().translate(PUNCTUATION).split())
  return words - FUNCTION_WORDS


@pytest.mark.parametrize("relation", relations.RELATIONS, ids=lambda r: r.name)
def test_phrasings_and_questions_have_no_content_word_in_common(relation):
  assert len(relation.phrasings) >= 3
  assert len(set(relation.questions)) >= 3
  assert all(content_words([question]) for question in relation.questions)
  groups = [
    content_words((*phrasing.wordings, phrasing.unseen))
    for phrasing in relation.phrasings
  ]
  assert all(groups)
  groups.append(content_words(relation.questions))
  for one, other in itertools.combinations(groups, 2):
    assert not one & other


def test_no_question_has_a_content_word_of_any_sentence():
  sentences, questions = (
    content_words(
      template
      for relation in relations.RELATIONS
      for template in relation.templates
      if template.endswith(end)
    )
    for end in (".", "?")
  )
  assert not sentences & questions


def test_an_unseen_wording_has_only_words_that_the_corpus_has():
  def words(templates):
    return {
      word
      for template in templates
      for word in template.lower().translate(PUNCTUATION).split()
    }

  phrasings = [p for r in relations.RELATIONS for p in r.phrasings]
  seen = words(w for p in phrasings for w in p.wordings)
  for phrasing in phrasings:
    assert len(phrasing.wordings) >= 2
    assert phrasing.unseen not in phrasing.wordings
    assert words([phrasing.unseen]) <= seen
