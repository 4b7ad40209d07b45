"""Serves a trained run on a page and over HTTP.

    python -m realm_jax.serve --model_dir=runs/qa --example_questions=dev.jsonl
    python -m realm_jax.serve --model_dir=runs/qa --masked_model_dir=runs/realm
    python -m realm_jax.serve --model_dir=runs/qa --port=0

The page answers questions, fills in sentences with [MASK], and shows the
evidence, which users can edit (docs/service.md). The command needs the extra
`serve`. It listens only on this machine unless --host says otherwise, and ends
with SIGTERM or Ctrl-C. If there are several processes, process 0 serves, on its
own devices.
"""

import contextlib
import itertools
import os
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from absl import flags, logging
from etils import epath

from realm_jax import configuration
from realm_jax.configuration import command_line
from realm_jax.console import stop_on_signal
from realm_jax.errors import RealmError

if TYPE_CHECKING:
  from realm_jax.evaluation.config import RunConfig
  from realm_jax.evaluation.run import TrainedRun
  from realm_jax.serving.service import FeedbackConfig, Service
  from realm_jax.snapshots.manifest import Manifest

_HOST = flags.DEFINE_string(
  "host",
  "127.0.0.1",
  "Address to listen on; 0.0.0.0 accepts requests from other machines (see "
  "--token).",
)
_ALLOWED_HOSTS = flags.DEFINE_list(
  "allowed_hosts",
  None,
  "Host names that requests may use, such as gpu7.example.org. The default is "
  "any name if --host accepts other machines, and otherwise localhost.",
)
_TOKEN = flags.DEFINE_string(
  "token",
  None,
  "Secret that every request must send, as Authorization: Bearer TOKEN. The "
  "default is the environment variable REALM_JAX_TOKEN, which other users of "
  "the machine cannot see.",
)
_PORT = flags.DEFINE_integer(
  "port", 8000, "Port to listen on; 0 takes a free one.", 0, 65535
)
_MASKED_MODEL_DIR = flags.DEFINE_string(
  "masked_model_dir",
  None,
  "MODEL_DIR of a pre-training run on the same corpus, which fills in "
  "sentences with [MASK].",
)
_MASKED_GIN_FILE = flags.DEFINE_multi_string(
  "masked_gin_file",
  [],
  "Gin files for the run of --masked_model_dir, which override its recorded "
  "settings.",
)
_EXAMPLE_QUESTIONS = flags.DEFINE_string(
  "example_questions",
  None,
  "JSON Lines file of questions; the page offers the first few as examples.",
)
_MAX_WAITING = flags.DEFINE_integer(
  "max_waiting",
  64,
  "Number of requests that may wait; any others must try again later.",
  lower_bound=1,
)
_FOLLOW = flags.DEFINE_bool(
  "follow",
  False,
  "Load each newer checkpoint or snapshot of the run, and switch to it.",
  # `realm_jax.evaluate` also has a flag of this name.
  allow_override=True,
)
_ALLOW_UPDATES = flags.DEFINE_bool(
  "allow_updates",
  False,
  "Let clients change blocks for all clients, by /update.",
)

_ACCEPT_FEEDBACK = flags.DEFINE_bool(
  "accept_feedback",
  False,
  "Log the results of /retrieve, and accept rewards by /feedback "
  "(docs/agents.md).",
)
_FEEDBACK_DIR = flags.DEFINE_string(
  "feedback_dir",
  None,
  "Folder of the feedback log; by default MODEL_DIR/feedback.",
)
_EXPLORE_TEMPERATURE = flags.DEFINE_float(
  "explore_temperature",
  None,
  "Sample the results of /retrieve from a softmax of the candidates' scores, "
  "divided by this temperature. By default, /retrieve returns the best ones.",
  lower_bound=1e-3,
)
_POOL_SIZE = flags.DEFINE_integer(
  "pool_size", 20, "Number of candidates to log for each query.", 1, 1000
)
_MAX_FEEDBACK_GIB = flags.DEFINE_float(
  "max_feedback_gib", 16.0, "Size at which the feedback log is full."
)

_NUM_EXAMPLES = 4
_POLL_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 300.0


def main(argv: Sequence[str]) -> None:
  """Loads the runs, and serves the page until a signal arrives."""
  del argv
  config = command_line.configured(
    "realm_jax.evaluation.config:RunConfig", recipe=""
  )
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.partitioning.agreement import Agreement

  logging.set_verbosity(logging.WARNING)
  cpu_tuning.keep_freed_memory()
  try:
    Agreement("serve").on_process_0("page", lambda: _serve(config()))
  except KeyboardInterrupt as error:
    # This is while the runs are loaded; later, the server handles the signal.
    raise RealmError("interrupted before the page was served") from error


