"""EntityQuestions: simple questions about entities, from Wikidata.

Sciavolino et al. 2021 (arXiv 2109.08535). Dense retrievers find less than BM25
here. A file has the questions of one relation, such as P19, place of birth.
"""

from collections.abc import Iterator

from etils import epath

from realm_jax.inputs.published import (
  Files,
  PublishedSource,
  json_file,
)
from realm_jax.inputs.questions import Question
from tasks import open_qa


def read_file(path: epath.Path) -> Iterator[Question]:
  """Reads a list of `{"question": …, "answers": […]}`."""
  for entry in json_file(path):
    yield Question(entry["question"], entry["answers"])


open_qa.add(
  "entity_questions",
  PublishedSource(
    "EntityQuestions",
    sizes={"test": 22_075},
    files=[
      Files(
        names={
          split: [f"{split}/P*.{split}.json"]
          for split in ("train", "dev", "test")
        },
        read=read_file,
      )
    ],
    get=(
      "wget https://nlp.cs.princeton.edu/projects/entity-questions/dataset.zip"
    ),
  ),
)
