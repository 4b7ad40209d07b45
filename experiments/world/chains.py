"""Questions of two hops, such as about the company that somebody works for.

Each company has a page. The title is the company's name, and the page states
facts that no note has. A question names a person, and asks for a fact about a
company that notes connect with the person. So the question shares no name with
the text that answers it. A note mentions the title of the page, and so leads to
it. No other text contains the answer, so no block has it by chance.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from experiments.world.documents import Document, Sentence
from experiments.world.facts import (
  SPLITS,
  Entities,
  Fact,
  Split,
  make_facts,
)
from experiments.world.names import make_entities
from experiments.world.questions import Question
from experiments.world.relations import EntityKind, parse_relations
from experiments.world.world import World, question_record
from realm_jax.settings import NonNegativeInt, require_valid
from realm_jax.storage.json_files import JsonValue, json_lines

RELATIONS = parse_relations(
  Path(__file__).with_name("chained_relations.txt").read_text()
)
# Phrases for a person's company in questions, by relation.
_COMPANIES = {
  "employer": ("the employer of {s}", "the firm that gives {s} a job"),
  "creditor": ("the creditor of {s}", "the lender that {s} repays"),
}


@dataclasses.dataclass(frozen=True)
class ChainConfig:
  """The number of questions of two hops; by default all possible ones."""

  num_train_questions: NonNegativeInt = 12000
  num_validation_questions: NonNegativeInt = 200
  num_test_questions: NonNegativeInt = 400

  def __post_init__(self) -> None:
    require_valid(self)


@dataclasses.dataclass(frozen=True)
class ChainQuestion(Question):
  """A question whose `fact` connects its subject with the `second` fact's."""

  second: int = 0


@dataclasses.dataclass(frozen=True)
class Chains:
  """A world with pages of companies, and questions of two hops by split.

  `single` are questions about the companies by name, for training.
  """

  world: World
  questions: Mapping[Split, Sequence[ChainQuestion]]
  single: Sequence[Question]

  def record(self, question: ChainQuestion) -> dict[str, JsonValue]:
    """Returns a question's JSON record, with its paths.

    `hops` has, for each hop, the documents that state its fact.
    """
    facts = question.fact, question.second
    names = [self.world.facts[fact].relation.name for fact in facts]
    hops = [list(self.world.gold_ids[fact]) for fact in facts]
    return question_record(self.world, question) | {
      "relation": " → ".join(names),
      "hops": hops,
    }


def add_chains(world: World, config: ChainConfig, *, seed: int) -> Chains:
  """Returns a world with added pages of companies and their facts.

  The given world is not modified. The values of the new facts are new names,
  each on one page.
  """
  generator = np.random.default_rng([seed, 2])
  added = _make_facts(generator, world)
  facts = [*world.facts, *added]
  pages = _write_pages(generator, facts, first=len(world.facts))
  documents = [*world.documents, *pages]
  order = generator.permutation(len(documents))
  whole = dataclasses.replace(
    world, facts=facts, documents=[documents[i] for i in order]
  )
  companies = {*world.splits["train"]["company"]}
  single = [
    Question(f"company-{index}-{number}", text, fact.subject, index, fact.value)
    for index, fact in enumerate(facts[len(world.facts) :], len(world.facts))
    for number, question in enumerate(fact.relation.questions)
    if (text := question.format(s=fact.subject)) and fact.subject in companies
  ]
  questions = _make_questions(generator, whole, config)
  return Chains(whole, questions, single)


