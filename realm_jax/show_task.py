"""Prints decoded examples of a task, with the words that masks hide.

    python -m realm_jax.show_task --task=masked_salient_spans \\
      --corpus_dir=corpus
    python -m realm_jax.show_task --task=open_qa --corpus_dir=corpus \\
      --questions=questions.jsonl
    python -m realm_jax.show_task --task=web_questions --corpus_dir=corpus \\
      --questions=data/webquestions --split=dev
"""

import itertools
import os
import re
import shutil
import sys
from collections.abc import Sequence

from absl import flags
from etils import epath

from realm_jax.configuration import command_line
from realm_jax.corpus import manifest
from realm_jax.storage.access import require_readable

_TASK = flags.DEFINE_string(
  "task", None, "Name of a seqio task.", required=True
)
_CORPUS_DIR = flags.DEFINE_string(
  "corpus_dir", None, "Corpus directory.", required=True
)
_NUM = flags.DEFINE_integer(
  "num", 5, "Number of examples to print.", lower_bound=1
)
_QUESTIONS = flags.DEFINE_string(
  "questions",
  None,
  "JSON Lines of questions, for open QA; for a published data set, the folder "
  "of its files, or `tfds:`.",
)
_SPLIT = flags.DEFINE_string("split", "train", "Split of the task.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the order and of the masks.")
_QUERY_LENGTH = flags.DEFINE_integer(
  "query_length", 96, "Wordpieces of a query, [CLS] and [SEP] included."
)
_BLOCK_LENGTH = flags.DEFINE_integer(
  "block_length", 288, "Wordpieces of a block, title and specials included."
)
_MAX_MASKS = flags.DEFINE_integer(
  "max_masks", 10, "Number of masks that are scored."
)
_UNMASKED_SPAN_KINDS = flags.DEFINE_list(
  "unmasked_span_kinds",
  ["number"],
  "Kinds of salient spans that are not masked; '' masks all.",
)
_TASK_MODULES = flags.DEFINE_list(
  "task_modules", ["tasks"], "Modules that register tasks when imported."
)

_BOLD, _PLAIN = "\033[1;33m", "\033[0m"


def main(argv: Sequence[str]) -> None:
  """Prints examples of the task that the flags name."""
  del argv
  questions = _QUESTIONS.value
  require_readable(_CORPUS_DIR.value, questions)
  manifest.read(epath.Path(_CORPUS_DIR.value))
  from realm_jax.inputs.config import DataConfig
  from realm_jax.inputs.display import describe
  from realm_jax.inputs.examples import ExampleStream

  config = DataConfig(
    task=_TASK.value,
    split=_SPLIT.value,
    corpus_dir=_CORPUS_DIR.value,
    question_files={_SPLIT.value: questions} if questions else {},
    task_modules=_TASK_MODULES.value,
    batch_size=1,
    query_length=_QUERY_LENGTH.value,
    block_length=_BLOCK_LENGTH.value,
    max_masks=_MAX_MASKS.value,
    unmasked_span_kinds=[kind for kind in _UNMASKED_SPAN_KINDS.value if kind],
    seed=_SEED.value,
  )
  stream = ExampleStream(config)
  in_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
  for example in itertools.islice(stream, _NUM.value):
    text = describe(
      example,
      features=stream.task.output_features,
      corpus=config.corpus,
      width=shutil.get_terminal_size().columns,
    )
    if in_colour:
      text = re.sub(r"\[MASK(=[^ \n]*)?\]", rf"{_BOLD}\g<0>{_PLAIN}", text)
    print(text, end="\n\n")


if __name__ == "__main__":
  command_line.run(main)
