"""The layers hold: each folder imports only what it may."""

import pytest

from tests import import_rules as rules

_FOLDERS = sorted(
  {
    file.rpartition("/")[0]
    for package in ("realm_jax", "tasks", "launch")
    for file in rules.sources(package)
  }
  - {"realm_jax"}
)


def _layer(folder: str) -> str:
  """`realm_jax/models/deeper` belongs to `realm_jax/models`."""
  parts = folder.split("/")
  return "/".join(parts[: 2 if parts[0] == "realm_jax" else 1])


@pytest.mark.parametrize("folder", _FOLDERS)
def test_a_folder_imports_only_the_folders_below_it(folder: str):
  layer = _layer(folder)
  assert layer in rules.MAY_IMPORT, (
    f"{layer} is new: say in tests/import_rules.py what it may import"
  )
  allowed = (layer, *(f"realm_jax/{name}" for name in rules.may_import(layer)))
  wrong = [
    f"{found} ({_layer(imported.rpartition('/')[0])})"
    for file in rules.library_sources(folder)
    for found in rules.imports(file)
    if (imported := rules.file_of(found.module)) is not None
    and _layer(imported.rpartition("/")[0]) not in allowed
    and not (imported == rules.CONFIGURATION and file in rules.READ_GIN)
  ]
  assert not wrong, f"{layer} may import {allowed} alone:\n" + "\n".join(wrong)


@pytest.mark.parametrize("folder", sorted(rules.MAY_IMPORT_INSIDE))
def test_a_folder_inside_a_layer_imports_only_the_folders_below_it(folder: str):
  allowed = (folder, *rules.MAY_IMPORT_INSIDE[folder])
  wrong = [
    str(found)
    for file in rules.sources(folder)
    for found in rules.imports(file)
    if (imported := rules.file_of(found.module)) is not None
    and _layer(imported.rpartition("/")[0]) == _layer(folder)
    and not f"{imported}/".startswith(tuple(f"{name}/" for name in allowed))
  ]
  assert not wrong, f"{folder} may import {allowed} alone:\n" + "\n".join(wrong)


def test_commands_in_packages_import_only_the_layers_below_and_configuration():
  wrong = [
    str(found)
    for file in rules.sources("realm_jax")
    if file.endswith("/__main__.py")
    for found in rules.imports(file)
    if (imported := rules.file_of(found.module)) is not None
    and imported != rules.CONFIGURATION
    and (below := _layer(imported.rpartition("/")[0])) != _layer(file[:-12])
    and below.removeprefix("realm_jax/")
    not in rules.may_import(_layer(file[:-12]))
  ]
  assert not wrong, "these point upwards:\n" + "\n".join(wrong)


def test_no_files_import_each_other_in_a_circle():
  assert not (circle := rules.circle()), " → ".join(circle)


def test_no_import_is_relative():
  wrong = [
    str(found)
    for package in ("realm_jax", "tasks", "launch")
    for file in rules.sources(package)
    for found in rules.imports(file)
    if found.module.startswith("a relative module")
  ]
  assert not wrong, "write out the whole path:\n" + "\n".join(wrong)


def test_the_trainer_never_imports_the_sidecar():
  wrong = [
    str(found)
    for file in rules.sources("realm_jax/training")
    for found in rules.imports(file)
    if found.module.startswith("realm_jax.generations.building")
  ]
  assert not wrong, (
    "trainer and sidecar share files and nothing else:\n" + "\n".join(wrong)
  )


def test_the_numeric_core_needs_jax_flax_optax_numpy_and_jaxtyping_alone():
  wrong = [
    str(found)
    for file in rules.core_closure()
    for found in rules.third_party(file)
    if found.library not in rules.CORE_LIBRARIES
  ]
  assert not wrong, (
    "the numeric core runs where only "
    f"{sorted(rules.CORE_LIBRARIES)} are installed:\n" + "\n".join(wrong)
  )


@pytest.mark.parametrize("library", sorted(rules.ONLY_IN))
def test_a_library_that_may_change_is_imported_in_one_file(library: str):
  home = rules.sources(rules.ONLY_IN[library])
  assert any(
    f.library == library for file in home for f in rules.third_party(file)
  )
  wrong = [
    str(found)
    for package in ("realm_jax", "tasks", "launch", "benchmarks")
    for file in rules.sources(package)
    for found in rules.third_party(file)
    if found.library == library
    and file not in (*home, rules.PICTURES.get(library))
    and not file.startswith((f"{rules.PEERS}/", f"{rules.T5X_ENGINE}/"))
  ]
  assert not wrong, (
    f"{library} belongs in {rules.ONLY_IN[library]} alone:\n" + "\n".join(wrong)
  )


def test_nothing_but_its_own_folder_needs_t5x():
  wrong = [
    str(found)
    for package in ("realm_jax", "tasks", "launch", "benchmarks")
    for file in rules.sources(package)
    if not file.startswith(f"{rules.T5X_ENGINE}/")
    for found in (*rules.third_party(file), *rules.imports(file))
    if found.library == "t5x"
    or found.module.startswith(rules.module_of(rules.T5X_ENGINE))
  ]
  assert not wrong, "t5x is absent as a rule:\n" + "\n".join(wrong)


def test_what_runs_other_systems_needs_nothing_of_ours():
  files = rules.sources(rules.PEERS)
  wrong = [
    str(found)
    for file in files
    for found in rules.third_party(file)
    if found.library not in rules.PEER_LIBRARIES
  ] + [
    str(found)
    for file in files
    for found in rules.imports(file)
    if rules.file_of(found.module) not in (None, *files)
  ]
  assert not wrong, (
    f"the environment of {rules.PEERS} has {sorted(rules.PEER_LIBRARIES)} and "
    "nothing of the project's:\n" + "\n".join(wrong)
  )


def test_the_library_knows_no_command_line():
  wrong = [
    str(found)
    for folder in (*_FOLDERS,)
    if folder not in ("launch", "realm_jax/configuration")
    for file in rules.library_sources(folder)
    for found in rules.imports(file)
    if found.module in ("argparse", "absl.app", "absl.flags")
    or found.library == "gin"
  ]
  assert not wrong, (
    "flags and gin are read by the entry points, realm_jax/*.py and the "
    "__main__.py of packages, and passed on as plain arguments:\n"
    + "\n".join(wrong)
  )