def write_questions(folder: Path, chains: Chains, *, seed: int) -> None:
  """Writes `chains-SPLIT.jsonl`, and mixtures for training, in random order.

  `chains-one.jsonl` has all training questions of one hop, about people and
  companies, and `chains-all.jsonl` also has the questions of two hops.
  `chains-gold.jsonl` has the same questions, repeated for each of their paths.
  """
  rows: dict[str, list[Any]] = {}
  for split, questions in chains.questions.items():
    rows[split] = [*map(chains.record, questions)]
  generator = np.random.default_rng([seed, 3])
  for question in (*chains.world.questions["train"], *chains.single):
    rows.setdefault("one", []).append(question_record(chains.world, question))
  rows["all"] = [*rows["one"], *rows["train"]]
  rows["gold"] = [
    {**row, "id": f"{row['id']}-{number}", "gold_ids": path}
    for row in rows["all"]
    for number, path in enumerate(
      itertools.product(*row.get("hops", [row["documents"]]))
    )
  ]
  for name, group in rows.items():
    order = np.arange(len(group))
    if name not in chains.questions:
      order = generator.permutation(len(group))
    with json_lines(folder / f"chains-{name}.jsonl") as write:
      for place in order.tolist():
        write(group[place])


def _make_facts(generator: np.random.Generator, world: World) -> list[Fact]:
  """Makes the facts of all companies, each with a unique value."""
  companies = [world.splits[split]["company"] for split in SPLITS]
  avoid, added = [*itertools.chain(*world.entities.values())], []
  for relation in RELATIONS:
    kind = cast(EntityKind, relation.value)
    count = len(world.entities["company"])
    drawn = make_entities(generator, {kind: 2 * count}, avoid=avoid)[kind]
    # Without names that are part of another, like "Tavora" in "New Tavora".
    values = [name for name in drawn if " " not in name][:count]
    avoid += values
    ends = np.cumsum([0, *map(len, companies)])
    groups: list[Entities] = [
      {"company": names, kind: values[start:end]}
      for names, (start, end) in zip(
        companies, itertools.pairwise(ends), strict=True
      )
    ]
    added += make_facts(generator, groups, [relation])
  return added


def _write_pages(
  generator: np.random.Generator, facts: Sequence[Fact], first: int
) -> list[Document]:
  """Writes a page for each company, which states each of its facts once."""
  sentences: dict[str, list[Sentence]] = {}
  for index, fact in enumerate(facts[first:], first):
    phrasing = int(generator.integers(len(fact.relation.phrasings)))
    wordings = fact.relation.phrasings[phrasing].wordings
    stated = Sentence(index, phrasing, str(generator.choice(wordings)))
    sentences.setdefault(fact.subject, []).append(stated)
  return [
    Document(
      id=f"page-{number:05d}",
      title=name,
      sentences=tuple(
        stated_facts[i] for i in generator.permutation(len(stated_facts))
      ),
    )
    for number, (name, stated_facts) in enumerate(sentences.items())
  ]


def _make_questions(
  generator: np.random.Generator, world: World, config: ChainConfig
) -> dict[Split, list[ChainQuestion]]:
  """Makes the questions of each split, about the split's people.

  A held-out pair of facts has one question.
  """
  of_company: dict[str, list[int]] = {}
  chained = {relation.name for relation in RELATIONS}
  for index, fact in enumerate(world.facts):
    if fact.relation.name in chained:
      of_company.setdefault(fact.subject, []).append(index)
  questions = {}
  for split in SPLITS:
    people, possible = {*world.splits[split]["person"]}, []
    for index, fact in enumerate(world.facts):
      names = _COMPANIES.get(fact.relation.name)
      if names is None or fact.subject not in people:
        continue
      for second in of_company[fact.value]:
        second_fact = world.facts[second]
        wordings = [
          (name.format(s=fact.subject), question)
          for name, question in itertools.product(
            names, second_fact.relation.questions
          )
        ]
        if split != "train":
          wordings = [wordings[generator.integers(len(wordings))]]
        for name, question in wordings:
          text = question.format(s=name)
          known = (text, fact.subject, index, second_fact.value, second)
          possible.append(known)
    count = getattr(config, f"num_{split}_questions")
    order = generator.permutation(len(possible))[:count].tolist()
    questions[split] = [
      ChainQuestion(f"chain-{split}-{number:05d}", *possible[choice])
      for number, choice in enumerate(order)
    ]
  return questions
