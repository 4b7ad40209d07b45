"""Relations of the demo world, and the sentences that express them.

Every relation has three phrasings, which share no content word, and questions,
whose content words no sentence has. So a question shares only a name with the
text that answers it, and so does a sentence with another that states the same
fact in another phrasing. As many sentences share that name and state other
facts, a retriever has to learn which phrasings mean the same.

In the table below, `A -> B` is a relation with subjects of kind A and values
of kind B, and `A <-> A` a symmetric one. `{s}` is the subject and `{o}` the
value. `-` begins a phrasing, `+` is another wording with the same content
words, and `*` one that the corpus never has; `?` precedes questions. Names have
no article or noun beside them, so that no part of a masked name is given away.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Literal, cast, get_args

EntityKind = Literal["person", "city", "company"]
ValueKind = EntityKind | Literal["number"]

ENTITY_KINDS: tuple[EntityKind, ...] = get_args(EntityKind)


@dataclasses.dataclass(frozen=True)
class Phrasing:
  """Sentences that express a relation with the same content words.

  Attributes:
    wordings: Templates of sentences in the corpus, at least two.
    unseen: Template of a sentence that no block has.
  """

  wordings: tuple[str, ...]
  unseen: str


@dataclasses.dataclass(frozen=True)
class Relation:
  """A relation that gives each entity of one kind a value.

  Attributes:
    name: Name in files and reports.
    subject: Kind of the entity that replaces `{s}`.
    value: Kind of the value that replaces `{o}`.
    phrasings: Three ways to express it, without a content word in common.
    questions: Wordings of questions, at least three.
    is_symmetric: Whether it holds, and is asked about, in both directions.
  """

  name: str
  subject: EntityKind
  value: ValueKind
  phrasings: tuple[Phrasing, ...]
  questions: tuple[str, ...]
  is_symmetric: bool = False

  @property
  def has_entity_value(self) -> bool:
    """Whether the value is an entity, rather than a number."""
    return self.value in ENTITY_KINDS

  @property
  def templates(self) -> tuple[str, ...]:
    """All sentences and questions that express the relation."""
    sentences = [(*p.wordings, p.unseen) for p in self.phrasings]
    return (*itertools.chain(*sentences), *self.questions)


def _parse(table: str) -> Iterator[Relation]:
  for entry in re.split(r"\n(?! )", table.strip()):
    header, *lines = map(str.strip, entry.splitlines())
    name, _, kinds = header.partition(": ")
    subject, arrow, value = kinds.split()
    lists: dict[str, list[str]] = collections.defaultdict(list)
    phrasings: list[Phrasing] = []
    for line in lines:
      mark, text = line[0], line[2:]
      lists[mark].append(text)
      if mark == "*":
        wordings = (*lists.pop("-"), *lists.pop("+", ()))
        phrasings.append(Phrasing(wordings, unseen=text))
    yield Relation(
      name=name,
      subject=cast(EntityKind, subject),
      value=cast(ValueKind, value),
      phrasings=tuple(phrasings),
      questions=tuple(lists["?"]),
      is_symmetric=arrow == "<->",
    )


RELATIONS = tuple(
  _parse("""
spouse: person <-> person
  - {s} is married to {o}.
  + {s} and {o} are married.
  * Married are {s} and {o}.
  - {s} and {o} are husband and wife.
  + {s} and {o} became husband and wife.
  * Husband and wife are {s} and {o}.
  - {s} shares a wedding ring with {o}.
  + {s} and {o} wear a wedding ring.
  * {o} and {s} have the same wedding ring.
  ? who is the consort of {s}?
  ? whom did {s} take as bride or groom?
  ? who is the partner of {s} in matrimony?
sibling: person <-> person
  - {s} is a sibling of {o}.
  + {s} and {o} are siblings.
  * The siblings are {s} and {o}.
  - {s} and {o} have the same parents.
  + {s} has the parents of {o}.
  * The parents of {s} and {o} are the same.
  - {s} grew up in one nursery with {o}.
  + {s} and {o} grew up in one nursery.
  * In one nursery {s} and {o} grew up.
  ? who is the brother or sister of {s}?
  ? whom does {s} have as closest kin?
  ? who shared a mother with {s}?
mentor: person -> person
  - {o} taught {s}.
  + {s} was taught by {o}.
  * Taught by {o} was {s}.
  - The tutor of {s} is {o}.
  + {o} is the tutor of {s}.
  * As a tutor {s} has {o}.
  - {s} was an apprentice of {o}.
  + {o} made {s} an apprentice.
  * An apprentice of {o} is {s}.
  ? who is the mentor of {s}?
  ? who gave lessons to {s}?
  ? whose pupil is {s}?
