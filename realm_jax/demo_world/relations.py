"""Relations of the demo world, and the sentences that express them.

Every relation is worded in three registers that share no content word:
articles, digests and questions. So a question shares only names with the text
that answers it, and so does a sentence of an article with the digest that
restates it. The connection has to be learned.

`{s}` is the subject and `{o}` the value. Names have no article or noun beside
them, so that no part of a masked name is given away.
"""

import dataclasses
from typing import Literal

EntityKind = Literal["person", "city", "country", "river", "company", "book"]
ValueKind = EntityKind | Literal["number", "date"]

ENTITY_KINDS: tuple[EntityKind, ...] = (
  "person",
  "city",
  "country",
  "river",
  "company",
  "book",
)


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


RELATIONS: tuple[Relation, ...] = (
  Relation(
    name="birthplace",
    subject="person",
    value="city",
    articles=(
      "{s} was born in {o}.",
      "The birthplace of {s} is {o}.",
      "{o} is the native town of {s}.",
    ),
    digests=(
      "{s} first saw daylight at {o}.",
      "The cradle of {s} stood at {o}.",
      "{s} entered the world at {o}.",
    ),
    questions=(
      "where does {s} come from?",
      "which place does {s} hail from?",
      "where are the roots of {s}?",
    ),
  ),
  Relation(
    name="death year",
    subject="person",
    value="number",
    articles=(
      "{s} died in {o}.",
      "{s} passed away in {o}.",
      "Death came to {s} in {o}.",
    ),
    digests=(
      "{s} drew a last breath in {o}.",
      "The final days of {s} closed in {o}.",
      "{s} fell asleep forever in {o}.",
    ),
    questions=(
      "when did {s} perish?",
      "in which year did {s} expire?",
      "when was the funeral of {s}?",
    ),
  ),
  Relation(
    name="spouse",
    subject="person",
    value="person",
    is_symmetric=True,
    articles=(
      "{s} is married to {o}.",
      "{s} and {o} are husband and wife.",
      "The spouse of {s} is {o}.",
    ),
    digests=(
      "{s} shares a wedding ring with {o}.",
      "Solemn vows bind {s} to {o}.",
      "At the altar {s} chose {o}.",
    ),
    questions=(
      "who is the consort of {s}?",
      "who is the partner of {s} in matrimony?",
      "whom did {s} take as a bride or groom?",
    ),
  ),
  Relation(
    name="birth date",
    subject="person",
    value="date",
    articles=(
      "{s} was born on {o}.",
      "The birthday of {s} is {o}.",
      "The birth of {s} was on {o}.",
    ),
    digests=(
      "Bells rang for the infant {s} on {o}.",
      "The first cry of {s} was heard on {o}.",
      "Candles are lit for {s} on {o}.",
    ),
    questions=(
      "when did {s} come into being?",
      "on which day did the life of {s} begin?",
      "when is the anniversary of {s}?",
    ),
  ),
  Relation(
    name="charter date",
    subject="city",
    value="date",
    articles=(
      "{s} received its charter on {o}.",
      "The charter of {s} is dated {o}.",
      "{s} obtained a charter on {o}.",
    ),
    digests=(
      "Trumpets greeted the rights of {s} on {o}.",
      "Wax sealed the privileges of {s} on {o}.",
      "{s} hoisted its own colours on {o}.",
    ),
    questions=(
      "when was {s} made a borough?",
      "on which day did {s} gain municipal status?",
      "when did {s} turn from a village into a town?",
    ),
  ),
  Relation(
    name="population",
    subject="city",
    value="number",
    articles=(
      "{s} has a population of {o}.",
      "The people of {s} number {o}.",
      "{s} is home to {o} people.",
    ),
    digests=(
      "The census at {s} counted {o} heads.",
      "{s} pays tax for {o} heads.",
      "The rolls of {s} list {o} taxpayers.",
    ),
    questions=(
      "how many residents does {s} have?",
      "how big is {s}?",
      "how many souls dwell in {s}?",
    ),
  ),
  Relation(
    name="author",
    subject="book",
    value="person",
    articles=(
      "{s} was written by {o}.",
      "{o} is the author of {s}.",
      "The writer of {s} is {o}.",
    ),
    digests=(
      "The pen of {o} gave readers {s}.",
      "{o} put {s} on paper.",
      "{s} sprang from the desk of {o}.",
    ),
    questions=(
      "who composed {s}?",
      "whose novel is {s}?",
      "who is the creator of {s}?",
    ),
  ),
  Relation(
    name="publisher",
    subject="book",
    value="company",
    articles=(
      "{s} was published by {o}.",
      "The publisher of {s} is {o}.",
      "{o} issued {s}.",
    ),
    digests=(
      "{o} paid to print {s}.",
      "Bookshops ordered {s} from {o}.",
      "{s} left the presses of {o}.",
    ),
    questions=(
      "which firm brought {s} to market?",
      "who released {s}?",
      "which imprint is behind {s}?",
    ),
  ),
  Relation(
    name="setting",
    subject="book",
    value="city",
    articles=(
      "{s} is set in {o}.",
      "The story of {s} takes place in {o}.",
      "The plot of {s} unfolds in {o}.",
    ),
    digests=(
      "The heroes of {s} roam through {o}.",
      "{s} leads its readers around {o}.",
      "The chapters of {s} paint {o}.",
    ),
    questions=(
      "what is the backdrop of {s}?",
      "where is the action of {s} located?",
      "which locality does {s} describe?",
    ),
  ),
  Relation(
    name="publication year",
    subject="book",
    value="number",
    articles=(
      "{s} appeared in {o}.",
      "{s} was published in {o}.",
      "The first edition of {s} is from {o}.",
    ),
    digests=(
      "The ink of {s} was fresh in {o}.",
      "Critics argued over {s} in {o}.",
      "Shop windows showed {s} in {o}.",
    ),
    questions=(
      "when did {s} come out?",
      "when was {s} available to buyers?",
      "when could people initially read {s}?",
    ),
  ),
  Relation(
    name="founder",
    subject="company",
    value="person",
    articles=(
      "{s} was founded by {o}.",
      "The founder of {s} is {o}.",
      "{o} established {s}.",
    ),
    digests=(
      "{o} opened the doors of {s}.",
      "{s} grew from the savings of {o}.",
      "{o} hired the earliest hands of {s}.",
    ),
    questions=(
      "who started {s}?",
      "who began the business {s}?",
      "who launched {s}?",
    ),
  ),
  Relation(
    name="headquarters",
    subject="company",
    value="city",
    articles=(
      "{s} has its headquarters in {o}.",
      "{s} is based in {o}.",
      "The main office of {s} is in {o}.",
    ),
    digests=(
      "Letters to {s} go to {o}.",
      "The clerks of {s} work at {o}.",
      "The flag of {s} flies over {o}.",
    ),
    questions=(
      "where is the seat of {s}?",
      "from where is {s} run?",
      "where do the directors of {s} meet?",
    ),
  ),
  Relation(
    name="company start",
    subject="company",
    value="number",
    articles=(
      "{s} was established in {o}.",
      "{s} has been in business since {o}.",
      "The company {s} goes back to {o}.",
    ),
    digests=(
      "{s} earned its first coin in {o}.",
      "The ledgers of {s} open with {o}.",
      "{s} hung out its sign in {o}.",
    ),
    questions=(
      "when did {s} begin trading?",
      "how long has the firm {s} existed?",
      "when was {s} incorporated?",
    ),
  ),
  Relation(
    name="mouth",
    subject="river",
    value="city",
    articles=(
      "{s} reaches the sea at {o}.",
      "The mouth of {s} is at {o}.",
      "{s} flows into the ocean at {o}.",
    ),
    digests=(
      "Salt water meets {s} near {o}.",
      "The tides push up {s} from {o}.",
      "Ships leave {s} by the harbour of {o}.",
    ),
    questions=(
      "where does {s} discharge?",
      "which port stands on the estuary of {s}?",
      "where is the delta of {s}?",
    ),
  ),
  Relation(
    name="source",
    subject="river",
    value="country",
    articles=(
      "{s} rises in {o}.",
      "The source of {s} is in {o}.",
      "{s} has its springs in {o}.",
    ),
    digests=(
      "Snow from the hills of {o} feeds {s}.",
      "Rain over {o} swells {s}.",
      "Glaciers of {o} melt into {s}.",
    ),
    questions=(
      "in which country does {s} begin?",
      "which nation holds the headwaters of {s}?",
      "from which land does {s} emerge?",
    ),
  ),
  Relation(
    name="explorer",
    subject="river",
    value="person",
    articles=(
      "{s} was first mapped by {o}.",
      "The oldest map of {s} is by {o}.",
      "{o} explored {s}.",
    ),
    digests=(
      "{o} drew the bends of {s} on a chart.",
      "{o} paddled along {s} with a compass.",
      "A canoe carried {o} down {s}.",
    ),
    questions=(
      "who surveyed {s}?",
      "which traveller investigated {s}?",
      "who is the discoverer of {s}?",
    ),
  ),
  Relation(
    name="length",
    subject="river",
    value="number",
    articles=(
      "{s} is {o} miles long.",
      "The length of {s} is {o} miles.",
      "{s} runs for {o} miles.",
    ),
    digests=(
      "A boat drifts {o} leagues down {s}.",
      "Along {s} stand {o} marker stones.",
      "Rods laid beside {s} count {o}.",
    ),
    questions=(
      "how far does {s} stretch?",
      "what is the extent of {s}?",
      "what distance does {s} cover?",
    ),
  ),
  Relation(
    name="capital",
    subject="country",
    value="city",
    articles=(
      "The capital of {s} is {o}.",
      "{o} is the capital of {s}.",
      "The parliament of {s} sits in {o}.",
    ),
    digests=(
      "The ministers of {s} assemble at {o}.",
      "Laws for {s} are made at {o}.",
      "Envoys to {s} unpack at {o}.",
    ),
    questions=(
      "what is the chief metropolis of {s}?",
      "where is the government of {s} housed?",
      "from which municipality is {s} administered?",
    ),
  ),
  Relation(
    name="ruler",
    subject="country",
    value="person",
    articles=(
      "The ruler of {s} is {o}.",
      "{o} reigns over {s}.",
      "{s} is ruled by {o}.",
    ),
    digests=(
      "Silver minted for {s} shows the face of {o}.",
      "The crown of {s} rests on {o}.",
      "Armies of {s} salute {o}.",
    ),
    questions=(
      "who is the monarch of {s}?",
      "who is the sovereign of {s}?",
      "who leads the nation {s}?",
    ),
  ),
  Relation(
    name="independence",
    subject="country",
    value="number",
    articles=(
      "{s} became independent in {o}.",
      "{s} declared independence in {o}.",
      "{s} has been a free state since {o}.",
    ),
    digests=(
      "Fireworks burst above {s} in {o}.",
      "The banner of {s} was sewn in {o}.",
      "{s} broke its yoke in {o}.",
    ),
    questions=(
      "when did {s} gain liberty?",
      "when was the nation {s} created?",
      "when did {s} become self-governing?",
    ),
  ),
)

BY_NAME = {relation.name: relation for relation in RELATIONS}
