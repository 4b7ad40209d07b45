"""Relations of the demo world, and the sentences that express them.

Every relation has four phrasings, which share no content word, and questions,
whose content words no sentence has. So a question shares only a name with the
text that answers it, and so does a sentence with another that states the same
fact in another phrasing. As many sentences share that name and state other
facts, a retriever has to learn which phrasings mean the same.

In the table below, `A -> B` is a relation with subjects of kind A and values
of kind B, and `A <-> A` a symmetric one. `{s}` is the subject and `{o}` the
value. A line is a phrasing: its wordings in the corpus and, after `||`, a
wording that the corpus never has. `?` precedes questions. Names have no
article or noun beside them, so that no part of a masked name is given away.
"""

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
    phrasings: Four ways to express it, without a content word in common.
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
    questions = [line[2:] for line in lines if line.startswith("? ")]
    sentences = [line.split(" || ") for line in lines if line[0] != "?"]
    yield Relation(
      name=name,
      subject=cast(EntityKind, subject),
      value=cast(ValueKind, value),
      phrasings=tuple(
        Phrasing(tuple(wordings.split(" | ")), unseen)
        for wordings, unseen in sentences
      ),
      questions=tuple(questions),
      is_symmetric=arrow == "<->",
    )


RELATIONS = tuple(
  _parse("""
spouse: person <-> person
  {s} is married to {o}. | {s} and {o} are married. || A married life joins {s} and {o}.
  {s} and {o} are husband and wife. | {s} and {o} became husband and wife. || As husband and wife live {s} and {o}.
  {s} shares a wedding ring with {o}. | {s} and {o} wear a wedding ring. || One wedding ring has {s}, the other {o}.
  {s} gave vows to {o} at the altar. | {s} and {o} gave vows at the altar. || Vows at the altar bind {s} to {o}.
  ? who is the consort of {s}?
  ? whom did {s} take as bride or groom?
  ? who is the partner of {s} in matrimony?
sibling: person <-> person
  {s} is a sibling of {o}. | {s} and {o} are siblings. || The siblings are {s} and {o}.
  {s} and {o} have the same parents. | {s} has the parents of {o}. || The parents of both {s} and {o} are the same.
  {s} grew up in one nursery with {o}. | {s} and {o} grew up in one nursery. || One nursery saw {s} and {o} grow up.
  {s} and {o} are children of one family. | {s} is a child of the family of {o}. || The family has as children {s} and {o}.
  ? who is the brother or sister of {s}?
  ? whom does {s} have as closest kin?
  ? who shared a mother with {s}?
mentor: person -> person
  {o} taught {s}. | {s} was taught by {o}. || All this {o} has taught {s}.
  The tutor of {s} is {o}. | {o} is the tutor of {s}. || As a tutor {s} has {o}.
  {s} was an apprentice of {o}. | {o} made {s} an apprentice. || An apprentice of {o} is {s}.
  {s} learned the trade from {o}. | From {o} the trade was learned by {s}. || The trade {s} has learned from {o}.
  ? who is the mentor of {s}?
  ? who gave lessons to {s}?
  ? whose pupil is {s}?
rival: person -> person
  The rival of {s} is {o}. | {o} is the rival of {s}. || As a rival {s} has {o}.
  {s} lost a duel to {o}. | {o} won a duel against {s}. || In a duel {s} lost to {o}.
  {s} quarrels with {o}. | {o} is one with whom {s} quarrels. || With {o} all the time {s} quarrels.
  {s} envies {o}. | {o} is one whom {s} envies. || All the time {s} envies {o}.
  ? who is the enemy of {s}?
  ? whom does {s} hate?
  ? who is the opponent of {s}?
birthplace: person -> city
  {s} was born in {o}. | In {o} was born {s}. || Born in {o} is {s}.
  The cradle of {s} stood at {o}. | At {o} stood the cradle of {s}. || {o} has the cradle of {s}.
  {s} is a native of {o}. | {o} has {s} as a native. || A native of {o} is {s}.
  {s} first saw daylight at {o}. | At {o} first saw {s} daylight. || Daylight at {o} saw {s} first.
  ? where does {s} come from?
  ? where are the roots of {s}?
  ? which place does {s} hail from?
home: person -> city
  {s} lives in {o}. | In {o} lives {s}. || All the time {s} lives in {o}.
  {s} owns a house in {o}. | The house of {s} is in {o}. || In {o} a house is what {s} owns.
  {s} pays rent at {o}. | At {o} pays {s} the rent. || The rent {s} pays is at {o}.
  Letters reach {s} at {o}. | {s} gets letters at {o}. || At {o} all letters reach {s}.
  ? where does {s} dwell?
  ? where is the residence of {s}?
  ? what is the address of {s}?
school: person -> city
  {s} went to school in {o}. | The school of {s} is in {o}. || In {o} is the school to which {s} went.
  {s} studied at {o}. | At {o} studied {s}. || All the time {s} studied at {o}.
  {s} got a diploma in {o}. | The diploma of {s} is from {o}. || From {o} {s} got a diploma.
  {s} sat exams at {o}. | At {o} sat {s} for exams. || The exams {s} sat were at {o}.
  ? where was {s} educated?
  ? which university did {s} attend?
  ? where did {s} obtain a degree?
grave: person -> city
  {s} is buried in {o}. | In {o} is {s} buried. || Buried in {o} was {s}.
  The tomb of {s} is at {o}. | {o} has the tomb of {s}. || At {o} stands a tomb for {s}.
  {s} rests in the soil of {o}. | The soil of {o} is where {s} rests. || In the soil at {o} rests {s}.
  Mourners of {s} walk to {o}. | To {o} walk mourners of {s}. || All mourners walk to {o} for {s}.
  ? where is the grave of {s}?
  ? where do the remains of {s} lie?
  ? which cemetery holds {s}?
employer: person -> company
  {s} works for {o}. | For {o} works {s}. || All the time {s} works for {o}.
  {s} draws wages from {o}. | {o} hands wages to {s}. || From {o} come the wages of {s}.
  {s} is a clerk of {o}. | {o} has {s} as a clerk. || As a clerk of {o} {s} is seen.
  {s} has a desk at {o}. | At {o} is the desk of {s}. || A desk at {o} has {s}.
  ? who is the employer of {s}?
  ? which firm gives {s} a job?
  ? where does {s} earn a salary?
creditor: person -> company
  {s} owes money to {o}. | {o} is owed money by {s}. || Money is what {s} owes to {o}.
  {s} took a loan from {o}. | {o} made a loan to {s}. || From {o} is the loan {s} took.
  {s} is in debt to {o}. | The debt of {s} is to {o}. || To {o} goes the debt of {s}.
  {o} lent gold to {s}. | {s} was lent gold by {o}. || Gold was lent to {s} by {o}.
  ? who is the creditor of {s}?
  ? who financed {s}?
  ? which lender does {s} repay?
birth year: person -> number
  The birth of {s} was in {o}. | The year of the birth of {s} is {o}. || In {o} came the birth of {s}.
  {s} came to the world in {o}. | In {o} {s} came to the world. || The world saw {s} come in {o}.
  Bells rang for the infant {s} in {o}. | In {o} bells rang for {s} as an infant. || An infant in {o} {s} heard the bells.
  {s} was baptized in {o}. | In {o} was {s} baptized. || Baptized in {o} was {s}.
  ? how old is {s}?
  ? when did the life of {s} begin?
  ? when did {s} start to exist?
death year: person -> number
  {s} died in {o}. | In {o} died {s}. || It was in {o} that {s} died.
  {s} drew a last breath in {o}. | The last breath of {s} was in {o}. || In {o} {s} gave a last breath.
  {s} fell asleep forever in {o}. | In {o} fell {s} asleep forever. || Forever asleep is {s} from {o}.
  The heirs of {s} met in {o}. | In {o} met the heirs of {s}. || All heirs met in {o} for {s}.
  ? when did {s} perish?
  ? when was the funeral of {s}?
  ? when did {s} pass away?
founder: company -> person
  {o} founded {s}. | {s} was founded by {o}. || By {o} is {s} founded.
  {o} opened the doors of {s}. | The doors of {s} were opened by {o}. || It was {o} who opened the doors of {s}.
  {s} grew from the savings of {o}. | The savings of {o} made {s}. || From the savings of {o} came {s}.
  The idea of {s} came to {o}. | {o} had the idea of {s}. || To {o} came the idea for {s}.
  ? who started {s}?
  ? who launched {s}?
  ? who created the enterprise {s}?
director: company -> person
  The director of {s} is {o}. | {o} is the director of {s}. || As a director {s} has {o}.
  {o} gives orders at {s}. | At {s} orders are from {o}. || The orders at {s} are by {o}.
  {o} leads {s}. | {s} is a company that {o} leads. || All the time {o} leads {s}.
  {o} signs the papers of {s}. | The papers of {s} {o} signs. || All papers at {s} are what {o} signs.
  ? who is the boss of {s}?
  ? who manages {s}?
  ? who is at the helm of {s}?
architect: company -> person
  {o} was the architect of {s}. | The architect of {s} was {o}. || As an architect {s} had {o}.
  {o} drew the plans for {s}. | The plans for {s} were by {o}. || By {o} are all plans for {s}.
  {o} built the hall of {s}. | The hall of {s} was built by {o}. || A hall for {s} is what {o} built.
  {o} laid the bricks of {s}. | The bricks of {s} were laid by {o}. || By {o} were laid all bricks of {s}.
  ? who designed {s}?
  ? who constructed the edifice of {s}?
  ? who conceived the rooms of {s}?
lawyer: company -> person
  The lawyer of {s} is {o}. | {o} is the lawyer of {s}. || As a lawyer {s} has {o}.
  {o} speaks for {s} in court. | In court {o} speaks for {s}. || The court hears {o}, who speaks for {s}.
  {o} defends {s}. | {s} is a company that {o} defends. || All the time {o} defends {s}.
  {o} wins lawsuits for {s}. | The lawsuits of {s} {o} wins. || All lawsuits of {s} are what {o} wins.
  ? who is the attorney of {s}?
  ? who represents {s} before a judge?
  ? who is the counsel of {s}?
headquarters: company -> city
  {s} is based in {o}. | In {o} is {s} based. || Based in {o} was {s}.
  The main office of {s} is at {o}. | At {o} is the main office of {s}. || {o} has the main office of {s}.
  The flag of {s} flies over {o}. | Over {o} flies the flag of {s}. || A flag over {o} flies for {s}.
  The board of {s} sits in {o}. | In {o} sits the board of {s}. || {o} is where the board sits for {s}.
  ? where is the seat of {s}?
  ? from where is {s} run?
  ? where are the headquarters of {s}?
factory: company -> city
  The factory of {s} is in {o}. | {s} has a factory in {o}. || In {o} stands a factory of {s}.
  {s} makes its goods at {o}. | At {o} {s} makes its goods. || The goods {s} makes are from {o}.
  The chimneys of {s} smoke in {o}. | In {o} smoke the chimneys of {s}. || Chimneys of {s} at {o} smoke.
  The machines of {s} hum at {o}. | At {o} hum the machines of {s}. || Machines hum at {o} for {s}.
  ? where does {s} produce?
  ? where is the plant of {s}?
  ? where are the products of {s} manufactured?
warehouse: company -> city
  The warehouse of {s} is in {o}. | {s} has a warehouse in {o}. || In {o} stands a warehouse of {s}.
  {s} stores barrels at {o}. | At {o} {s} stores barrels. || The barrels {s} stores are at {o}.
  The cellars of {s} are under {o}. | Under {o} are the cellars of {s}. || {o} has cellars of {s} under it.
  {s} piles its crates in {o}. | In {o} {s} piles its crates. || The crates {s} piles are in {o}.
  ? where is the depot of {s}?
  ? where does {s} keep its stock?
  ? where is the storage of {s}?
supplier: company -> company
  The supplier of {s} is {o}. | {o} is the supplier of {s}. || As a supplier {s} has {o}.
  {s} buys from {o}. | From {o} {s} buys. || All that {s} buys is from {o}.
  {o} sends carts to {s}. | To {s} {o} sends carts. || The carts {o} sends go to {s}.
  {o} delivers wood to {s}. | To {s} {o} delivers wood. || Wood is what {o} delivers to {s}.
  ? who provides {s}?
  ? whose customer is {s}?
  ? where does {s} order materials?
competitor: company <-> company
  {s} competes with {o}. | {o} and {s} are those who compete. || With {o} all the time {s} competes.
  {s} and {o} fight a price war. | A price war is on at {s} and {o}. || In a price war are {s} and {o}.
  {s} copies the wares of {o}. | The wares of {s} and {o} are copies. || Copies of wares are at {s} and {o}.
  {s} steals buyers of {o}. | {s} and {o} steal buyers. || Buyers {s} and {o} steal all the time.
  ? who is the competitor of {s}?
  ? who challenges {s} in the market?
  ? which business is the adversary of {s}?
parent: company -> company
  {s} belongs to {o}. | To {o} belongs {s}. || All of {s} belongs to {o}.
  {o} holds the shares of {s}. | The shares of {s} {o} holds. || All shares of {s} are what {o} holds.
  {s} is a branch of {o}. | {o} has {s} as a branch. || A branch of {o} is {s}.
  {o} took over {s}. | {s} was taken over by {o}. || Over {s} {o} has taken all.
  ? who is the proprietor of {s}?
  ? who controls {s}?
  ? which corporation acquired {s}?
founding year: company -> number
  {s} has been in business since {o}. | Since {o} {s} has been in business. || The business of {s} is on since {o}.
  {s} earned its first coin in {o}. | The first coin {s} earned was in {o}. || In {o} came the first coin of {s}.
  The ledgers of {s} go back to {o}. | To {o} go back the ledgers of {s}. || All ledgers of {s} are from {o}.
  {s} hung out its sign in {o}. | In {o} hung out {s} its sign. || The sign of {s} was hung out in {o}.
  ? when was {s} incorporated?
  ? when did {s} commence trading?
  ? how long is the history of {s}?
closing year: company -> number
  {s} closed in {o}. | In {o} closed {s}. || It was in {o} that {s} closed.
  {s} went bankrupt in {o}. | In {o} went {s} bankrupt. || Bankrupt in {o} was {s}.
  {s} sold its furniture in {o}. | In {o} {s} sold its furniture. || The furniture of {s} was sold in {o}.
  Workers left {s} in {o}. | In {o} workers left {s}. || All workers have left {s} in {o}.
  ? when did {s} cease?
  ? when was {s} dissolved?
  ? when was the end of {s}?
""")
)

BY_NAME = {relation.name: relation for relation in RELATIONS}
