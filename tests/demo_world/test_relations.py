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


def test_people_cities_countries_rivers_companies_and_books_are_related():
  between = [r for r in relations.RELATIONS if r.has_entity_value]
  assert len(between) >= 12
  kinds = {kind for r in between for kind in (r.subject, r.value)}
  assert kinds == set(relations.ENTITY_KINDS)
  assert {"number", "date"} <= {r.value for r in relations.RELATIONS}


@pytest.mark.parametrize("relation", relations.RELATIONS, ids=lambda r: r.name)
def test_each_register_words_a_relation_in_three_ways_of_its_own(relation):
  registers = (relation.articles, relation.digests, relation.questions)
  for register in registers:
    assert len(set(register)) >= 3
    words = [content_words([template]) for template in register]
    assert all(words)
    # Not the same words in another order throughout.
    assert len(set(map(frozenset, words))) >= 2
  for one, other in itertools.combinations(registers, 2):
    assert not content_words(one) & content_words(other)


@pytest.mark.parametrize("relation", relations.RELATIONS, ids=lambda r: r.name)
def test_a_statement_names_everything_and_a_question_only_its_subject(relation):
  for template in relation.articles + relation.digests:
    assert template.count("{s}") == template.count("{o}") == 1
    assert template.count("{") == 2
    assert template.endswith(".")
    assert template.count(".") == 1
    assert not template[0].islower()
  for template in relation.questions:
    assert template.count("{s}") == 1
    assert template.count("{") == 1
    assert template.endswith("?")


def test_no_wording_serves_two_relations():
  templates = [
    template
    for relation in relations.RELATIONS
    for register in (relation.articles, relation.digests, relation.questions)
    for template in register
  ]
  assert len(set(templates)) == len(templates)
