"""Explains what a run fills in: `python -m realm_jax.explain "… [MASK] …"`.

    python -m realm_jax.explain --model_dir=… "… was born in [MASK]."
    python -m realm_jax.explain --model_dir=… --answer=Paris "… in [MASK]."
    python -m realm_jax.explain --model_dir=… --baseline=runs/reading "…"
    python -m realm_jax.explain --model_dir=… --block_use

Table 3 of the paper for any sentence: the candidates, their shares of p(y|x)
and r(z), by which a gradient would reward them, beside p(y|null,x) and the best
fillings. Of a question, the blocks that its answer comes from. Without a text
it reads texts from the terminal or from the standard input. docs/evaluation.md
explains the figures.

The configuration is the one that the run keeps, over gin/runs/explain.gin, or
that of gin files. Of several processes, process 0 does this on its own devices.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from absl import app, flags, logging

from realm_jax import configuration
from realm_jax.configuration import command_line
from realm_jax.console import prompted_lines
from realm_jax.storage.json_files import write_json

if TYPE_CHECKING:
  from realm_jax.evaluation.run import Run

_ANSWER = flags.DEFINE_string(
  "answer", None, "Answer to explain; it replaces the one [MASK]."
)
_BASELINE = flags.DEFINE_string(
  "baseline",
  None,
  "MODEL_DIR of a masked language model to compare with, such as a run of "
  "reading or an imported BERT.",
)
_BASELINE_GIN_FILE = flags.DEFINE_multi_string(
  "baseline_gin_file",
  [],
  "Model file of the baseline, over what its directory has recorded; needed if "
  "that has no model.gin.",
)
_BLOCK_USE = flags.DEFINE_bool(
  "block_use",
  False,
  "Show the block that helps most with each of some training sentences.",
)
_NUM_TEXTS = flags.DEFINE_integer(
  "num_texts", 3, "Number of candidates whose text is printed.", lower_bound=0
)
_JSON = flags.DEFINE_string(
  "json", None, "File to which the same is written as JSON, too."
)

_RECIPE = "gin/runs/explain.gin"


def main(argv: Sequence[str]) -> None:
  """Explains what the flags ask for."""
  _require_one_mode(argv)
  command_line.require_run(_RECIPE)
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.partitioning.agreement import Agreement

  logging.set_verbosity(logging.WARNING)
  cpu_tuning.keep_freed_memory()
  Agreement("explain").on_process_0("explanations", lambda: _explain(argv[1:]))


def _require_one_mode(argv: Sequence[str]) -> None:
  """Refuses flags that do not go together."""
  is_sentence = len(argv) > 1
  if is_sentence and _BLOCK_USE.value:
    raise app.UsageError("--block_use is for no sentence; give one of the two")
  for flag in (_ANSWER, _BASELINE):
    if flag.value is not None and _BLOCK_USE.value:
      raise app.UsageError(f"--{flag.name} is for a sentence")
  if _ANSWER.value is not None and not is_sentence:
    raise app.UsageError("--answer is for one sentence; give it as well")


def _explain(words: Sequence[str]) -> None:
  from realm_jax.evaluation import explain
  from realm_jax.evaluation.block_use import block_use, block_use_text
  from realm_jax.evaluation.explanation import explanation_text
  from realm_jax.evaluation.run import Run, RunConfig

  if _BLOCK_USE.value:
    use = command_line.call(block_use, recipe=_RECIPE)
    if _JSON.value:
      write_json(_JSON.value, {"sentences": use})
    print(block_use_text(use))
    return
  run = Run.load(command_line.call(RunConfig, recipe=_RECIPE))
  baseline = None
  if _BASELINE.value is not None:
    baseline = _load_baseline(_BASELINE.value, run)
  texts: Iterable[str] = prompted_lines("sentence with [MASK], or question")
  explained = []
  for text in [" ".join(words)] if words else texts:
    one = explain.explain(run, text, _ANSWER.value, baseline=baseline)
    print(explanation_text(one, num_texts=_NUM_TEXTS.value))
    explained.append(one.to_json())
  if _JSON.value:
    write_json(_JSON.value, {"explanations": explained})


def _load_baseline(model_dir: str, run: "Run") -> "Run":
  """Loads a model by the configuration that its own directory has recorded."""
  files = _BASELINE_GIN_FILE.value
  if not files and configuration.KeptModel.find(model_dir) is None:
    raise configuration.ConfigurationError(
      f"the baseline {model_dir} has no model.gin; name its model with "
      "--baseline_gin_file"
    )
  from realm_jax.evaluation.explain import load_baseline

  with configuration.parsed_for_run(
    load_baseline, model_dir, gin_files=files, given=["run"]
  ):
    return configuration.configured(load_baseline)(run=run)


if __name__ == "__main__":
  command_line.run_on_devices(main, takes_texts=True)
