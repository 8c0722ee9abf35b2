"""From LLVM IR text to object code, and from object code to code that can be called.

The only module that drives LLVM, one thread at a time and never while the process forks. Code generators emit explicit
vectors and register blocks, so the IR passes run here are few and cheap: inlining of what asks for it, and promotion of
stack slots to values.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from polyopt.errors import CompileError
from polyopt.room import with_room
from polyopt.runtime import objects
from polyopt.runtime.objects import LoadedCode
from polyopt.target import Target, host

_LOG = logging.getLogger("polyopt.runtime.jit")

DEFAULT_OPTIMISATION = 2
_names = itertools.count()

_ARRAY = re.compile(r" *(%\S+) = alloca \[")
_PART = re.compile(r" *(%\S+) = getelementptr .*?, ptr (%[^\s,]+),")
_VECTOR_STORE = re.compile(r" *store <.*, ptr (%[^\s,]+),")


def compile_object(ir_text: str, target: Target, *, opt: int = DEFAULT_OPTIMISATION) -> bytes:
    """Relocatable object code for `target`.

    opt: effort of LLVM's instruction selection and register allocation, 0 to 3
    Raises `CompileError` where LLVM refuses the text; the full LLVM message is in `facts["llvm"]`.
    """

    def emitted() -> bytes:
        machine = _target_machine(target, opt)
        return bytes(machine.emit_object(_prepared(ir_text, machine, opt)))

    return with_room(emitted)


def assembly(ir_text: str, target: Target, *, opt: int = DEFAULT_OPTIMISATION) -> str:
    """The assembly text of what `compile_object` makes. Raises `CompileError` as it does."""

    def emitted() -> str:
        machine = _target_machine(target, opt)
        return str(machine.emit_assembly(_prepared(ir_text, machine, opt)))

    return with_room(emitted)


def load_object(object_code: bytes, symbols: Iterable[str], imports: Mapping[str, int] | None = None) -> LoadedCode:
    """Link object code into this process and look up `symbols`; nothing is compiled.

    imports: addresses of symbols that the object names and the process does not export
    Raises `CompileError` where a symbol is missing or the object is none for this machine.
    """
    wanted = tuple(symbols)
    found = objects.load(object_code, wanted, imports or {})
    if found is not None:
        return found
    return with_room(lambda: _link_with_llvm(object_code, wanted, imports or {}))


def _link_with_llvm(object_code: bytes, wanted: tuple[str, ...], imports: Mapping[str, int]) -> LoadedCode:
    builder = _binding().JITLibraryBuilder().add_object_img(object_code).add_current_process()
    for name, address in imports.items():
        builder = builder.import_symbol(name, address)
    for name in wanted:
        builder = builder.export_symbol(name)
    try:
        tracker = builder.link(_linker(), f"polyopt{next(_names)}")
    except RuntimeError as error:
        raise _compile_error("compiled code could not be loaded", error) from None
    return LoadedCode({name: tracker[name] for name in wanted}, tracker)


def version() -> str:
    """LLVM's version with llvmlite's, as cache keys hold them."""

    def found() -> str:
        import llvmlite

        return f"llvmlite {llvmlite.__version__}, LLVM {'.'.join(map(str, _binding().llvm_version_info))}"

    return with_room(found)


@cache
def _binding() -> Any:
    """llvmlite.binding with the native target ready. Imported at the first compile or load: it takes 50 ms."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()  # without it LLVM aborts the process on inline assembly
    return binding


@cache
def _linker() -> Any:
    """Links by JITLink, which places an object in one block of memory, so that 32-bit distances suffice inside it."""
    machine = _target_machine(host(), DEFAULT_OPTIMISATION)
    return _binding().create_lljit_compiler(machine, use_jit_link=True, suppress_errors=True)


def _target_machine(target: Target, opt: int) -> Any:
    binding = _binding()
    if target.triple.partition("-")[0] != binding.get_process_triple().partition("-")[0]:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
    try:
        description = binding.Target.from_triple(target.triple)
    except RuntimeError as error:
        raise _compile_error(f"LLVM has no code generator for {target.triple} here", error) from None
    return description.create_target_machine(
        cpu=target.cpu, features=target.features, opt=opt, reloc="pic", codemodel="small"
    )


def _prepared(ir_text: str, machine: Any, opt: int) -> Any:
    """The module after the IR passes.

    It is verified once more, for a pass may break it: SROA, up to LLVM 22, joins vectors that fill an array on the
    stack at the one that is stored last by place and not by time (llvm/llvm-project, pull request 189680). Such arrays
    then stay in memory. Raises `CompileError` where that does not help.
    """
    module = _verified(ir_text, machine)
    _run_passes(module, machine, opt)
    broken = _complaint(module)
    if not broken:
        return module
    _LOG.warning("LLVM's passes broke a kernel; its arrays on the stack stay in memory (%s)", broken.splitlines()[0])
    module = _verified(_kept_in_memory(ir_text), machine)
    _run_passes(module, machine, opt)
    broken = _complaint(module)
    if broken:
        raise _compile_error("LLVM's passes break the generated code", RuntimeError(broken), ir_text)
    return module


def _complaint(module: Any) -> str:
    """What is wrong with a module; empty if nothing is."""
    try:
        module.verify()
    except RuntimeError as error:
        return str(error)
    return ""


def _kept_in_memory(ir_text: str) -> str:
    """The text with volatile stores of vectors to arrays on the stack, which SROA leaves alone."""
    arrays: set[str] = set()
    lines = []
    for line in ir_text.splitlines():
        made, pointer = _ARRAY.match(line), _PART.match(line)
        if made:
            arrays.add(made[1])
        elif pointer and pointer[2] in arrays:
            arrays.add(pointer[1])
        stored = _VECTOR_STORE.match(line)
        lines.append(line.replace("store <", "store volatile <", 1) if stored and stored[1] in arrays else line)
    return "\n".join(lines)


def _verified(ir_text: str, machine: Any) -> Any:
    """The parsed module, in an LLVM context of its own.

    Verified before anything else, because LLVM aborts the process on broken input later.
    """
    try:
        module = _binding().parse_assembly(ir_text, _binding().create_context())
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise _compile_error("the generated code is not valid LLVM IR", error, ir_text) from None
    return module


def _run_passes(module: Any, machine: Any, opt: int) -> None:
    if opt == 0:
        return
    binding = _binding()
    options = binding.create_pipeline_tuning_options(speed_level=opt)
    builder = binding.create_pass_builder(machine, options)
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.run(module, builder)


def _compile_error(what: str, error: RuntimeError, ir_text: str = "") -> CompileError:
    return CompileError(
        what,
        why="LLVM's own words are in the error's facts['llvm']" if str(error) else "",
        fix="report it with the operator's definition, the sizes, and `polyopt doctor`",
        facts={"llvm": str(error), "ir": ir_text},
    )
