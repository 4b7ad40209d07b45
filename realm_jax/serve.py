"""Opens a page on a trained run: `python -m realm_jax.serve --model_dir=…`.

    python -m realm_jax.serve --model_dir=runs/qa --example_questions=dev.jsonl
    python -m realm_jax.serve --model_dir=runs/qa --masked_model_dir=runs/realm
    python -m realm_jax.serve --model_dir=runs/qa --port=0

It answers questions and fills in sentences with [MASK], shows the evidence, and
lets one edit it (docs/service.md). It needs the extra `serve`, listens on
this machine alone unless --host says otherwise, and ends with SIGTERM or
Ctrl-C. Of several processes, process 0 serves on its own devices.
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
  from realm_jax.evaluation.run import RunConfig, TrainedRun
  from realm_jax.serving.service import FeedbackConfig, Service

_HOST = flags.DEFINE_string(
  "host",
  "127.0.0.1",
  "Address to listen on; 0.0.0.0 lets other machines ask: see --token.",
)
_ALLOWED_HOSTS = flags.DEFINE_list(
  "allowed_hosts",
  None,
  "Names under which other machines may ask, such as gpu7.example.org. By "
  "default any name where --host lets others in, and otherwise localhost.",
)
_TOKEN = flags.DEFINE_string(
  "token",
  None,
  "Secret that every request must carry, as Authorization: Bearer TOKEN. By "
  "default the environment variable REALM_JAX_TOKEN, which other users of the "
  "machine cannot list.",
)
_PORT = flags.DEFINE_integer(
  "port", 8000, "Port to listen on; 0 takes a free one.", 0, 65535
)
_MASKED_MODEL_DIR = flags.DEFINE_string(
  "masked_model_dir",
  None,
  "MODEL_DIR of a run of pre-training over the same corpus, which fills in "
  "sentences with [MASK].",
)
_MASKED_GIN_FILE = flags.DEFINE_multi_string(
  "masked_gin_file",
  [],
  "Gin files of that run, which override what it has recorded.",
)
_EXAMPLE_QUESTIONS = flags.DEFINE_string(
  "example_questions",
  None,
  "JSON Lines of questions; the page offers the first ones.",
)
_MAX_WAITING = flags.DEFINE_integer(
  "max_waiting",
  64,
  "Number of requests that may wait; others are told to try again.",
  lower_bound=1,
)
_FOLLOW = flags.DEFINE_bool(
  "follow",
  False,
  "Load each newer checkpoint or snapshot of the run, and answer with it.",
  # `realm_jax.evaluate` also has one of this name.
  allow_override=True,
)
_ALLOW_UPDATES = flags.DEFINE_bool(
  "allow_updates",
  False,
  "Let clients change blocks, by /update, for all who ask.",
)

_ACCEPT_FEEDBACK = flags.DEFINE_bool(
  "accept_feedback",
  False,
  "Log what /retrieve finds, and take rewards by /feedback (docs/agents.md).",
)
_FEEDBACK_DIR = flags.DEFINE_string(
  "feedback_dir", None, "Folder of that log; by default MODEL_DIR/feedback."
)
_EXPLORE_TEMPERATURE = flags.DEFINE_float(
  "explore_temperature",
  None,
  "Draw what /retrieve shows from a softmax of the candidates' scores divided "
  "by this. By default the best are shown.",
  lower_bound=1e-3,
)
_POOL_SIZE = flags.DEFINE_integer(
  "pool_size", 20, "Number of candidates of a query that are logged.", 1, 1000
)
_MAX_FEEDBACK_GIB = flags.DEFINE_float(
  "max_feedback_gib", 16.0, "Size of the log beyond which it takes no more."
)

_NUM_EXAMPLES = 4
_POLL_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 300.0


def main(argv: Sequence[str]) -> None:
  """Loads the runs, and serves the page until a signal ends it."""
  del argv
  config = command_line.configured(
    "realm_jax.evaluation.run:RunConfig", recipe=""
  )
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.partitioning.agreement import Agreement

  logging.set_verbosity(logging.WARNING)
  cpu_tuning.keep_freed_memory()
  try:
    Agreement("serve").on_process_0("page", lambda: _serve(config()))
  except KeyboardInterrupt as error:
    # While the runs were loaded; later the server takes the signal.
    raise RealmError("ended before the page was served") from error


def _serve(config: "RunConfig") -> None:
  from realm_jax.serving import app

  try:
    # Before minutes of loading: the port may be in use.
    listening = app.listen(_HOST.value, _PORT.value)
  except OSError as error:
    raise RealmError(
      f"--port={_PORT.value} of --host={_HOST.value} cannot be used "
      f"({error.strerror}); end what uses it, or give another: --port=0 takes "
      "a free one"
    ) from error
  # They take seconds, which a port in use does not wait for.
  from realm_jax.evaluation.run import RunConfig, TrainedRun
  from realm_jax.inputs.question_files import read_json_lines
  from realm_jax.serving.service import Service

  with contextlib.ExitStack() as stack:
    stack.enter_context(listening)
    examples = []
    if _EXAMPLE_QUESTIONS.value is not None:
      questions = read_json_lines(epath.Path(_EXAMPLE_QUESTIONS.value))
      first = itertools.islice(questions, _NUM_EXAMPLES)
      examples = [question.question for question in first]
    run, masked_run = TrainedRun.load(config), None
    if _MASKED_MODEL_DIR.value is not None:
      # The run that fills in sentences, over the same corpus.
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
      given = service, run, threading.Event()
      threading.Thread(target=follow, args=given, daemon=True).start()
    url = app.url_of(listening)
    token = _TOKEN.value or os.environ.get("REALM_JAX_TOKEN")
    if token:
      # What follows the # stays in the browser.
      url += f"/#{urllib.parse.quote(token)}"
    hosts = _ALLOWED_HOSTS.value
    if hosts is None and app.is_loopback(listening.getsockname()[0]):
      hosts = ()
    page = app.PageApp(
      service,
      hosts=hosts,
      token=token,
      max_waiting=_MAX_WAITING.value,
      allow_updates=_ALLOW_UPDATES.value,
      started=lambda: print(
        f"The page is at {url}  (Ctrl-C ends it)", flush=True
      ),
    )
    # After its end uvicorn raises the signal again.
    with stop_on_signal(), contextlib.suppress(KeyboardInterrupt):
      app.server_of(page).run(sockets=[listening])
  if page.is_computing:
    # The interpreter would wait for a compilation, or end in its midst.
    sys.stdout.flush()
    os._exit(0)


@contextlib.contextmanager
def _feedback(model_dir: epath.Path) -> Iterator["FeedbackConfig | None"]:
  """Opens the log of feedback, which one service at a time writes."""
  from realm_jax.feedback.log import FeedbackLog, require_disk
  from realm_jax.serving.service import FeedbackConfig
  from realm_jax.storage.sole_process import sole_process

  if not _ACCEPT_FEEDBACK.value:
    if _EXPLORE_TEMPERATURE.value is not None:
      raise RealmError(
        "--explore_temperature draws lists to learn from, which nothing logs; "
        "add --accept_feedback"
      )
    yield None
    return
  directory = _FEEDBACK_DIR.value or os.fspath(model_dir / "feedback")
  # Before a lease is asked for.
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
  """Answers with newer checkpoints and snapshots of a run, until a stop.

  What cannot be loaded is tried again after longer and longer pauses, or as
  soon as there is something else. Meanwhile the service goes on as it is, and
  says why in `/healthz`.
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
      newer, before = type(run).load(config), (run.step, run.snapshot.manifest)
      if (newer.step, newer.snapshot.manifest) != before:
        service.replace(newer)
        run = newer
      known, pause, service.problem = now, poll_seconds, None
    except MissingSnapshotError:
      # The builder is at work on it.
      known, service.problem = now, None
    # A checkpoint may be removed while it is read, a bucket be away, or the
    # devices have no room for two runs.
    except Exception as error:
      failed, pause = now, min(2 * pause, _MAX_PAUSE_SECONDS)
      retry_at = time.monotonic() + pause
      service.problem = f"{type(error).__name__}: {error}"
      logging.exception(
        "going on with checkpoint %d, and trying again in %.0f s",
        *(run.step, pause),
      )


if __name__ == "__main__":
  command_line.run(main, on_devices=True)
