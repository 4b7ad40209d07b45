"""What every test stands on; read before anything imports jax or TensorFlow."""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import importlib.metadata
import os
import signal
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from harness.object_store import ObjectStore
  from realm_jax.evaluation.config import RunConfig
  from realm_jax.evaluation.run import TrainedRun
  from tests import tiny_world
  from tests.command_server import CommandServer

PROJECT_DIR = Path(__file__).resolve().parent.parent
# Public data beside the clone; tests that use it skip where it is absent.
SHARED_DATA_DIR = PROJECT_DIR.parent / "shared" / "data"

# The longest test takes one or two minutes.
_TEST_SECONDS = 900.0
_MANY_DEVICES = "--xla_force_host_platform_device_count=8"
# LLVM's optimisations take most of a compilation, and change no result that
# a tiny model could show. To split a program for threads of the compiler takes
# a seventh more time in total.
_QUICK = "--xla_backend_optimization_level=0"
_QUICK += " --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jax").startswith("0.10."):
  # Emitters of fusions compile half as slowly again; later versions have
  # nothing else.
  _QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ["JAX_PLATFORMS"] = "cpu"
# pytest-xdist's workers start with what this file has set in their parent.
_ONE_DEVICE_XLA_FLAGS = (
  os.environ.get("XLA_FLAGS", "").replace(_MANY_DEVICES, "").strip()
)
if _QUICK not in _ONE_DEVICE_XLA_FLAGS:
  _ONE_DEVICE_XLA_FLAGS = f"{_QUICK} {_ONE_DEVICE_XLA_FLAGS}".strip()
os.environ["XLA_FLAGS"] = f"{_ONE_DEVICE_XLA_FLAGS} {_MANY_DEVICES}"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
# Caches of the tests stay in the clone. Many processes compile the same tiny
# models. To keep small programs, too, takes longer than to compile them.
os.environ["XDG_CACHE_HOME"] = str(PROJECT_DIR / ".cache")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
# The same products on all machines: some CPUs would round their operands.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "float32")

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

from tests import runtime_types  # noqa: E402

# The type checker knows nothing of shapes, so functions that annotate them are
# checked at run time. To check all other functions takes a sixth more time.
jaxtyping.jaxtyped = runtime_types.of_shapes
jaxtyping.install_import_hook(
  [
    module
    for package in ("realm_jax", "experiments")
    for module in runtime_types.modules_with_shapes(PROJECT_DIR / package)
  ],
  f"{runtime_types.__name__}.checked",
)

from realm_jax import supervisor  # noqa: E402
from realm_jax.configuration import compilation_cache  # noqa: E402

compilation_cache.enable()

# A silent broadcast of [b] against [b, k] has hidden many a wrong loss.
jax.config.update("jax_numpy_rank_promotion", "raise")

