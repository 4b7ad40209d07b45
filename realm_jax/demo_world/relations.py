"""Relations of the demo world, and the sentences that express them.

Every relation is worded in three registers that share no content word:
articles, digests and questions. So a question shares only names with the text
that answers it, and so does a sentence of an article with the digest that
restates it. The connection has to be learned.

In the table below, `A -> B` is a relation with subjects of kind A and values
of kind B, and `A <-> A` a symmetric one. `{s}` is the subject and `{o}` the
value. Names have no article or noun beside them, so that no part of a masked
name is given away.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Literal, cast, get_args

EntityKind = Literal["person", "city", "country", "river", "company", "book"]
ValueKind = EntityKind | Literal["number", "date"]

ENTITY_KINDS: tuple[EntityKind, ...] = get_args(EntityKind)


@dataclasses.dataclass(frozen=True)
class Relation:
  """A relation that gives each entity of one kind a value.

  Attributes:
    name: Name in files and reports.
    subject: Kind of the entity that replaces `{s}`.
    value: Kind of the value that replaces `{o}`.
    articles: Wordings in articles, at least three.
    digests: Wordings in digests, at least three.
    questions: Wordings of questions, at least three.
    is_symmetric: Whether it holds, and is asked about, in both directions.
  """

  name: str
  subject: EntityKind
  value: ValueKind
  articles: tuple[str, ...]
  digests: tuple[str, ...]
  questions: tuple[str, ...]
  is_symmetric: bool = False

  @property
  def has_entity_value(self) -> bool:
    """Whether the value is an entity, rather than a number or a date."""
    return self.value in ENTITY_KINDS


def _parse(table: str) -> Iterator[Relation]:
  for entry in re.split(r"\n(?! )", table.strip()):
    header, *lines = entry.splitlines()
    name, _, kinds = header.partition(": ")
    subject, arrow, value = kinds.split()
    wordings: dict[str, list[str]] = {}
    for line in lines:
      register, _, text = line.strip().partition(" | ")
      wordings.setdefault(register, []).append(text)
    yield Relation(
      name=name,
      subject=cast(EntityKind, subject),
      value=cast(ValueKind, value),
      articles=tuple(wordings["article"]),
      digests=tuple(wordings["digest"]),
      questions=tuple(wordings["question"]),
      is_symmetric=arrow == "<->",
    )


RELATIONS = tuple(
  _parse("""
birthplace: person -> city
  article | {s} was born in {o}.
  article | The birthplace of {s} is {o}.
  article | {o} is the native town of {s}.
  digest | {s} first saw daylight at {o}.
  digest | The cradle of {s} stood at {o}.
  digest | {s} entered the world at {o}.
  question | where does {s} come from?
  question | which place does {s} hail from?
  question | where are the roots of {s}?
death year: person -> number
  article | {s} died in {o}.
  article | {s} passed away in {o}.
  article | Death came to {s} in {o}.
  digest | {s} drew a last breath in {o}.
  digest | The final days of {s} closed in {o}.
  digest | {s} fell asleep forever in {o}.
  question | when did {s} perish?
  question | in which year did {s} expire?
  question | when was the funeral of {s}?
spouse: person <-> person
  article | {s} is married to {o}.
  article | {s} and {o} are husband and wife.
  article | The spouse of {s} is {o}.
  digest | {s} shares a wedding ring with {o}.
  digest | Solemn vows bind {s} to {o}.
  digest | At the altar {s} chose {o}.
  question | who is the consort of {s}?
  question | who is the partner of {s} in matrimony?
  question | whom did {s} take as a bride or groom?
birth date: person -> date
  article | {s} was born on {o}.
  article | The birthday of {s} is {o}.
  article | The birth of {s} was on {o}.
  digest | Bells rang for the infant {s} on {o}.
  digest | The first cry of {s} was heard on {o}.
  digest | Candles are lit for {s} on {o}.
  question | when did {s} come into being?
  question | on which day did the life of {s} begin?
  question | when is the anniversary of {s}?
charter date: city -> date
  article | {s} received its charter on {o}.
  article | The charter of {s} is dated {o}.
  article | {s} obtained a charter on {o}.
  digest | Trumpets greeted the rights of {s} on {o}.
  digest | Wax sealed the privileges of {s} on {o}.
  digest | {s} hoisted its own colours on {o}.
  question | when was {s} made a borough?
  question | on which day did {s} gain municipal status?
  question | when did {s} turn from a village into a town?
population: city -> number
  article | {s} has a population of {o}.
  article | The people of {s} number {o}.
  article | {s} is home to {o} people.
  digest | The census at {s} counted {o} heads.
  digest | {s} pays tax for {o} heads.
  digest | The rolls of {s} list {o} taxpayers.
  question | how many residents does {s} have?
  question | how big is {s}?
  question | how many souls dwell in {s}?
author: book -> person
  article | {s} was written by {o}.
  article | {o} is the author of {s}.
  article | The writer of {s} is {o}.
  digest | The pen of {o} gave readers {s}.
  digest | {o} put {s} on paper.
  digest | {s} sprang from the desk of {o}.
  question | who composed {s}?
  question | whose novel is {s}?
  question | who is the creator of {s}?
