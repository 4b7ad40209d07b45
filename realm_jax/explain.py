"""Explains what a run fills in: `python -m realm_jax.explain "… [MASK] …"`.

    python -m realm_jax.explain --model_dir=… "… was born in [MASK]."
    python -m realm_jax.explain --model_dir=… --answer=Paris "… in [MASK]."
    python -m realm_jax.explain --model_dir=… --baseline=runs/reading "…"
    python -m realm_jax.explain --model_dir=… --block_use

Table 3 of the paper for any sentence, or for the questions of an open-QA run:
the candidates, their shares of p(y|x) and r(z), by which a gradient would
reward them, beside p(y|null,x) and the best fillings. Without a text it reads
texts from the terminal or from the standard input. docs/explaining.md explains
the figures.

The configuration is the one that the run keeps, over gin/runs/explain.gin, or
that of gin files. Of several processes, process 0 does this on its own devices.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from absl import app, flags, logging

from realm_jax import configuration
from realm_jax.configuration import command_line
from realm_jax.console import prompted_lines
from realm_jax.storage.json_files import write_json

if TYPE_CHECKING:
  from realm_jax.evaluation.explaining.explainer import Explainer
  from realm_jax.evaluation.explaining.unaided import UnaidedModel

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
  "block_use", False, "List the most and the least used blocks of a run."
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
  from realm_jax.evaluation.explaining import tables
  from realm_jax.evaluation.explaining.block_use import count_block_use

  if _BLOCK_USE.value:
    use = command_line.call(count_block_use, recipe=_RECIPE)
    if _JSON.value:
      write_json(_JSON.value, use.to_json())
    print(tables.block_use_text(use))
  else:
    asked = prompted_lines("sentence with [MASK], or question")
    _explain_texts([" ".join(words)] if words else asked)


def _explain_texts(texts: Iterator[str] | Sequence[str]) -> None:
  from realm_jax.evaluation.explaining import tables
  from realm_jax.evaluation.explaining.explainer import load_explainer

  explainer = command_line.call(load_explainer, recipe=_RECIPE)
  baseline = None
  if _BASELINE.value is not None:
    baseline = _load_baseline(_BASELINE.value, explainer)
  explained = []
  for text in texts:
    explained.append(explainer.explain(text, _ANSWER.value, baseline=baseline))
    print(tables.explanation_text(explained[-1], num_texts=_NUM_TEXTS.value))
  if _JSON.value:
    write_json(
      _JSON.value, {"explanations": [one.to_json() for one in explained]}
    )


def _load_baseline(model_dir: str, explainer: "Explainer") -> "UnaidedModel":
  """Loads a model by the configuration that its own directory has recorded."""
  files = _BASELINE_GIN_FILE.value
  if not files and configuration.KeptModel.find(model_dir) is None:
    raise configuration.ConfigurationError(
      f"the baseline {model_dir} has no model.gin; name its model with "
      "--baseline_gin_file"
    )
  from realm_jax.evaluation.explaining.unaided import load_unaided

  loaded = {
    "corpus": explainer.corpus,
    "limits": explainer.limits,
    "mesh": explainer.model.mesh,
  }
  with configuration.parsed_for_run(
    load_unaided, model_dir, gin_files=files, given=[*loaded]
  ):
    return configuration.configured(load_unaided)(**loaded)


if __name__ == "__main__":
  command_line.run_on_devices(main, takes_texts=True)
