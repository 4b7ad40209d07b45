"""The distinct answers of a task, which a search of all blocks looks for."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from realm_jax.text.answers import AnswerKind

# How a block is found to contain an answer that is a string.
Rule = Literal["characters", "tokens"]
RULES: tuple[Rule, ...] = get_args(Rule)

# Tokens are searched as characters of this plane and later ones. All of them
# have four bytes in UTF-8, in which no occurrence begins within a character.
_FIRST_CHARACTER = 0x10000
TOKEN_BYTES = 4


class QuestionAnswers(NamedTuple):
  """The answers of one question: their texts and, of strings, their tokens."""

  kind: AnswerKind
  texts: Sequence[str]
  tokens: Sequence[Sequence[int]]

  def strings(self, rule: Rule) -> set[str]:
    """Returns what to look for in blocks by a rule; nothing for patterns."""
    if self.kind == "regex":
      return set()
    if rule == "tokens":
      return set(map(token_text, self.tokens)) - {""}
    return set(self.texts) - {""}

  @property
  def patterns(self) -> set[str]:
    """The answers that are regular expressions."""
    return set(self.texts) - {""} if self.kind == "regex" else set()


def token_text(tokens: Iterable[int]) -> str:
  """Returns tokens as a text of one character each."""
  return "".join(chr(_FIRST_CHARACTER + token) for token in tokens)


@dataclasses.dataclass(frozen=True)
class DistinctAnswers:
  """Answers without repetition, which are numbered: strings, then patterns.

  Attributes:
    rule: Whether strings are looked for as `characters` of a block's text, or
      as `tokens` of its body.
    strings: Texts; by the rule `tokens`, those of `token_text`.
    patterns: Regular expressions.
  """

  rule: Rule
  strings: tuple[str, ...] = ()
  patterns: tuple[str, ...] = ()

  @classmethod
  def of(
    cls, rule: Rule, questions: Iterable[QuestionAnswers]
  ) -> "DistinctAnswers":
    """Collects the answers of questions."""
    strings, patterns = set[str](), set[str]()
    for question in questions:
      strings |= question.strings(rule)
      patterns |= question.patterns
    return cls(rule, tuple(sorted(strings)), tuple(sorted(patterns)))

  def __len__(self) -> int:
    return len(self.strings) + len(self.patterns)

  @functools.cached_property
  def string_numbers(self) -> dict[str, int]:
    """The number of each string."""
    return {string: number for number, string in enumerate(self.strings)}

  @functools.cached_property
  def pattern_numbers(self) -> dict[str, int]:
    """The number of each pattern."""
    first = len(self.strings)
    return {pattern: first + i for i, pattern in enumerate(self.patterns)}

  @functools.cached_property
  def sha256(self) -> str:
    """Hash of the rule and the answers, in their order."""
    digest = hashlib.sha256(self.rule.encode())
    for group in (self.strings, self.patterns):
      digest.update(json.dumps(group).encode())
    return digest.hexdigest()
