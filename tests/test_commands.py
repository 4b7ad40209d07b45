"""What commands answer to a request for help, and to what a user gets wrong.

Help and plain errors come without the libraries of the commands' work.
"""

import contextlib
import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys

import pytest

from tests.command_server import CommandServer
from tests.printed_commands import PROJECT_DIR, T5X, printed

pytestmark = pytest.mark.slow

# Libraries that an answer may take its time for.
MAY_BE_IMPORTED = ("jax", "orbax.checkpoint", "flax.linen")
# Runs a command, and writes which modules it has imported.
_REPORTED = """
import json, runpy, sys
report, *sys.argv = sys.argv[1:]
try:
  runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
  with open(report, "w") as file:
    json.dump(sorted(sys.modules), file)
"""
# Each takes half a second to several, at every start of a command.
SLOW_TO_IMPORT = {
  "apache_beam",
  "faiss",
  "gcsfs",
  "matplotlib",
  "scann",
  "seqio",
  "tensorflow",
  "tensorflow_datasets",
  "tensorflow_text",
  "torch",
  "xmanager",
}
# A container's command takes the arguments of another one, and no flags; so
# does `realm`.
COMMANDS = [
  f"{folder.replace('/', '.')}.{path.stem}"
  for folder in ("realm_jax", "realm_jax/launch")
  for path in sorted((PROJECT_DIR / folder).glob("*.py"))
  if '__name__ == "__main__"' in path.read_text()
  and path.stem not in ("__main__", "pod")
] + ["experiments.ablation", "experiments.demo"]
_PRINTED = [command for command in printed() if command.module != T5X]
# Commands of realm_jax, with arguments that are otherwise right.
# Index builders wait for their run.
_PLAIN_ERRORS = [
  "ask who? --model_dir=not/there",
  "build_memory --gin.OUTPUT_DIR=out --model_dir=not/there",
  "evaluate --model_dir=not/there",
  "evaluate --gin_file=gin/runs/eval.gin --model_dir=not/there",
  "explain [MASK] --model_dir=not/there",
  "export_weights --to=vectors --output_dir=out --model_dir=not/there",
  "list_snapshots list --model_dir=not/there",
  "precompile --topology=v5e:2x2 --model_dir=not/there",
  "serve --port=0 --model_dir=not/there",
  # A folder that is no run, and further wrong inputs.
  "train --model_dir=docs",
  "import_weights --from=hf_bert --output_dir=out --input=not/there",
  "show_task --task=open_qa --query_length=32 --corpus_dir=not/there",
]
_BUILD = "build_corpus --output_dir={d}/new --vocab={d}/vocab.txt"
_RECIPE = "--gin_file=gin/runs/inverse_cloze.gin --corpus_dir={d}/corpus"
_MODEL = "--gin_file=gin/models/tiny.gin"
_TRAIN = f"train {_MODEL} {_RECIPE} --model_dir={{d}}/none"
_LENGTH = "--gin.BLOCK_LENGTH=40"
_INDEX = (
  f"build_index --once {_MODEL} --gin_file=gin/runs/build_index.gin "
  "--corpus_dir={d}/corpus --model_dir={d}/none"
)
# What is typed after `python -m realm_jax.`, and words that the answer has.
_MISTAKES = [
  (f"{_BUILD} --input=seqio:realm_jax.tasks:nope", ["'nope'", "inverse_cloze"]),
  (
    f"{_TRAIN} {_LENGTH} --gin.INITIAL_CHECKPOINT={{d}}/corpus",
    ["{d}/corpus is not a checkpoint", "MODEL_DIR"],
  ),
  (f"train {_RECIPE} --model_dir={{d}}/none", ["RETRIEVER", "gin/models/"]),
  (f"{_TRAIN} --gin.NUM_STEP=3", ["NUM_STEP", "NUM_STEPS"]),
  ("ask", ["--model_dir=MODEL_DIR", "--gin_file"]),
  (f"{_INDEX} --gin.INDEX=%HNSW", ["HNSW", "%EXACT", "%FAISS", "%SCANN"]),
  (
    "show_task --task=open_qa --corpus_dir={d}/corpus --gin.QUERY_LENGT=8",
    ["QUERY_LENGT ", "did you mean QUERY_LENGTH"],
  ),
  (f"{_TRAIN} --gin.BATCH_SIZE=many", ["BATCH_SIZE", "many", "an integer"]),
  (f"{_TRAIN} --gin.NUM_STEPS=99999999999", ["NUM_STEPS", "2147483647"]),
  ("build_index --once --model_dir={d}/vocab.txt", ["{d}/vocab.txt is a file"]),
  (
    "import_weights --from=hf_bert --input={d} --output_dir={d}/new "
    f"--seed={10**20}",
    ["seed", "9223372036854775807"],
  ),
]


@pytest.fixture(scope="module")
def server(command_environment):
  server = CommandServer(command_environment, MAY_BE_IMPORTED)
  with contextlib.closing(server):
    yield server


@pytest.fixture(scope="module")
def answer(server, tmp_path_factory):
  """`answer(command, …)`: its exit code, what it says and has imported."""
  report = tmp_path_factory.mktemp("answers") / "modules.json"

  def run(*command):
    done = server.run([sys.executable, "-c", _REPORTED, report, *command])
    modules = json.loads(report.read_text())
    imported = {name.partition(".")[0] for name in modules}
    return done.returncode, done.stdout + done.stderr, imported

  return run


