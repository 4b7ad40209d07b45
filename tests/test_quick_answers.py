"""Commands answer help and plain errors without the libraries of their work."""

import contextlib
import json
import sys

import pytest

from tests.command_server import CommandServer
from tests.conftest import PROJECT_DIR

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
  "bm25s",
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
COMMANDS = [
  f"{path.parent.name}.{path.stem}"
  for folder in ("realm_jax", "launch")
  for path in sorted((PROJECT_DIR / folder).glob("*.py"))
  # A container's command takes the arguments of another one, and no flags.
  if '__name__ == "__main__"' in path.read_text() and path.stem != "pod"
] + ["realm_jax.generations"]
# Commands that read a run, with arguments that are otherwise right. Index
# builders wait for theirs.
READS_A_RUN = {
  "realm_jax.ask": ["who?"],
  "realm_jax.evaluate": [],
  "realm_jax.explain": ["a [MASK]"],
  "realm_jax.export_weights": ["--to=vectors", "--output_dir=out"],
  "realm_jax.generations": ["list"],
  "realm_jax.precompile": ["--topology=v5e:2x2"],
  "realm_jax.serve": ["--port=0"],
  "realm_jax.train": [],
}
CASES = [
  *((command, "--helpfull") for command in COMMANDS),
  # All parse their flags alike, after the imports that help takes, too.
  ("realm_jax.train", "--not_a_flag=1"),
  *(
    (command, *arguments, "--model_dir=not/there")
    for command, arguments in READS_A_RUN.items()
  ),
  # A folder that is no run, and further wrong inputs.
  ("realm_jax.train", "--model_dir=docs"),
  (
    "realm_jax.evaluate",
    "--gin_file=gin/runs/eval.gin",
    "--model_dir=not/there",
  ),
  (
    "realm_jax.import_weights",
    "--from=hf_bert",
    "--output_dir=out",
    "--input=not/there",
  ),
  ("realm_jax.show_task", "--task=open_qa", "--corpus_dir=not/there"),
  (
    "realm_jax.precompile",
    "--gin_file=gin/runs/pretrain.gin",
    "--topology=v5p:4x4",
  ),
]


@pytest.fixture(scope="module")
def answers(
  command_environment, tmp_path_factory
) -> dict[tuple[str, ...], dict]:
  """What each command line of `CASES` answers."""
  report = tmp_path_factory.mktemp("answers") / "modules.json"
  found = {}
  server = CommandServer(command_environment, MAY_BE_IMPORTED)
  with contextlib.closing(server):
    for case in CASES:
      done = server.run([sys.executable, "-c", _REPORTED, report, *case])
      found[case] = {
        "code": done.returncode,
        "output": done.stdout + done.stderr,
        "modules": json.loads(report.read_text()),
      }
  return found


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_plain_answer_imports_nothing_slow(answers, case):
  answer = answers[case]
  imported = {name.partition(".")[0] for name in answer["modules"]}
  assert not imported & SLOW_TO_IMPORT
  argument = case[-1]
  folder = argument.partition("=")[2]
  if folder in ("not/there", "docs"):
    assert answer["code"] == 2
    assert folder in answer["output"]
    assert len(answer["output"].splitlines()) == 1
  else:
    # absl ends a process that has shown its help with 1.
    code, wanted = (1, "flags:") if argument == "--helpfull" else (2, argument)
    assert answer["code"] == code
    assert wanted.strip("-").partition("=")[0] in answer["output"]
