"""Lines of predictions, written by hand."""

from typing import Any


def line(
  number: int, *, question: str = "who ?", references=("x",), **fields: Any
) -> dict[str, Any]:
  """A line of `retrieved.jsonl`, or of predictions, if they are among fields.

  Of six blocks, those at the places `words` and `characters` have an answer.
  """
  words = fields.pop("words", ())
  characters = fields.pop("characters", words)
  read = fields.pop("read", ())
  evidence: list[dict[str, Any]] = [
    {"contains_answer": i in words, "contains_characters": i in characters}
    for i in range(6)
  ]
  if "prediction" in fields:
    for i, block in enumerate(evidence):
      block["read"] = i in read
    fields = {"answers": [], "f1": 0.0, "correct": False, **fields}
  return {
    "id": f"q{number}",
    "question": question,
    "references": list(references),
    "answer_kind": "string",
    "language": "en",
    **fields,
    "evidence": evidence,
  }
