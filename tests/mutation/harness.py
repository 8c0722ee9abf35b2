"""Plants faults and asks the checkers: which layer kills each one, and does one that survives do any harm?

    python -m tests.mutation.harness --count 120 --seed 0

L1 is the proof on the schedule, L2 the enumeration of the loop program, L3 the code: LLVM's verifier, and the machine
code between guard pages, against the reference. A mutant that no layer kills is held against an oracle that none of
them uses, enumeration or the loop interpreter on other inputs in other orders: where that finds nothing either, the
change was no fault, and it does not count.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np

import polyopt as po
from polyopt import i32, strict
from polyopt.codegen_c import emit
from polyopt.errors import PolyoptError
from polyopt.fuzz import log
from polyopt.loops import lower as loops_lower
from polyopt.loops import verify
from polyopt.loops.instances import enumerate_instances
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import LoopProgram
from polyopt.loops.places import check_places
from polyopt.pipeline import Lowering
from polyopt.poly import legality, storage
from polyopt.poly.dependence import Dependences
from polyopt.poly.storage import StoragePlan
from polyopt.poly.tree import Tree, as_schedule, kinds
from polyopt.runtime import jit
from polyopt.runtime.calls import Call
from polyopt.runtime.kernel import Kernel
from polyopt.target import preset
from polyopt.testing.guarded import guarded, guarded_copy
from tests import brute_force, test_checkers
from tests.mutation import faults

Layer = Literal["L1", "L2", "L3", "harmless", "survived", "none"]
Array = np.ndarray[Any, Any]
CLASSES = ("order", "mark", "dependence", "storage", *faults.PROGRAMS, "llvm")
PATIENCE_S = 10

M, N = po.sizes("M N")
i, j = po.index("i", extent=M), po.index("j", extent=N)


@po.op
def windows(x: i32[M, N], w: i32[3]):
    """Pads, guards, a remainder and a sum, in tiles."""
    across, down = po.tensors("across down")
    r = po.index("r", extent=3)
    across[i, j] += x.pad(0)[i, j + r - 1] * w[r]
    down[i, j] = po.where((i > 0) & (j % 2 == 0), across[i, j] * 3 + x.wrap()[i + 1, j], across.clamp()[i + 1, j])
    return down


@cache
def lowered() -> Mapping[str, Lowering]:
    """The operators, small enough to enumerate."""
    machine = replace(preset("generic"), parallel_ns=1, l1_bytes=256, l2_bytes=512)
    found = {name: make() for name, make in test_checkers.LOWERED.items()}
    found["windows"] = windows.lower(M=5, N=9)
    found["windows_in_tiles"] = windows.lower(M=6, N=19, target=machine)
    found["product_in_tiles"] = test_checkers.product.lower(M=6, N=9, K=4, target=machine)
    return found


@dataclass(slots=True)
class Kills:
    """counts: by class of fault and layer"""

    counts: Counter[tuple[str, Layer]] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)

    def planted(self, name: str) -> int:
        return sum(n for (c, layer), n in self.counts.items() if c == name and layer not in ("harmless", "none"))

    def killed(self, name: str) -> int:
        return self.planted(name) - self.counts[name, "survived"]

    @property
    def totals(self) -> tuple[int, int]:
        """Faults killed, and planted."""
        return sum(map(self.killed, CLASSES)), sum(map(self.planted, CLASSES))

    def table(self) -> str:
        head = f"{'class':12}{'planted':>8}{'L1':>6}{'L2':>6}{'L3':>6}{'survived':>10}{'no fault':>10}"
        lines = [head]
        for name in CLASSES:
            layers = "".join(f"{self.counts[name, layer]:>6}" for layer in ("L1", "L2", "L3"))
            rest = f"{self.counts[name, 'survived']:>10}{self.counts[name, 'harmless']:>10}"
            lines.append(f"{name:12}{self.planted(name):>8}{layers}{rest}")
        killed, planted = self.totals
        return "\n".join([*lines, f"{killed} of {planted} faults killed ({killed / max(planted, 1):.2%})"])


# --- one mutant -------------------------------------------------------------------------------------------------


def plant(operator: str, name: str, random: Random) -> tuple[Layer, str]:
    """Plants a fault of a class; gives the layer that killed it, and the mutant as text."""
    lowering = lowered()[operator]
    if name in faults.TREES:
        tree = faults.TREES[name](lowering.tree, random)
        return ("none", "") if tree is None else (_tree(operator, lowering, tree), str(tree))
    if name == "dependence":
        found = faults.dependence(lowering.dependences, random)
        return ("none", "") if found is None else (_dependences(operator, lowering, found), str(found))
    if name == "storage":
        places = faults.storage(lowering.storage, random)
        return ("none", "") if places is None else (_storage(lowering, places), str(places))
    if name == "llvm":
        text = faults.llvm(lowering.module.text, random)
        return ("none", "") if text is None else (_code(lowering, lowering.loops, text), _difference(lowering, text))
    program = faults.PROGRAMS[name](lowering.loops, random)
    return ("none", "") if program is None else (_program(lowering, program), str(program))


def _is_proved(lowering: Lowering, dependences: Dependences, tree: Tree, places: StoragePlan) -> bool:
    try:
        legality.prove(lowering.scop, dependences, as_schedule(tree, lowering.scop), kinds(tree), places)
    except PolyoptError:
        return False
    return True


def _tree(operator: str, lowering: Lowering, tree: Tree) -> Layer:
    is_broken = brute_force.violation(_needed(operator), tree) is not None
    whole = storage.whole_plan(lowering.scop)
    if not _is_proved(lowering, lowering.dependences, tree, whole):
        return "L1" if is_broken else "harmless"
    return "survived" if is_broken else "harmless"


def _dependences(operator: str, lowering: Lowering, found: Dependences) -> Layer:
    if not _is_proved(lowering, found, lowering.tree, lowering.storage):
        return "L1"
    pairs = {pair for d in found.ordered for pair in test_checkers._related(d.source, d.target, d.relation)}
    return "harmless" if pairs == set(_needed(operator).ordered) else "survived"


def _storage(lowering: Lowering, places: StoragePlan) -> Layer:
    if not _is_proved(lowering, lowering.dependences, lowering.tree, places):
        return "L1"
    program = loops_lower.lower(
        lowering.scop,
        lowering.tree,
        places,
        parameters=lowering.program.parameters,
        results=lowering.program.results,
        strides={},
    )
    return "harmless" if _is_right(lowering, program) else "survived"


def _program(lowering: Lowering, program: LoopProgram) -> Layer:
    try:
        verify.verify(program)
        verify.check_accesses(program)
        instances = list(enumerate_instances(program))
        check_places(instances, lowering.scop, lowering.tree, lowering.storage, {})
        verify.check_instances(instances, {s.name: strict.points(s, {}) for s in lowering.scop.statements})
        for dependence in lowering.dependences.ordered:
            verify.check_order(instances, strict.pairs(dependence, lowering.scop, {}))
    except (PolyoptError, KeyError):
        return "L2"
    try:
        target = lowering.options.target
        text = emit.emit(program, vector_bits=target.vector_bits, numerics=lowering.options.numerics).text
    except (AssertionError, PolyoptError, KeyError, TypeError):
        return "L3"
    return _code(lowering, program, text)


def _code(lowering: Lowering, program: LoopProgram, text: str) -> Layer:
    """The layer that kills a text of machine code: it must be accepted, end, stay in its arrays, and be right."""
    if not _runs_right(lowering, text, seeds=(0, 1)):
        return "L3"
    if program is not lowering.loops:
        return "harmless" if _is_right(lowering, program) else "survived"
    return "harmless" if _runs_right(lowering, text, seeds=(2, 3, 4)) else "survived"


def _difference(lowering: Lowering, text: str) -> str:
    lines = zip(lowering.module.text.splitlines(), text.splitlines(), strict=False)
    return next((f"{one} -> {other}" for one, other in lines if one != other), "a line at the end")


# --- oracles ----------------------------------------------------------------------------------------------------


@cache
def _needed(operator: str) -> brute_force.Pairs:
    return brute_force.pairs(lowered()[operator].scop)


def inputs(lowering: Lowering, seed: int) -> dict[str, Array]:
    """Small whole numbers above zero: sums of them are exact in any order."""
    random = np.random.default_rng(seed)
    found = {}
    for name in lowering.program.parameters:
        tensor = lowering.program.tensor(name)
        shape = tuple(extent.constant for extent in tensor.shape or ())
        found[name] = random.integers(1, 5, shape).astype(tensor.dtype.numpy)
        if "low" in lowering.program.results:  # a matrix that has a root
            found[name] = (found[name] + found[name].T + 20 * np.eye(len(found[name]))).astype(tensor.dtype.numpy)
    return found


def _wanted(lowering: Lowering, given: Mapping[str, Array]) -> dict[str, Array]:
    from polyopt import reference

    return {n: np.asarray(v) for n, v in reference.evaluate(lowering.program, given, {}).items()}


def _agrees(lowering: Lowering, found: Mapping[str, Array], wanted: Mapping[str, Array]) -> bool:
    return all(
        np.allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5, equal_nan=True)
        for name in lowering.program.results
    )


def _results(lowering: Lowering) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    tensors = {name: lowering.program.tensor(name) for name in lowering.program.results}
    return {n: (tuple(e.constant for e in t.shape or ()), t.dtype.numpy) for n, t in tensors.items()}


def _is_right(lowering: Lowering, program: LoopProgram) -> bool:
    """Whether the interpreter gives the reference's results, parallel and vector loops in several orders."""
    for seed in range(3):
        given = inputs(lowering, 10 + seed)
        results = {name: np.zeros(shape, dtype) for name, (shape, dtype) in _results(lowering).items()}
        try:
            interpret(program, {**given, **results}, {}, seed=seed)
        except PolyoptError:
            return False
        if not _agrees(lowering, results, _wanted(lowering, given)):
            return False
    return True


