"""Prints decoded examples of a task, with the words that masks hide.

    python -m realm_jax.show_task --task=masked_salient_spans \\
      --corpus_dir=corpus
    python -m realm_jax.show_task --task=open_qa --corpus_dir=corpus \\
      --questions=questions.jsonl
    python -m realm_jax.show_task --task=web_questions --corpus_dir=corpus \\
      --questions=data/webquestions --split=dev
"""

import itertools
import shutil
from collections.abc import Sequence

from absl import flags
from etils import epath

from realm_jax.configuration import command_line
from realm_jax.console import harmless
from realm_jax.corpus import manifest
from realm_jax.inputs.config import DataConfig
from realm_jax.storage.access import require_readable

_FIELDS = (
  *("task", "corpus_dir", "split", "seed", "query_length", "block_length"),
  *("max_masks", "unmasked_span_kinds", "task_modules"),
)
command_line.define_flags_of(DataConfig, *_FIELDS)
_NUM = flags.DEFINE_integer(
  "num", 5, "Number of examples to print.", lower_bound=1
)
_QUESTIONS = flags.DEFINE_string(
  "questions",
  None,
  "JSON Lines of questions, for open QA; for a published data set, the folder "
  "of its files, or `tfds:`.",
)


def main(argv: Sequence[str]) -> None:
  """Prints examples of the task that the flags name."""
  del argv
  settings = command_line.given_flags(*_FIELDS)
  split, questions = settings.get("split", DataConfig.split), _QUESTIONS.value
  config = command_line.configured(
    DataConfig,
    question_files={split: questions} if questions else {},
    batch_size=1,
    **settings,
  )()
  require_readable(config.corpus_dir, *config.question_paths)
  manifest.read(epath.Path(config.corpus_dir))
  # Once the corpus was found: they import TensorFlow.
  from realm_jax.inputs.display import describe
  from realm_jax.inputs.examples import ExampleStream

  stream = ExampleStream(config)
  for example in itertools.islice(stream, _NUM.value):
    text = describe(
      example,
      features=stream.task.output_features,
      corpus=config.corpus,
      width=shutil.get_terminal_size().columns,
    )
    print(harmless(text), end="\n\n")


if __name__ == "__main__":
  command_line.run(main)
