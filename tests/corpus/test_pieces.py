"""A shard is a piece of the input, whoever builds it; and builds that fail."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from etils import epath

from harness.jobs import Job, running, wait_until
from realm_jax.corpus import CorpusError, InputError
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.manifest import read
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.workers import map_in_processes
from realm_jax.errors import ExitCode, RealmError
from realm_jax.storage.atomic import TargetError
from realm_jax.storage.line_files import lines_of
from realm_jax.storage.local_disk import DiskFullError
from tests.corpus.conftest import article, files, require_consistent
from tests.full_disk import full_disk
from tests.json_lines import write_lines

# Some with the contents of others, some with dropped titles, one wordless.
ROWS = [
  *(
    {**article(f"d{i}", seed=i % 30, sentences=1 + i % 9), "title": "Velt"}
    for i in range(40)
  ),
  {"id": "list", "title": "List of Velt", "text": "Ada."},
  {"id": "two", "title": "Velt (disambiguation)", "text": "Ada."},
  {"id": "index", "title": "Indices", "text": "Ada."},
  {"id": "not", "title": "A list of", "text": "½ ﬁt 😀 北é … (x) U.S. of " * 9},
  {"id": "empty", "title": "Velt", "text": " \n"},
  {**article("copy", seed=2), "title": "Velt"},
]
BAD = ["", '{"id": "d3", "title": "Again", "text": "Ada."}', "[]"]
THREE = [{"title": f"{i}", "text": "Ada."} for i in range(3)]


@pytest.fixture
def inputs(tmp_path) -> list[str]:
  """Three files, the last two compressed, with a bad line in each."""
  contents = []
  for bad, rows in zip(BAD, (ROWS[:15], ROWS[15:30], ROWS[30:]), strict=True):
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    lines.insert(9, bad)
    contents.append("".join(f"{line}\n" for line in lines).encode())
  # Two frames, as `cat a.zst b.zst` gives.
  frames = [contents[2][:500], contents[2][500:]]
  files = {
    "0.jsonl": contents[0],
    "1.jsonl.gz": gzip.compress(contents[1]),
    "2.jsonl.zst": b"".join(map(zstandard.compress, frames)),
  }
  for name, written in files.items():
    (tmp_path / name).write_bytes(written)
  return [str(tmp_path / name) for name in files]


@pytest.fixture
def build_with(inputs, tmp_path, vocab_file):
  """Builds `inputs`, by default in shards of 700 bytes."""

  def run(directory: str, **arguments) -> Path:
    settings = {
      "vocab": vocab_file,
      "name": "corpus",
      "block_length": 24,
      "shard_bytes": 700,
      "drop_titles": ["wikipedia", "Ind"],
      "skip_bad_lines": True,
    }
    target = tmp_path / directory
    summary = build_corpus(inputs, target, **(settings | arguments))
    # Every count is shown.
    assert all(str(n) in summary.table() for n in summary.skipped.values())
    return target

  return run


def test_a_build_by_hand(build_with, inputs):
  corpus = Corpus.open(build_with("here"))
  require_consistent(corpus)
  assert corpus.summary["skipped"] == {
    "malformed lines": 2,
    "repeated ids": 1,
    "title with 'List of'": 1,
    "title with '(disambiguation)'": 1,
    "title with 'Ind'": 1,
    "no words in the text": 1,
  }
  errors = corpus.summary["first_errors"]
  assert errors[0].startswith(f"{inputs[0]}:10: an empty line")
  assert errors[1].startswith(f"{inputs[2]}:10: it begins a JSON array")
  assert f"{inputs[1]}:10 has the same id as {inputs[0]}:4;" in errors[2]
  names = [corpus.block(row).document_id for row in range(corpus.num_blocks)]
  assert list(dict.fromkeys(names)) == [
    *(f"d{i}" for i in range(40)),
    "not",
    "copy",
  ]
  # Cutting loses white space and nothing else.
  texts = {row["id"]: row["text"] for row in ROWS}
  for document in dict.fromkeys(names):
    rows = [row for row, name in enumerate(names) if name == document]
    blocks = [*map(corpus.block, rows)]
    body, text = "".join(block.text for block in blocks), texts[document]
    assert "".join(body.split()) == "".join(text.split())
    tokens = np.concatenate([block.body_token_ids for block in blocks])
    assert tokens.tolist() == corpus.vocabulary.encode(text)
  shards = read(corpus.source)["shards"]
  assert len(shards) > 5
  assert sum(shard["num_blocks"] for shard in shards) == corpus.num_blocks


@pytest.mark.slow
def test_any_number_of_workers_and_beam_give_the_same_bytes(
  build_with, object_store, tmp_path
):
  """Beam builds where other machines see it."""
  pytest.importorskip("apache_beam", reason="Beam is an extra")

  # Workers are given the phrases that recur in the whole corpus. The emulator
  # of a store drops a carriage return that ends a file, hence the name.
  settings = {
    "remove_duplicates": True,
    "tagger": "recurring",
    "name": "beam",
    "shard_bytes": 2500,
  }
  here = build_with("here", **settings)
  assert files(build_with("two", workers=2, **settings)) == files(here)
  target = epath.Path(object_store.path(f"beam/{tmp_path.name}"))
  built = Corpus.open(build_with(target, runner="DirectRunner", **settings))
  assert built.fingerprint == Corpus.open(here).fingerprint
  require_consistent(built)
  assert {p.name for p in target.iterdir()} == {p.name for p in here.iterdir()}


# --- Directories that appear whole, or not at all -----------------------


def test_a_build_that_fails_names_the_file_and_leaves_nothing(
  build_with, inputs, tmp_path
):
  before = sorted(tmp_path.iterdir())
  inputs.reverse()  # Files are sorted by name.
  with pytest.raises(InputError, match=r"0\.jsonl:10: an empty line"):
    build_with("out", skip_bad_lines=False)
  for path in map(Path, inputs[:2]):
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(RealmError, match=f"{path.name} cannot be decompr"):
      build_with("out")
    path.write_bytes(whole)
  assert sorted(tmp_path.iterdir()) == before


def test_a_line_without_end_is_skipped_and_never_in_memory(build_with, inputs):
  # It expands 30,000 times.
  line = zstandard.compress(b'{"text": "' + b"a" * (200 << 20) + b'"}\n')
  path = Path(inputs[2])
  path.write_bytes(path.read_bytes() + line)
  assert max(map(len, lines_of(path))) < 128 << 20
  summary = Corpus.open(build_with("out")).summary
  assert summary["skipped"]["malformed lines"] == 3
  message = f"{path}:18: the line has over 64 MiB; cut what it holds"
  assert message in summary["first_errors"][2]


def test_a_full_disk_is_explained(build_with, tmp_path):
  before = sorted(tmp_path.iterdir())
  with (
    full_disk(4096),
    pytest.raises(DiskFullError, match=r"is full .* free some space"),
  ):
    build_with("out", shard_bytes=None)
  assert sorted(tmp_path.iterdir()) == before


_BUILD_AND_HANG = """
import sys, time
from realm_jax.corpus import build