# The same examples at every run, and no deadline on a machine that is shared.
hypothesis.settings.register_profile(
  "project", derandomize=True, deadline=None, database=None
)
hypothesis.settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Puts slow tests first, so that all workers of a run end together.

  Tests that ask for `shared_data` are skipped where there is none.
  """
  items.sort(key=lambda item: "slow" not in item.keywords)
  if SHARED_DATA_DIR.is_dir():
    return
  absent = pytest.mark.skip(reason="no ../shared/data beside this clone")
  for item in items:
    if "shared_data" in getattr(item, "fixturenames", ()):
      item.add_marker(absent)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
  """Fails a test that waits for ever, where it waits; so for what it closes."""

  def fail(*_: object) -> None:
    raise TimeoutError(f"the test has not ended in {_TEST_SECONDS} s")

  signal.signal(signal.SIGALRM, fail)
  signal.setitimer(signal.ITIMER_REAL, _TEST_SECONDS, 60)
  try:
    return (yield)
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)


def pytest_collection_finish() -> None:
  """Spares what is imported by now from the collections of garbage."""
  gc.collect()
  gc.freeze()


@pytest.fixture(scope="session")
def project_dir() -> Path:
  """The root of the clone: where commands run, and where gin/ is."""
  return PROJECT_DIR


@pytest.fixture(scope="session")
def shared_data() -> Path:
  """The folder of real questions and texts; absent, the test is skipped."""
  return SHARED_DATA_DIR


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> "tiny_world.World":
  """A corpus of a few dozen blocks with questions; nobody changes it."""
  from tests import tiny_world

  return tiny_world.build(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def params(world) -> dict:
  """The parameters of the checkpoint of `model_dir`."""
  params = world.save_checkpoint(world.directory / "run", snapshot=0)
  world.build_snapshot(world.directory / "run")
  return params


@pytest.fixture(scope="session")
def model_dir(world, params) -> Path:
  """A run of open QA: checkpoint 0, with random parameters, and its index."""
  return world.directory / "run"


@pytest.fixture(scope="session")
def run_config(world, model_dir) -> "RunConfig":
  """The retriever and the reader of `model_dir`."""
  from realm_jax.evaluation.config import RunConfig
  from tests import tiny_world

  return RunConfig(
    model_dir=model_dir,
    corpus_dir=world.corpus_dir,
    retriever=tiny_world.RETRIEVER,
    reader=tiny_world.READER,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
  )


@pytest.fixture(scope="session")
def run(run_config) -> "TrainedRun":
  """The run of `model_dir` on one device; both of its heads are random."""
  from realm_jax.evaluation import run

  config = dataclasses.replace(run_config, num_candidates=6)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run, "make_mesh", _mesh_of_one_device)
    return run.TrainedRun.load(config)


def _mesh_of_one_device(**settings) -> jax.sharding.Mesh:
  from realm_jax.partitioning.mesh import make_mesh

  return make_mesh(**{**settings, "devices": jax.devices()[:1]})


@pytest.fixture(scope="session")
def keep_record(world) -> Callable[..., None]:
  """`keep_record(recipe, model_dir, …)` keeps what `realm_jax.train` would.

  With bindings after them, and another CORPUS_DIR or model file.
  """
  from realm_jax import configuration
  from realm_jax.training.config import TrainConfig

  def keep_run(
    recipe: str,
    model_dir: Path,
    *bindings: str,
    corpus_dir: Path = world.corpus_dir,
    model: str = "tests/integration/tiny.gin",
  ) -> None:
    files = [f"gin/runs/{recipe}.gin", model]
    given = ["MODEL_DIR = elsewhere", f"CORPUS_DIR = {corpus_dir}"]
    if recipe == "open_qa":
      given.append("TRAIN_QUESTIONS = train.jsonl")
    found = configuration.parsed(TrainConfig, files, [*given, *bindings])
    configuration.Kept.of(found.build(TrainConfig)).write(model_dir)

  return keep_run


@pytest.fixture
def recorded_run(model_dir, keep_record, tmp_path) -> Callable[[str], Path]:
  """`recorded_run(recipe)` is the same run, with a record of its stage."""

  def make(recipe: str) -> Path:
    run = tmp_path / "runs" / recipe
    run.mkdir(parents=True)
    for name in ("checkpoints", "snapshots"):
      (run / name).symlink_to(model_dir / name)
    keep_record(recipe, run)
    return run

  return make


@pytest.fixture(scope="session")
def _object_store() -> Iterator["ObjectStore"]:
  from harness.object_store import ObjectStore

  with ObjectStore() as store, pytest.MonkeyPatch.context() as patch:
    for name, value in store.environment.items():
      patch.setenv(name, value)
    # What fails in this process is repeated at once, and not a second later.
    patch.setenv("REALM_JAX_REQUEST_TIMEOUT_SECONDS", "1")
    sleep = functools.partial(asyncio.sleep, 0.01)
    patch.setattr(
      "gcsfs.retry.asyncio", types.SimpleNamespace(sleep=lambda _: sleep())
    )
    yield store


@pytest.fixture
def object_store(
  _object_store, tmp_path_factory, monkeypatch
) -> Iterator["ObjectStore"]:
  """An object store without faults, to which `gs://` leads from now on.

  All tests of a process share it, so each has a folder of its own, and a cache.
  """
  cache = str(tmp_path_factory.mktemp("cache"))
  monkeypatch.setenv("REALM_JAX_CACHE_DIR", cache)
  _object_store.inject()
  yield _object_store
  _object_store.inject()


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
  """Runs, index builders and evaluations use one device in this module.

  For tests that are about something else: eight take a quarter more time.
  """
  from realm_jax.evaluation import run
  from realm_jax.snapshots import build
  from realm_jax.training import compiled_steps

  with pytest.MonkeyPatch.context() as patch:
    for module in (run, build, compiled_steps):
      patch.setattr(module, "make_mesh", _mesh_of_one_device)
    yield


@pytest.fixture(scope="session")
def command_environment() -> dict[str, str]:
  """The environment of a command that a test starts as a user would.

  It has one device, where the tests themselves have eight simulated ones, and
  no supervisor restarts it.
  """
  return {
    **os.environ,
    "PYTHONPATH": str(PROJECT_DIR),
    "XLA_FLAGS": _ONE_DEVICE_XLA_FLAGS,
    supervisor.VARIABLE: "of the tests",
  }


@pytest.fixture(scope="session")
def command_server(command_environment) -> Iterator["CommandServer"]:
  """Starts commands without importing their libraries for each."""
  from tests.command_server import CommandServer

  with contextlib.closing(CommandServer(command_environment)) as server:
    yield server


@pytest.fixture(scope="module")
def quick_jobs(command_server) -> Iterator[None]:
  """Jobs of `harness.jobs` are started by the server."""
  from harness import jobs

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jobs, "start_process", command_server.start)
    yield