@pytest.mark.parametrize("typed", _PLAIN_ERRORS)
def test_a_plain_error_imports_nothing_slow(answer, typed):
  module, *arguments = typed.split()
  code, output, imported = answer(f"realm_jax.{module}", *arguments)
  assert not imported & SLOW_TO_IMPORT
  assert code == 2
  assert typed.rpartition("=")[2] in output
  assert len(output.splitlines()) == 1


@pytest.mark.parametrize(
  "module", sorted({*COMMANDS, *(command.module for command in _PRINTED)})
)
def test_help_has_all_printed_flags_and_imports_nothing_slow(answer, module):
  code, output, imported = answer(module, "--helpfull")
  assert "Traceback" not in output, output
  known = _flags_of(output)
  for command in _PRINTED:
    assert command.module != module or command.flags <= known, command
  assert not imported & SLOW_TO_IMPORT
  assert code == 0


def _flags_of(text: str) -> set[str]:
  return set(re.findall(r"^\s+(?:-\w,)?--(?:\[no\])?(\w+)", text, re.M))


@pytest.mark.parametrize(
  ("typed", "words"), _MISTAKES, ids=[typed for typed, _ in _MISTAKES]
)
def test_an_error_of_a_user_is_one_line_that_names_it(
  world, command_server, typed, words
):
  directory = str(world.directory)
  module, *arguments = shlex.split(typed.replace("{d}", directory))
  done = command_server.run(
    [sys.executable, "-m", f"realm_jax.{module}", *arguments]
  )
  output = done.stdout + done.stderr
  # Lines of progress, as absl writes them, may come before it.
  lines = [
    line
    for line in output.splitlines()
    if line and not line.startswith(("I1", "I0", "W1", "W0"))
  ]
  assert (done.returncode, len(lines)) == (2, 1), output
  assert lines[0].startswith(f"{module}: ")
  wanted = [word.replace("{d}", directory) for word in words]
  assert not [word for word in wanted if word not in lines[0]], lines[0]


@pytest.mark.skipif(
  importlib.util.find_spec("t5x") is None,
  reason="t5x is absent; `make t5x` adds it",
)
def test_the_flags_of_t5x_are_its_own(server):
  done = server.run([sys.executable, "-m", T5X, "--helpfull"])
  known = _flags_of(done.stdout + done.stderr)
  of_t5x = [command for command in printed() if command.module == T5X]
  assert of_t5x
  for command in of_t5x:
    assert command.flags <= known


def _realm(environment, *typed, **streams):
  """Runs `realm`, as the script of an installation does."""
  given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
  script = "from realm_jax.__main__ import main; raise SystemExit(main())"
  return subprocess.run(
    [sys.executable, "-X", "importtime", "-c", script, *typed],
    env=environment,
    text=True,
    **given,
  )


def test_realm_lists_every_command_at_once(command_environment):
  for typed in ((), ("--help",)):
    done = _realm(command_environment, *typed)
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.splitlines()[2:-2]}
    assert {f"realm_jax.{name}" for name in listed} == {
      name for name in COMMANDS if name.startswith("realm_jax.")
    }
    imported = set(re.findall(r"\| +(\w+)$", done.stderr, re.M))
    assert "realm_jax" in imported
    assert not imported & {*SLOW_TO_IMPORT, "jax", "numpy", "absl"}
  # Nobody reads the list.
  with subprocess.Popen(["true"], stdin=subprocess.PIPE) as gone:
    gone.wait()
    done = _realm(command_environment, stdout=gone.stdin)
  assert done.returncode == -signal.SIGPIPE


def test_realm_becomes_the_command_or_suggests_one(command_environment):
  done = _realm(command_environment, "trian", "--help")
  assert done.returncode == 2
  assert "did you mean `realm train`?" in done.stderr
  done = _realm(command_environment, "compare", "--help")
  assert (done.returncode, "Compares" in done.stdout) == (0, True)
  done = _realm(command_environment, "compare", "--nonsense")
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].startswith("compare: Unknown command")


# A process without the libraries of the extra `train`.
_OF_TRAINING = (
  *("scann", "seqio", "tensorboard", "tensorflow", "tensorflow_datasets"),
  "tensorflow_text",
)
_WITHOUT = f"""
import runpy, sys

class Absent:
  def find_spec(self, name, *_):
    if name in {_OF_TRAINING}:
      raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
_LOADS = """
import realm_jax, realm_jax.inputs.question_files, realm_jax.serving.service
import realm_jax.corpus.build, realm_jax.snapshots.build
import realm_jax.weights.importing, realm_jax.weights.hugging_face
run = realm_jax.load(sys.argv[1])
print(run.ask("who?").answers[0].text, run.retrieve("who?")[0].block.title)
print(run.explain("who?"))
"""
_RUNS = """
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_what_asks_does_without_the_extra_for_training(
  recorded_run, world, command_environment
):
  run = recorded_run("open_qa")

  def python(program, *arguments):
    return subprocess.run(
      [sys.executable, "-c", _WITHOUT + program, *map(str, arguments)],
      env=command_environment,
      capture_output=True,
      text=True,
    )

  done = python(_LOADS, run)
  assert done.returncode == 0, done.stderr
  given = f"--model_dir={run}", f"--gin.QUESTIONS={world.question_file}"
  done = python(_RUNS, "realm_jax.evaluate", *given)
  assert done.returncode == 0, done.stderr
  assert "exact_match" in done.stdout
  done = python(_RUNS, "realm_jax.evaluate", *given, "--gin.TASK=web_questions")
  assert done.returncode == 2
  assert done.stderr == (
    "evaluate: this needs the library seqio, which is not installed; pip "
    "install 'realm_jax[train]'\n"
  )