def _runs_right(lowering: Lowering, text: str, *, seeds: tuple[int, ...]) -> bool:
    """Whether LLVM accepts the text, and its code ends, in time, with the reference's results. In a child process."""
    cases = [(inputs(lowering, seed), _wanted(lowering, inputs(lowering, seed))) for seed in seeds]

    def run() -> bool:
        code = jit.compile_object(text, lowering.options.target)
        for given, wanted in cases:
            arrays = {name: guarded_copy(array) for name, array in given.items()}
            results = {name: guarded(shape, np.dtype(dtype)) for name, (shape, dtype) in _results(lowering).items()}
            for result in results.values():
                result.array[...] = 99
            call = Call(Kernel(lowering.info, code), {}, given, {})
            call.run([a.array for a in arrays.values()], [r.array for r in results.values()])
            intact = all(a.is_intact for a in (*arrays.values(), *results.values()))
            kept = all(np.array_equal(arrays[name].array, array) for name, array in given.items())
            if not (intact and kept and _agrees(lowering, {n: r.array for n, r in results.items()}, wanted)):
                return False
        return True

    return in_child(run)


def in_child(run: Callable[[], bool]) -> bool:
    """Whether a function, in a forked child, gives True within `PATIENCE_S` seconds of processor time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            os.dup2(null, 1)
            signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_S)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
            code = 0 if run() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- campaigns --------------------------------------------------------------------------------------------------


def campaign(count: int, seed: int, classes: tuple[str, ...] = CLASSES) -> Kills:
    """Plants `count` faults of each class."""
    kills, random = Kills(), Random(seed)
    operators = sorted(lowered())
    for name in classes:
        tries = 0
        while kills.planted(name) < count and tries < 20 * count:
            tries += 1
            operator = random.choice(operators)
            layer, mutant = plant(operator, name, random)
            kills.counts[name, layer] += 1
            if layer == "survived":
                kills.survivors.append(f"{name} in {operator}:\n{mutant}")
    return kills


def main(arguments: Sequence[str] | None = None) -> None:
    """The command: prints the table and what survived, and adds the totals to a log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=80, help="faults of each class")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="add the totals to this log")
    parser.add_argument("--classes", default=",".join(CLASSES))
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    kills = campaign(options.count, options.seed, tuple(options.classes.split(",")))
    sys.stdout.write(f"seed {options.seed}, {time.monotonic() - begun:.0f} s\n{kills.table()}\n")
    if options.log is not None:
        killed, planted = kills.totals
        counts = {name: kills.planted(name) for name in CLASSES} | {"planted": planted, "killed": killed}
        counts |= {layer: sum(n for (_, by), n in kills.counts.items() if by == layer) for layer in ("L1", "L2", "L3")}
        seeds = ((options.seed, options.seed),)
        log.add(options.log, log.Entry("faults", log.commit(), counts, planted - killed, seeds))
    for survivor in kills.survivors:
        sys.stdout.write(f"\nsurvived: {survivor}\n")


if __name__ == "__main__":
    main()
