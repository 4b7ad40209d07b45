"""Bytes between a chip's memory and its cores, from the compiled module.

Each scheduled instruction reads its operands and writes its result, where these
lie in memory: the compiler keeps some arrays in the cores' own (VMEM). Of an
operand that a fusion only slices or gathers from, the slices are read.
"""

from realm_jax.precompilation.hlo import Computation, Instruction, Module

# These only name arrays, or run computations that are counted themselves.
_FREE = frozenset(
  "parameter constant tuple get-tuple-element bitcast after-all partition-id "
  "replica-id while conditional call opt-barrier domain".split()
)
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_MEMORY = 0
# Pallas kernels, whose grids say what they copy.
_KERNEL = "tpu_custom_call"


def memory_traffic(module: Module) -> int:
  """Returns the bytes that are read and written, loops times their trips.

  Those of Pallas kernels are not among them.
  """
  return sum(
    _bytes(module, computation, instruction) * runs
    for computation, instruction, runs in module.scheduled()
  )


def _bytes(
  module: Module, computation: Computation, instruction: Instruction
) -> int:
  operation = instruction.operation
  if operation in _FREE or operation.endswith("-done"):
    return 0
  if f'custom_call_target="{_KERNEL}"' in instruction.attributes:
    return 0
  operands = [
    computation[name] for name in instruction.operands if name in computation
  ]
  if operation.removesuffix("-start") in _SLICES:
    # A slice that is copied meanwhile comes after the array itself.
    part = instruction.arrays[-2 if operation.endswith("-start") else 0]
    is_read = any(map(_in_memory, operands[:1]))
    return part.size_bytes * (is_read + (part.space == _MEMORY))
  if operation.endswith("-start"):
    # The result names the operands, too.
    return _in_memory(instruction)
  if operation == "dynamic-update-slice":
    return 2 * sum(map(_in_memory, operands[1:2]))
  if operation == "fusion":
    return _fusion_bytes(module, instruction, operands)
  return _in_memory(instruction) + sum(map(_in_memory, operands))


def _fusion_bytes(
  module: Module, instruction: Instruction, operands: list[Instruction]
) -> int:
  (body,) = (
    module.computations[name]
    for role, name in instruction.called
    if role == "calls"
  )
  parameters = [i for i in body.values() if i.operation == "parameter"]
  parameters.sort(key=lambda i: i.parameter_number)
  written = _in_memory(instruction)
  read = 0
  for operand, parameter in zip(operands, parameters, strict=False):
    whole = _in_memory(operand)
    users = [i for i in body.values() if parameter.name in i.operands]
    in_place = [
      user
      for user in users
      if user.operation == "dynamic-update-slice"
      and user.operands[0] == parameter.name
    ]
    if users and len(in_place) == len(users) and whole:
      # Only the updated slice of this array is written.
      update = sum(_size(body[user.operands[1]]) for user in in_place)
      written += update - min(written, whole)
    elif users and all(user.operation in _SLICES for user in users):
      read += min(whole, sum(map(_size, users)))
    else:
      read += whole
  return read + written


def _in_memory(instruction: Instruction) -> int:
  return sum(a.size_bytes for a in instruction.arrays if a.space == _MEMORY)


def _size(instruction: Instruction) -> int:
  return sum(array.size_bytes for array in instruction.arrays)