def _serve(config: "RunConfig") -> None:
  from realm_jax.serving import server

  try:
    # Before the runs load for minutes, because the port may be in use.
    listening = server.listen(_HOST.value, _PORT.value)
  except OSError as error:
    raise RealmError(
      f"--port={_PORT.value} of --host={_HOST.value} cannot be used "
      f"({error.strerror}); stop the process that uses it, or choose another "
      "port: --port=0 takes a free one"
    ) from error
  # Imported after the port is known to be free, because this takes seconds.
  from realm_jax.evaluation.config import RunConfig
  from realm_jax.evaluation.run import TrainedRun
  from realm_jax.inputs.question_files import read_json_lines
  from realm_jax.serving.app import PageApp
  from realm_jax.serving.service import Service

  with contextlib.ExitStack() as stack:
    stack.enter_context(listening)
    examples = []
    if _EXAMPLE_QUESTIONS.value is not None:
      questions = read_json_lines(epath.Path(_EXAMPLE_QUESTIONS.value))
      first = itertools.islice(questions, _NUM_EXAMPLES)
      examples = [question.question for question in first]
    run, masked_run = TrainedRun.load(config), None
    if run.retrieves and not _FOLLOW.value:
      # A run that is followed may still get its first snapshot.
      run.snapshot  # noqa: B018
    if _MASKED_MODEL_DIR.value is not None:
      # The run that fills in sentences, on the same corpus.
      masked = configuration.parsed(
        RunConfig,
        _MASKED_GIN_FILE.value,
        model_dir=_MASKED_MODEL_DIR.value,
        corpus_dir=run.config.corpus_dir,
        modules=flags.FLAGS.modules,
      )
      masked_run = TrainedRun.load(masked.build(RunConfig))
    feedback = stack.enter_context(_feedback(run.model_dir))
    service = Service(run, masked_run, examples=examples, feedback=feedback)
    if _FOLLOW.value:
      arguments = service, run, threading.Event()
      threading.Thread(target=follow, args=arguments, daemon=True).start()
    url = server.url_of(listening)
    token = _TOKEN.value or os.environ.get("REALM_JAX_TOKEN")
    if token:
      # The browser does not send the part after #.
      url += f"/#{urllib.parse.quote(token)}"
    hosts = _ALLOWED_HOSTS.value
    if hosts is None and server.is_loopback(listening.getsockname()[0]):
      hosts = ()
    page = PageApp(
      service,
      hosts=hosts,
      token=token,
      max_waiting=_MAX_WAITING.value,
      allow_updates=_ALLOW_UPDATES.value,
      started=lambda: print(
        f"The page is at {url}  (Ctrl-C ends it)", flush=True
      ),
    )
    # When uvicorn ends, it raises the signal again.
    with stop_on_signal(), contextlib.suppress(KeyboardInterrupt):
      server.server_of(page).run(sockets=[listening])
  if page.is_computing:
    # Otherwise Python would wait for a compilation, or crash during it.
    sys.stdout.flush()
    os._exit(0)


@contextlib.contextmanager
def _feedback(model_dir: epath.Path) -> Iterator["FeedbackConfig | None"]:
  """Opens the feedback log, which only one service may write at a time."""
  from realm_jax.feedback.log import FeedbackLog, require_disk
  from realm_jax.serving.service import FeedbackConfig
  from realm_jax.storage.sole_process import sole_process

  if not _ACCEPT_FEEDBACK.value:
    if _EXPLORE_TEMPERATURE.value is not None:
      raise RealmError(
        "--explore_temperature samples lists to learn from, but without "
        "--accept_feedback nothing logs them; add it"
      )
    yield None
    return
  directory = _FEEDBACK_DIR.value or os.fspath(model_dir / "feedback")
  # Before requesting a lease, because leases also work in buckets.
  require_disk(directory)
  size = int(_MAX_FEEDBACK_GIB.value * 2**30)
  advice = "stop it, or give this one another --feedback_dir"
  with (
    sole_process(directory, "service", advice=advice),
    contextlib.closing(FeedbackLog(directory, max_bytes=size)) as log,
  ):
    yield FeedbackConfig(log, _POOL_SIZE.value, _EXPLORE_TEMPERATURE.value)


def follow(
  service: "Service",
  run: "TrainedRun",
  stop: threading.Event,
  *,
  poll_seconds: float = _POLL_SECONDS,
) -> None:
  """Switches a service to newer checkpoints and snapshots, until `stop` is set.

  If they cannot be loaded, this tries again after growing pauses, or as soon as
  there are others. Meanwhile the service continues with the ones that it has,
  and `/healthz` says why.
  """
  from realm_jax.checkpoints.store import CheckpointStore
  from realm_jax.snapshots.manifest import MissingSnapshotError
  from realm_jax.snapshots.store import SnapshotStore

  config = run.config
  published = config.snapshot or run.model_dir / "snapshots"
  known, failed, pause, retry_at = None, None, poll_seconds, 0.0
  while not stop.wait(poll_seconds):
    now = None
    try:
      with contextlib.closing(CheckpointStore(run.model_dir)) as store:
        now = store.steps(), SnapshotStore(published).versions()
      if now == known or (now == failed and time.monotonic() < retry_at):
        continue
      newer = type(run).load(config)
      if _versions(newer) != _versions(run):
        service.replace(newer)
        run = newer
      known, pause, service.problem = now, poll_seconds, None
    except MissingSnapshotError:
      # The builder is still building it.
      known, service.problem = now, None
    # For example, a checkpoint is removed while it is read, a bucket is
    # unavailable, or the devices lack memory for two runs.
    except Exception as error:
      failed, pause = now, min(2 * pause, _MAX_PAUSE_SECONDS)
      retry_at = time.monotonic() + pause
      service.problem = f"{type(error).__name__}: {error}"
      logging.exception(
        "continuing with checkpoint %d, and trying again in %.0f s",
        *(run.step, pause),
      )


def _versions(run: "TrainedRun") -> tuple[int, "Manifest | None"]:
  """Returns the checkpoint and the snapshot of a run, to compare."""
  return run.step, run.snapshot.manifest if run.retrieves else None


if __name__ == "__main__":
  command_line.run(main, on_devices=True)
