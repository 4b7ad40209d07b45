"""What a run finds for a question, with its texts, as plain data."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class RetrievedBlock:
  """A block that was retrieved for a query.

  Attributes:
    id: `document id:number`, which stays the same when the corpus is updated.
    title: Title of its document.
    text: Text of the block.
    url: URL of the document; empty if the corpus has none.
    score: f(x, z), times the retriever's scale.
    probability: p(z|x) over the blocks that were retrieved.
  """

  id: str
  title: str
  text: str
  url: str
  score: float
  probability: float


@dataclasses.dataclass(frozen=True)
class FoundAnswer:
  """An answer, and where it stands.

  Attributes:
    text: Answer as the block spells it.
    probability: Probability of all spans, of the blocks read, that give it.
    score: Score of its best span: the reader's plus the block's.
    block: Block of that span.
    start: Offset of its first character in the text of the block.
    limit: Offset after its last character.
  """

  text: str
  probability: float
  score: float
  block: RetrievedBlock
  start: int
  limit: int


@dataclasses.dataclass(frozen=True)
class AnsweredQuestion:
  """A question, its answers, and the blocks that were retrieved for it.

  Attributes:
    question: Question as it was asked.
    answers: Answers, best first; empty if the blocks that were read have no
      words.
    blocks: Blocks, best first; the reader has read the first NUM_READ.
  """

  question: str
  answers: Sequence[FoundAnswer]
  blocks: Sequence[RetrievedBlock]

  @property
  def text(self) -> str:
    """Text of the best answer; empty if there is none."""
    return self.answers[0].text if self.answers else ""

  @property
  def probability(self) -> float:
    """Probability of the best answer; 0 if there is none."""
    return self.answers[0].probability if self.answers else 0.0