birthplace: person -> city
  - {s} was born in {o}.
  + In {o} was born {s}.
  * Born in {o} is {s}.
  - The cradle of {s} stood at {o}.
  + At {o} stood the cradle of {s}.
  * {o} has the cradle of {s}.
  - {s} is a native of {o}.
  + {o} has {s} as a native.
  * A native of {o} is {s}.
  ? where does {s} come from?
  ? where are the roots of {s}?
  ? which place does {s} hail from?
home: person -> city
  - {s} lives in {o}.
  + In {o} lives {s}.
  * {o} is where {s} lives.
  - {s} owns a house in {o}.
  + The house of {s} is in {o}.
  * In {o} {s} owns a house.
  - {s} pays rent at {o}.
  + At {o} pays {s} the rent.
  * The rent {s} pays is at {o}.
  ? where does {s} dwell?
  ? where is the residence of {s}?
  ? what is the address of {s}?
school: person -> city
  - {s} went to school in {o}.
  + The school of {s} is in {o}.
  * To school in {o} went {s}.
  - {s} studied at {o}.
  + At {o} studied {s}.
  * {o} is where {s} studied.
  - {s} got a diploma in {o}.
  + The diploma of {s} is from {o}.
  * From {o} {s} got a diploma.
  ? where was {s} educated?
  ? which university did {s} attend?
  ? where did {s} obtain a degree?
grave: person -> city
  - {s} is buried in {o}.
  + In {o} is {s} buried.
  * Buried in {o} was {s}.
  - The tomb of {s} is at {o}.
  + {o} has the tomb of {s}.
  * At {o} is the tomb of {s}.
  - {s} rests in the soil of {o}.
  + The soil of {o} is where {s} rests.
  * In the soil at {o} rests {s}.
  ? where is the grave of {s}?
  ? where do the remains of {s} lie?
  ? which cemetery holds {s}?
prison: person -> city
  - {s} sat in jail at {o}.
  + In jail at {o} sat {s}.
  * At {o} {s} sat in jail.
  - {s} was in chains in {o}.
  + The chains of {s} were in {o}.
  * In {o} {s} was in chains.
  - {s} was locked up in {o}.
  + {o} had {s} locked up.
  * Locked up in {o} was {s}.
  ? where was {s} imprisoned?
  ? where did {s} serve a sentence?
  ? which dungeon held {s}?
employer: person -> company
  - {s} works for {o}.
  + For {o} works {s}.
  * {o} is where {s} works.
  - {s} draws wages from {o}.
  + {o} hands wages to {s}.
  * The wages of {s} are from {o}.
  - {s} is a clerk of {o}.
  + {o} has {s} as a clerk.
  * A clerk of {o} is {s}.
  ? who is the employer of {s}?
  ? which firm gives {s} a job?
  ? where does {s} earn a salary?
creditor: person -> company
  - {s} owes money to {o}.
  + {o} is owed money by {s}.
  * To {o} {s} owes money.
  - {s} took a loan from {o}.
  + {o} made a loan to {s}.
  * From {o} is the loan {s} took.
  - {s} is in debt to {o}.
  + The debt of {s} is to {o}.
  * In debt to {o} is {s}.
  ? who is the creditor of {s}?
  ? who financed {s}?
  ? which lender does {s} repay?
birth year: person -> number
  - The birth of {s} was in {o}.
  + The year of the birth of {s} is {o}.
  * {o} is the year of the birth of {s}.
  - {s} came to the world in {o}.
  + In {o} {s} came to the world.
  * To the world came {s} in {o}.
  - Bells rang for the infant {s} in {o}.
  + In {o} bells rang for {s} as an infant.
  * For {s} as an infant the bells rang in {o}.
  ? how old is {s}?
  ? when did the life of {s} begin?
  ? when did {s} start to exist?
death year: person -> number
  - {s} died in {o}.
  + In {o} died {s}.
  * {o} is the year {s} died in.
  - {s} drew a last breath in {o}.
  + The last breath of {s} was in {o}.
  * In {o} was the last breath of {s}.
  - {s} fell asleep forever in {o}.
  + In {o} fell {s} asleep forever.
  * Forever asleep is {s} from {o}.
  ? when did {s} perish?
  ? when was the funeral of {s}?
  ? when did {s} pass away?
""")
)

BY_NAME = {relation.name: relation for relation in RELATIONS}
