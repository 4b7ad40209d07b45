"""What the record runs and compares: command lines and the files they leave.

A step is one or more commands, and what is compared of their outputs. In a
command, {shared} is the folder of the texts, {out} the folder of a side's
outputs, {fixed} that of the base's, and each further name in braces one of
`SPELLINGS`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

_SPAN_SELECTION = (
  "--gin_file=gin/runs/span_selection.gin "
  "--gin_file=gin/experiments/demo/model.gin --gin.MAX_ANSWER_WIDTH=10"
)
# What the two sides spell differently, as (base, now).
SPELLINGS: dict[str, tuple[str, str]] = {
  "rolling": (
    "--gin.ROLLING_REFRESH_SHARE=0.05",
    "--gin.BLOCKS_PER_STEP=8",
  ),
  "span_selection": (_SPAN_SELECTION, _SPAN_SELECTION),
}
# Differences that were decided, with the reason: regular expressions for whole
# names of rows. Such a row is printed and does not count.
DECIDED: dict[str, str] = {
  r"pretrain_rolling: .*": "a step embeds a number of blocks, and no share of "
  "its arithmetic",
}

NUM_STEPS = 20
# Of one step from the same parameters, and of what 20 steps have accumulated.
_STEP, _TRAINED = 1e-6, 1e-4
# Printed with three digits.
_PRINTED = 2e-3
Kind = Literal["bytes", "array", "values", "gradient", "parameters"]


@dataclasses.dataclass(frozen=True)
class Output:
  """What is compared of a step.

  Attributes:
    what: Name for the table.
    kind: How it is compared: "bytes" of all files of a folder, the numbers of
      an "array" file, "values" of JSON, JSON Lines or printed text, the
      "gradient" that a checkpoint's optimizer holds, or its "parameters".
    path: File or folder, below a side's outputs.
    tolerance: Greatest difference, relative to the largest number beside it.
    gradient: Checkpoint whose optimizer holds the gradient of these parameters.
  """

  what: str
  kind: Kind
  path: str
  tolerance: float = 0.0
  gradient: str | None = None


@dataclasses.dataclass(frozen=True)
class Step:
  """Commands of one purpose.

  Attributes:
    name: Name; also that of the folder or file that it makes.
    commands: Command lines, which run one after the other.
    outputs: What is compared.
    needs: Names of the steps whose outputs it reads.
    beside: Command that runs at the same time, and is stopped afterwards unless
      it ends by itself.
    requests: Texts that are asked of the page that `beside` serves.
    copies: Pairs of folders, of which the first is copied before.
    is_fixed: Whether only the base runs it, and both sides start from it.
  """

  name: str
  commands: tuple[str, ...]
  outputs: tuple[Output, ...] = ()
  needs: tuple[str, ...] = ()
  beside: str | None = None
  requests: tuple[str, ...] = ()
  copies: tuple[tuple[str, str], ...] = ()
  is_fixed: bool = False


_CORPUS = (
  "python -m realm_jax.build_corpus --input={shared}/text.jsonl "
  "--block_length=36 --output_dir="
)
_DEMO = "--gin_file=gin/experiments/demo"
_TRAIN = "python -m realm_jax.train --corpus_dir={out}/corpus "
_SIZES = " --gin.BATCH_SIZE=16 --gin.WARMUP_STEPS=5 --gin.DROPOUT_RATE=0.1"
_MANY = f" --gin.NUM_STEPS={NUM_STEPS} --gin.SAVE_EVERY_STEPS=10"
_ONE = " --gin.NUM_STEPS=1 --gin.SAVE_EVERY_STEPS=10"
_FROM_RETRIEVER = " --gin.INITIAL_CHECKPOINT='\"{fixed}/first_retriever\"'"
_FROM_READER = " --gin.INITIAL_READER='\"{fixed}/first_reader\"'"
_WAITING = (
  " --gin.WAIT_FOR_GENERATIONS=True --gin.LAG_STEPS=10"
  " --gin.REFRESH_EVERY_STEPS=10"
)
# The search in the step finds no spans for the reader to point at.
_SEARCH_IN_STEP = "--gin.RETRIEVE_ON_DEVICE=True --gin.SPAN_WEIGHT=0.0"
_INDEX = (
  f"python -m realm_jax.build_index {_DEMO}/build_index.gin "
  "--corpus_dir={out}/corpus --model_dir={out}/"
)
_QUESTION = "where was Béla Velasco born?"
_SENTENCE = "Béla Velasco was born in [MASK] in 1901."
_GOLDEN = {
  "hf_bert": ("masked_lm", "with_pooler", "without_pooler"),
  "hf_realm": (
    *("embedder", "encoder", "open_qa", "reader", "scorer", "two_towers"),
  ),
}
# Imports whose vectors of the corpus are compared, too.
_EMBEDDED = ("hf_bert/with_pooler", "hf_realm/two_towers")


def steps() -> list[Step]:
  """Returns all steps, each after those that it needs."""
  return [
    *_corpora(),
    *_first_parameters(),
    *_training(),
    *_evaluation(),
    *_imports(),
  ]


def _corpora() -> Iterator[Step]:
  for name, vocab in {
    "corpus": "{shared}/vocab.txt",
    # Nearly all of its words are read letter by letter.
    "golden_corpus": "tests/golden/hf_bert/with_pooler/vocab.txt",
  }.items():
    yield Step(
      name,
      (f"{_CORPUS}{{out}}/{name} --vocab={vocab}",),
      (Output("corpus", "bytes", name),),
    )
  yield Step(
    "updated_corpus",
    (
      f"{_CORPUS}{{out}}/updated_corpus --vocab={{shared}}/vocab.txt "
      "--workers=2",
      "python -m realm_jax.build_corpus --update "
      "--input={shared}/changes.jsonl --output_dir={out}/updated_corpus",
    ),
    (Output("corpus and its update", "bytes", "updated_corpus"),),
  )


def _first_parameters() -> Iterator[Step]:
  for name, recipe in {
    "first_retriever": "inverse_cloze",
    "first_reader": "reading",
  }.items():
    yield Step(
      name,
      (
        f"{_TRAIN}{_DEMO}/{recipe}.gin --model_dir={{out}}/{name}"
        f"{_SIZES}{_MANY}",
      ),
      needs=("corpus",),
      is_fixed=True,
    )


def _training() -> Iterator[Step]:
  yield from _stage(
    "inverse_cloze", f"{_DEMO}/inverse_cloze.gin{_FROM_RETRIEVER}"
  )
  yield from _stage("reading", f"{_DEMO}/reading.gin{_FROM_READER}")
  yield from _stage("span_selection", f"{{span_selection}}{_FROM_READER}")
  pretrain = f"{_DEMO}/pretrain.gin{_FROM_RETRIEVER}{_FROM_READER}"
  yield from _stage(
    "pretrain",
    f"{pretrain}{_WAITING}",
    sidecar=f"{_INDEX}pretrain --gin.MODE='\"every\"' "
    "--gin.REFRESH_EVERY_STEPS=10",
  )
  for name, flags in {
    "pretrain_padded": "--gin.PACK=False",
    "pretrain_microbatches": "--gin.NUM_MICROBATCHES=2",
    "pretrain_search_in_step": _SEARCH_IN_STEP,
  }.items():
    yield from _stage(
      name, f"{pretrain}{_WAITING} {flags}", generations_of="pretrain"
    )
  yield from _stage(
    "pretrain_rolling", f"{pretrain} {_SEARCH_IN_STEP} {{rolling}}"
  )
  yield from _stage(
    "open_qa",
    f"{_DEMO}/open_qa.gin{_FROM_RETRIEVER}{_FROM_READER} "
    "--gin.TRAIN_QUESTIONS='\"{shared}/questions.jsonl\"'",
    sidecar=f"{_INDEX}open_qa --once",
  )


def _stage(
  name: str,
  flags: str,
  *,
  sidecar: str | None = None,
  generations_of: str | None = None,
) -> Iterator[Step]:
  """Yields a run of many steps and another of the first alone.

  The optimizer of the second holds the gradient. It searches the generations of
  the first, or both search those of another step.
  """
  one = f"{name}_step_1"
  needs = ("corpus", "first_retriever", "first_reader")
  command = f"{_TRAIN}{flags}{_SIZES}"

  def searching(run: str, source: str | None) -> dict[str, Any]:
    if source is None:
      return {"needs": needs}
    copies = ((f"{source}/generations", f"{run}/generations"),)
    return {"needs": (*needs, source), "copies": copies}

  yield Step(
    name,
    (f"{command}{_MANY} --model_dir={{out}}/{name}",),
    (
      Output(
        f"metrics of {NUM_STEPS} steps",
        "values",
        f"{name}/metrics.jsonl",
        _TRAINED,
      ),
      Output(
        f"parameters of step {NUM_STEPS}",
        "parameters",
        f"{name}/checkpoints/{NUM_STEPS}",
        _TRAINED,
        gradient=f"{one}/checkpoints/1",
      ),
    ),
    beside=sidecar,
    **searching(name, generations_of),
  )
  yield Step(
    one,
    (f"{command}{_ONE} --model_dir={{out}}/{one}",),
    (
      Output("loss and metrics", "values", f"{one}/metrics.jsonl", _STEP),
      Output("gradient", "gradient", f"{one}/checkpoints/1", _STEP),
    ),
    **searching(one, name if sidecar else generations_of),
  )


def _evaluation() -> Iterator[Step]:
  questions = "--gin.QUESTIONS='\"{shared}/questions.jsonl\"'"
  for name, run, flags, lines in (
    ("eval", "open_qa", questions, "predictions.jsonl"),
    ("eval_retrieval", "pretrain", questions, "retrieved.jsonl"),
    ("eval_masked", "pretrain", "--gin.NUM_BATCHES=2", None),
  ):
    outputs = [Output("figures", "values", f"{name}/metrics.json", _TRAINED)]
    if lines:
      outputs.append(Output(lines, "values", f"{name}/{lines}", _TRAINED))
    # The checkpoint whose generation was built.
    step = "--gin.CHECKPOINT_STEP=10" if name == "eval_retrieval" else ""
    yield Step(
      name,
      (
        f"python -m realm_jax.evaluate {_DEMO}/{name}.gin {flags} {step} "
        f"--model_dir={{out}}/{run} --corpus_dir={{out}}/corpus "
        f"--gin.OUTPUT_DIR='\"{{out}}/{name}\"'",
      ),
      tuple(outputs),
      needs=(run,),
    )
  yield Step(
    "ask",
    (f'python -m realm_jax.ask --model_dir={{out}}/open_qa "{_QUESTION}"',),
    (Output("answers", "values", "ask.0.stdout", _PRINTED),),
    needs=("open_qa",),
  )
  for name, run, text in (
    ("explain_question", "open_qa", _QUESTION),
    ("explain_sentence", "pretrain", _SENTENCE),
  ):
    yield Step(
      name,
      (
        f"python -m realm_jax.explain --model_dir={{out}}/{run} "
        f'--json={{out}}/{name}.json "{text}"',
      ),
      (Output("explanation", "values", f"{name}.json", _TRAINED),),
      needs=(run,),
    )
  yield Step(
    "serve",
    (),
    (Output("replies of the page", "values", "serve.jsonl", _TRAINED),),
    needs=("open_qa", "pretrain"),
    beside="python -m realm_jax.serve --model_dir={out}/open_qa "
    "--masked_model_dir={out}/pretrain --port=0",
    requests=(_QUESTION, _SENTENCE),
  )


def _imports() -> Iterator[Step]:
  for kind, names in _GOLDEN.items():
    for name in names:
      source, run = f"{kind}/{name}", f"{kind}_{name}"
      commands = [
        f"python -m realm_jax.import_weights --from={kind} "
        f"--input=tests/golden/{source} --output_dir={{out}}/{run}"
      ]
      outputs = [
        Output("parameters", "parameters", f"{run}/checkpoints/0", _STEP)
      ]
      if source in _EMBEDDED:
        over = f"--model_dir={{out}}/{run} --corpus_dir={{out}}/golden_corpus"
        commands += [
          f"python -m realm_jax.build_index --once {over} --gin.INDEX=%EXACT",
          f"python -m realm_jax.export_weights --to=vectors {over} "
          f"--output_dir={{out}}/{run}_vectors",
        ]
        outputs += [
          Output("vectors", "array", f"{run}_vectors/vectors.npy", _STEP),
          Output("rows", "values", f"{run}_vectors/blocks.jsonl"),
        ]
      yield Step(run, tuple(commands), tuple(outputs), ("golden_corpus",))
