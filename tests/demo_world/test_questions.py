import collections
import re

from realm_jax.demo_world import relations


def mentions(text, name):
  return re.search(rf"\b{re.escape(name)}\b", text) is not None


def test_a_held_out_fact_is_asked_once_of_each_side(demo_world):
  for split in ("validation", "test"):
    asked = [(q.fact, q.subject) for q in demo_world.questions[split]]
    assert len(set(asked)) == len(asked)


def test_the_fact_answers_the_question_and_nothing_else_does(demo_world):
  values = collections.defaultdict(set)
  for fact in demo_world.facts:
    values[fact.relation, fact.subject].add(fact.value)
    if relations.BY_NAME[fact.relation].is_symmetric:
      values[fact.relation, fact.value].add(fact.subject)
  for questions in demo_world.questions.values():
    for question in questions:
      relation = demo_world.facts[question.fact].relation
      assert values[relation, question.subject] == {question.answer}
      assert mentions(question.text, question.subject)
      assert not mentions(question.text, question.answer)


def test_every_wording_of_every_relation_is_trained_on(demo_world):
  texts = {q.text for q in demo_world.questions["train"]}
  asked = {
    (demo_world.facts[q.fact].relation, template)
    for q in demo_world.questions["train"]
    for template in relations.BY_NAME[
      demo_world.facts[q.fact].relation
    ].questions
    if template.format(s=q.subject) in texts
  }
  assert asked == {
    (relation.name, template)
    for relation in relations.RELATIONS
    for template in relation.questions
  }


def test_a_masked_statement_says_what_is_asked_in_an_unseen_wording(demo_world):
  facts = demo_world.facts
  sentences = {
    facts[s.fact].word(s.template)
    for d in demo_world.documents
    for s in d.sentences
  }
  stated = collections.defaultdict(set)
  for document in demo_world.documents:
    for sentence in document.sentences:
      stated[sentence.fact].add(sentence.phrasing)
  for split in ("validation", "test"):
    statements = demo_world.statements[split]
    asked = {question.fact for question in demo_world.questions[split]}
    assert sorted(s.fact for s in statements) == sorted(asked)
    for statement in statements:
      fact = facts[statement.fact]
      assert statement.text.count("[MASK]") == 1
      said = statement.text.replace("[MASK]", statement.answer)
      assert mentions(said, fact.subject)
      assert mentions(said, fact.value)
      assert said not in sentences
      (phrasing,) = [
        number
        for number, phrasing in enumerate(
          relations.BY_NAME[fact.relation].phrasings
        )
        if fact.word(phrasing.unseen) == said
      ]
      assert phrasing not in stated[statement.fact]


def test_no_answer_is_common_enough_to_be_guessed(demo_world):
  answers = collections.Counter(q.answer for q in demo_world.questions["train"])
  guess, _ = answers.most_common(1)[0]
  test = demo_world.questions["test"]
  assert sum(q.answer == guess for q in test) / len(test) <= 0.05
  # Nor for one who knows what kind of value is wanted.
  for relation in relations.RELATIONS:
    values = collections.Counter(
      f.value for f in demo_world.facts if f.relation == relation.name
    )
    assert max(values.values()) / values.total() <= 0.05