publisher: book -> company
  article | {s} was published by {o}.
  article | The publisher of {s} is {o}.
  article | {o} issued {s}.
  digest | {o} paid to print {s}.
  digest | Bookshops ordered {s} from {o}.
  digest | {s} left the presses of {o}.
  question | which firm brought {s} to market?
  question | who released {s}?
  question | which imprint is behind {s}?
setting: book -> city
  article | {s} is set in {o}.
  article | The story of {s} takes place in {o}.
  article | The plot of {s} unfolds in {o}.
  digest | The heroes of {s} roam through {o}.
  digest | {s} leads its readers around {o}.
  digest | The chapters of {s} paint {o}.
  question | what is the backdrop of {s}?
  question | where is the action of {s} located?
  question | which locality does {s} describe?
publication year: book -> number
  article | {s} appeared in {o}.
  article | {s} was published in {o}.
  article | The first edition of {s} is from {o}.
  digest | The ink of {s} was fresh in {o}.
  digest | Critics argued over {s} in {o}.
  digest | Shop windows showed {s} in {o}.
  question | when did {s} come out?
  question | when was {s} available to buyers?
  question | when could people initially read {s}?
founder: company -> person
  article | {s} was founded by {o}.
  article | The founder of {s} is {o}.
  article | {o} established {s}.
  digest | {o} opened the doors of {s}.
  digest | {s} grew from the savings of {o}.
  digest | {o} hired the earliest hands of {s}.
  question | who started {s}?
  question | who began the business {s}?
  question | who launched {s}?
headquarters: company -> city
  article | {s} has its headquarters in {o}.
  article | {s} is based in {o}.
  article | The main office of {s} is in {o}.
  digest | Letters to {s} go to {o}.
  digest | The clerks of {s} work at {o}.
  digest | The flag of {s} flies over {o}.
  question | where is the seat of {s}?
  question | from where is {s} run?
  question | where do the directors of {s} meet?
company start: company -> number
  article | {s} was established in {o}.
  article | {s} has been in business since {o}.
  article | The company {s} goes back to {o}.
  digest | {s} earned its first coin in {o}.
  digest | The ledgers of {s} open with {o}.
  digest | {s} hung out its sign in {o}.
  question | when did {s} begin trading?
  question | how long has the firm {s} existed?
  question | when was {s} incorporated?
mouth: river -> city
  article | {s} reaches the sea at {o}.
  article | The mouth of {s} is at {o}.
  article | {s} flows into the ocean at {o}.
  digest | Salt water meets {s} near {o}.
  digest | The tides push up {s} from {o}.
  digest | Ships leave {s} by the harbour of {o}.
  question | where does {s} discharge?
  question | which port stands on the estuary of {s}?
  question | where is the delta of {s}?
source: river -> country
  article | {s} rises in {o}.
  article | The source of {s} is in {o}.
  article | {s} has its springs in {o}.
  digest | Snow from the hills of {o} feeds {s}.
  digest | Rain over {o} swells {s}.
  digest | Glaciers of {o} melt into {s}.
  question | in which country does {s} begin?
  question | which nation holds the headwaters of {s}?
  question | from which land does {s} emerge?
explorer: river -> person
  article | {s} was first mapped by {o}.
  article | The oldest map of {s} is by {o}.
  article | {o} explored {s}.
  digest | {o} drew the bends of {s} on a chart.
  digest | {o} paddled along {s} with a compass.
  digest | A canoe carried {o} down {s}.
  question | who surveyed {s}?
  question | which traveller investigated {s}?
  question | who is the discoverer of {s}?
length: river -> number
  article | {s} is {o} miles long.
  article | The length of {s} is {o} miles.
  article | {s} runs for {o} miles.
  digest | A boat drifts {o} leagues down {s}.
  digest | Along {s} stand {o} marker stones.
  digest | Rods laid beside {s} count {o}.
  question | how far does {s} stretch?
  question | what is the extent of {s}?
  question | what distance does {s} cover?
capital: country -> city
  article | The capital of {s} is {o}.
  article | {o} is the capital of {s}.
  article | The parliament of {s} sits in {o}.
  digest | The ministers of {s} assemble at {o}.
  digest | Laws for {s} are made at {o}.
  digest | Envoys to {s} unpack at {o}.
  question | what is the chief metropolis of {s}?
  question | where is the government of {s} housed?
  question | from which municipality is {s} administered?
ruler: country -> person
  article | The ruler of {s} is {o}.
  article | {o} reigns over {s}.
  article | {s} is ruled by {o}.
  digest | Silver minted for {s} shows the face of {o}.
  digest | The crown of {s} rests on {o}.
  digest | Armies of {s} salute {o}.
  question | who is the monarch of {s}?
  question | who is the sovereign of {s}?
  question | who leads the nation {s}?
independence: country -> number
  article | {s} became independent in {o}.
  article | {s} declared independence in {o}.
  article | {s} has been a free state since {o}.
  digest | Fireworks burst above {s} in {o}.
  digest | The banner of {s} was sewn in {o}.
  digest | {s} broke its yoke in {o}.
  question | when did {s} gain liberty?
  question | when was the nation {s} created?
  question | when did {s} become self-governing?
""")
)

BY_NAME = {relation.name: relation for relation in RELATIONS}