def hang(*arguments, **keywords):
  print("written", flush=True)
  time.sleep(600)

build.finish = hang
build.build_corpus([sys.argv[1]], sys.argv[2], vocab=sys.argv[3], shard_bytes=1)
"""


@pytest.mark.slow
def test_a_killed_build_leaves_no_half_corpus(
  build, tmp_path, vocab_file, quick_jobs
):
  directory = tmp_path / "corpus"
  lines = write_lines(tmp_path / "killed.jsonl", THREE)
  arguments = [_BUILD_AND_HANG, str(lines), str(directory), vocab_file]
  builder = Job(
    "build", [sys.executable, "-c", *arguments], log=tmp_path / "log"
  )
  with running(builder):
    wait_until(lambda: "written\n" in builder.last_output(), what="write")
    # Meanwhile nobody else builds the same corpus, and nobody reads it.
    with pytest.raises(TargetError, match="another process is building"):
      build(THREE)
    with pytest.raises(CorpusError, match="no corpus in"):
      Corpus.open(directory)
  assert (tmp_path / ".corpus.building").exists()
  assert build(THREE).num_blocks == 3
  folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
  assert folders == {"corpus"}


def _kill_this_process(_: object) -> None:
  os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_said():
  message = "one of the 2 processes has died"
  with pytest.raises(RealmError, match=message) as caught:
    list(map_in_processes(_kill_this_process, range(2), 2))
  assert caught.value.exit_code == ExitCode.LOST_PROCESS


_SLEEP_IN_PROCESSES = """
import functools, itertools, signal, subprocess, sys
from realm_jax.configuration import command_line
from realm_jax.corpus import workers

def main(argv):
  # A shell that starts tests in the background has it ignored.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  function = functools.partial(subprocess.run, shell=True)
  for _ in workers.map_in_processes(function, itertools.repeat(argv[1]), 2):
    print("begun", flush=True)

command_line.run(main, takes_texts=True)
"""


@pytest.mark.slow
def test_ctrl_c_ends_all_workers(command_environment):
  # A terminal sends it to all processes of a group.
  with subprocess.Popen(
    [sys.executable, "-c", _SLEEP_IN_PROCESSES, "sleep 0.1"],
    env=command_environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    start_new_session=True,
  ) as process:
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    os.killpg(process.pid, signal.SIGINT)
    # The pipe ends with the last process that can write to it.
    printed, _ = process.communicate(timeout=60)
    rest = printed.replace(b"begun\n", b"")
  assert (process.returncode, rest) == (128 + signal.SIGINT, b"interrupted\n")
