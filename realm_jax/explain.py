"""Explains what a run fills in: `python -m realm_jax.explain "… [MASK] …"`.

    python -m realm_jax.explain --model_dir=… "… was born in [MASK]."
    python -m realm_jax.explain --model_dir=… --answer=Paris "… in [MASK]."
    python -m realm_jax.explain --model_dir=… --block_use

Table 3 of the paper for any sentence: the candidates, their shares of p(y|x)
and r(z), by which a gradient would reward them, beside p(y|null,x) and the best
fillings. Of a question, the blocks that its answer comes from. Without a text
it reads texts from the terminal or from the standard input. docs/evaluation.md
explains the figures.

The configuration is the one that the run keeps, over gin/runs/explain.gin, or
that of gin files. Of several processes, process 0 does this on its own devices.
"""

from collections.abc import Sequence

from absl import app, flags, logging

from realm_jax.configuration import command_line
from realm_jax.console import columns, prompted_lines
from realm_jax.storage.json_files import write_json

_ANSWER = flags.DEFINE_string(
  "answer", None, "Answer to explain; it replaces the one [MASK]."
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
  text = " ".join(argv[1:])
  if _BLOCK_USE.value and (text or _ANSWER.value is not None):
    raise app.UsageError("--block_use is for no sentence, and no --answer")
  if _ANSWER.value is not None and not text:
    raise app.UsageError("--answer is for one sentence; give it as well")
  command_line.require_run(_RECIPE)
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.partitioning.agreement import Agreement

  logging.set_verbosity(logging.WARNING)
  cpu_tuning.keep_freed_memory()
  Agreement("explain").on_process_0("explanations", lambda: _explain(text))


def _explain(text: str) -> None:
  from realm_jax.evaluation.explain import block_use, explain
  from realm_jax.evaluation.explanation import explanation_text
  from realm_jax.evaluation.run import Run, RunConfig

  if _BLOCK_USE.value:
    use = command_line.call(block_use, recipe=_RECIPE)
    if _JSON.value:
      write_json(_JSON.value, {"sentences": use})
    rows = [
      [v if isinstance(v, float) else f"{v:.40}" for v in one.values()]
      for one in use
    ]
    print(columns([[*use[0]], *rows]))
    return
  run, explained = Run.load(command_line.call(RunConfig, recipe=_RECIPE)), []
  texts = prompted_lines("sentence with [MASK], or question")
  for one in [text] if text else texts:
    found = explain(run, one, _ANSWER.value)
    print(explanation_text(found, num_texts=_NUM_TEXTS.value))
    explained.append(found.to_json())
  if _JSON.value:
    write_json(_JSON.value, {"explanations": explained})


if __name__ == "__main__":
  command_line.run_on_devices(main, takes_texts=True)
