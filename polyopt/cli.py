"""The command `polyopt`: schedules, the demo, run times, the cache, and what this machine offers."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from inspect import BoundArguments
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from polyopt import cache, compilation, export, measure, records, text, tuning
from polyopt.api import Op
from polyopt.dsl.text import program_text
from polyopt.errors import ArgumentError, PolyoptError
from polyopt.fuzz import log
from polyopt.fuzz.campaign import Campaign
from polyopt.loading import assignments, load_file, load_operator, text_parameters
from polyopt.loops.ir import LoopProgram
from polyopt.loops.text import loop_dot, loop_html, loop_json, loop_text
from polyopt.measure import Case
from polyopt.runtime import pool
from polyopt.text import FORMATS, Format

if TYPE_CHECKING:
    from polyopt.pipeline import Lowering
    from polyopt.report import Report

STAGES = (
    "program",
    "problem",
    "rewritten",
    "scop",
    "domains",
    "accesses",
    "dependences",
    "fusion",
    "schedule",
    "tiling",
    "mapping",
    "loops",
    "c",
    "llvm",
    "asm",
    "cuda",
    "ptx",
    "report",
)
GPU_STAGES = ("cuda", "ptx")
"""Stages of code for a GPU, which is their target unless another is named."""

EXIT_OK, EXIT_FAILED = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status."""
    options = _parsed(arguments)
    try:
        options.run(options)
    except PolyoptError as error:
        if error.where is not None and Path(error.where.file).resolve() == Path(sys.argv[0]).resolve():
            error.where = None  # the script that calls this function
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        # The reader (`| head`) went away. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return EXIT_OK


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; sizes may stand behind options, too, where argparse does not look for them."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not (hasattr(options, "sizes") and all("=" in word and word[0] != "-" for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.sizes = [*options.sizes, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="polyopt", description="Tensor operators as equations, scheduled by polyopt.")
    parser.add_argument("--version", action="version", version=f"polyopt {_installed('polyopt')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_show_schedule, _add_demo, _add_bench, _add_tune, _add_fuzz, _add_cache, _add_doctor):
        add(commands)
    return parser


def _seconds(word: str) -> float:
    """A time that ends. Raises `argparse.ArgumentTypeError` for anything else."""
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} is no number of seconds")
    return value


Commands = Any  # argparse's type for sub-commands is private


def _add_operator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operator", metavar="FILE.py:OP", help="an operator; package.module:op works too")
    parser.add_argument("sizes", nargs="*", default=(), metavar="NAME=VALUE", help="a size or a compile-time parameter")


# --- show-schedule ----------------------------------------------------------------------------------------------


def _add_show_schedule(commands: Commands) -> None:
    parser = commands.add_parser(
        "show-schedule", help="print a stage of an operator's compilation", description="Without sizes: parametric."
    )
    _add_operator(parser)
    parser.add_argument("--target", help="cpu (the default but for GPU stages), cuda, or a preset such as avx2")
    parser.add_argument("--stage", choices=STAGES, default="loops", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.set_defaults(run=_show_schedule)


def _show_schedule(options: argparse.Namespace) -> None:
    operator = load_operator(options.operator)
    sizes: dict[str, Any] = assignments(options.sizes, text_parameters(operator))
    target = options.target or ("cuda" if options.stage in GPU_STAGES else None)
    if target:
        operator = operator.on(target)
    lowering = operator.lower(**sizes)
    if options.stage == "program":
        print(text.render("program", operator.describe(**sizes), options.format))
    else:
        print(_rendered(lowering, options.stage, options.format))


def _rendered(lowering: Lowering, stage: str, form: Format) -> str:
    if stage == "loops" and form != "text":
        return _rendered_loops(lowering.loops, form)
    return text.render(stage, _stage_text(lowering, stage), form)


def _rendered_loops(loops: LoopProgram, form: Format) -> str:
    """Loops have printers of their own: types, buffers and marks instead of lines."""
    if form == "html":
        return text.html_page(loops.name, loop_html(loops))
    return loop_json(loops) if form == "json" else loop_dot(loops)


def _stage_text(lowering: Lowering, stage: str) -> str:
    from polyopt.poly import text as poly_text  # imports isl

    match stage:
        case "problem":
            return program_text(lowering.program)
        case "rewritten":
            return program_text(lowering.rewritten)
        case "scop":
            return poly_text.scop_text(lowering.scop)
        case "domains":
            return poly_text.domains_text(lowering.scop)
        case "accesses":
            return poly_text.accesses_text(lowering.scop)
        case "schedule":
            return poly_text.schedule_text(lowering.schedule)
        case "loops":
            return loop_text(lowering.loops)
        case "report":
            return str(lowering.report())
        case "dependences" | "fusion" | "tiling" | "mapping":
            return str(getattr(lowering, stage))
        case _:
            return lowering.source(stage)


# --- demo -------------------------------------------------------------------------------------------------------

EXAMPLES = (
    "linear",
    "conv2d",
    "softmax",
    "layernorm",
    "causal_attention",
    "cholesky",
    "heat3d",
    "gauss_seidel",
    "smith_waterman",
    "life",
    "unsharp_mask",
    "lstm",
)
_DEMO_COLUMNS = ("operator", "sizes", "fused", "parallel", "vector", "compile ms", "run ms", "NumPy ms", "checked")
_NUMERIC_COLUMNS = frozenset({"compile ms", "run ms", "NumPy ms"})


def _add_demo(commands: Commands) -> None:
    parser = commands.add_parser("demo", help="compile and check the examples, and print a table")
    parser.add_argument("examples", nargs="*", default=(), metavar="EXAMPLE", help=", ".join(EXAMPLES))
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> None:
    unknown = [name for name in options.examples if name not in EXAMPLES]
    if unknown:
        raise ArgumentError(f"there is no example '{unknown[0]}'", fix=f"one of {', '.join(EXAMPLES)}")
    rows, kept = [], 0
    for name in tqdm(options.examples or EXAMPLES, desc="examples", unit="op", leave=False, disable=None):
        case = measure.case(*load_file(_examples_folder() / f"{name}.py").demo_case())
        rows.append(_demo_row(case))
        kept += case.from_cache
    _print_columns(_DEMO_COLUMNS, rows)
    folder = cache.info().folder
    print("\nfused: statements in loop nests; parallel, vector: the axes that run on threads and in lanes")
    print(f"{kept} of {len(rows)} kernels came from the disk cache{f' in {_from_home(folder)}' if folder else ''}.")
    wrong = [row[0] for row in rows if row[-1] != "ok"]
    if wrong:
        print(f"wrong results: {', '.join(wrong)}", file=sys.stderr)
        raise SystemExit(EXIT_FAILED)


def _from_home(folder: Path) -> str:
    """The folder as a shell would take it, `~/.cache/polyopt`."""
    try:
        return str(Path("~") / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # elsewhere; no home folder
        return str(folder)


def _demo_row(case: Case) -> tuple[str, ...]:
    return (
        case.operator,
        ", ".join("x".join(map(str, shape)) for shape in case.shapes),
        f"{case.statements} in {case.nests}",
        " ".join(case.parallel) or "-",
        " ".join(case.vector) or "-",
        f"{1e3 * case.compile_s:.0f}",
        f"{1e3 * case.run_s:.3g}",
        f"{1e3 * case.numpy_s:.3g}",
        f"differs from {', '.join(case.wrong)}" if case.wrong else "ok",
    )


def _examples_folder() -> Path:
    """Beside the package in a checkout, inside it where it was installed from a wheel."""
    package = Path(__file__).resolve().parent
    folder = package / "_examples"
    return folder if folder.is_dir() else package.parent / "examples"


# --- bench ------------------------------------------------------------------------------------------------------


def _add_bench(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="the run time of an operator on arrays of random numbers")
    _add_operator(parser)
    parser.add_argument("--target", help="cpu (the default), cuda, or a preset such as avx2")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> None:
    operator = load_operator(options.operator)
    if options.target:
        operator = operator.on(options.target)
    sizes: dict[str, Any] = assignments(options.sizes, text_parameters(operator))
    lowering = operator.lower(**sizes)
    arguments = measure.random_arguments(operator, lowering.program, sizes)
    start = time.perf_counter()
    call = BoundArguments(operator.signature.python, OrderedDict(arguments))
    operator.compile(*call.args, **call.kwargs)
    compile_s = time.perf_counter() - start
    operator(*call.args, **call.kwargs)
    run_s = measure.median_s(lambda: operator(*call.args, **call.kwargs))
    _print_table(_bench_rows(lowering.report(), compile_s, run_s))


def _bench_rows(report: Report, compile_s: float, run_s: float) -> Iterator[tuple[str, str]]:
    yield "operator", report.name
    yield "compile", f"{1e3 * compile_s:.3g} ms"
    yield "run", f"{1e3 * run_s:.3g} ms, the median"
    if report.assumed:
        yield "operations", f"not counted: {', '.join(report.assumed)} stay open"
    else:
        yield "operations", f"{report.flops:.3g}, {report.flops / run_s / 1e9:.3g} G a second"
        yield "bytes", f"{report.bytes:.3g}, {report.bytes / run_s / 1e9:.3g} G a second"
    yield "threads", str(pool.num_threads())


# --- tune -------------------------------------------------------------------------------------------------------


def _add_tune(commands: Commands) -> None:
    parser = commands.add_parser("tune", help="measure other plans for an operator, and remember the best")
    parser.add_argument("operator", nargs="?", metavar="FILE.py:OP", help="an operator; package.module:op works too")
    parser.add_argument("sizes", nargs="*", default=(), metavar="NAME=VALUE", help="a size or a compile-time parameter")
    parser.add_argument("--seconds", type=_seconds, default=tuning.SECONDS, metavar="N", help="how long; default: 30")
    parser.add_argument("--export", type=Path, metavar="F", help="write what was found so far to a file")
    parser.add_argument("--import", type=Path, metavar="F", dest="taken", help="take what an export wrote")
    parser.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> None:
    if options.taken is not None:
        found = records.read_file(options.taken)
        if not records.add(found):
            raise ArgumentError("the records cannot be kept", why="there is no cache folder that can be written")
        print(f"took {len(found)} records; a compile that uses one proves its schedule anew")
    if options.operator is not None:
        operator = load_operator(options.operator)
        _tune_operator(operator, assignments(options.sizes, text_parameters(operator)), options.seconds)
    if options.export is not None:
        print(f"wrote {records.write_file(options.export)} records to {options.export}")
    if options.taken is options.export is options.operator is None:
        raise ArgumentError(
            "there is nothing to tune", fix="polyopt tune FILE.py:OP NAME=VALUE, --export F or --import F"
        )


def _tune_operator(operator: Op, values: Mapping[str, Any], seconds: float) -> None:
    problem = operator.problem(**values)
    sizes = {name: value for name, value in values.items() if isinstance(value, int)}
    start = time.monotonic()
    with tqdm(total=round(seconds), desc="tuning", unit="s", leave=False, disable=None) as bar:

        def show(line: str) -> None:
            bar.update(min(round(time.monotonic() - start), bar.total) - bar.n)
            tqdm.write(line, file=sys.stdout)

        outcome = tuning.tune(problem, sizes, seconds=seconds, progress=show)
    failed = sum(bool(trial.failure) for trial in outcome.trials)
    print(f"{len(outcome.trials)} plans measured{f', {failed} of them failed' * bool(failed)}")
    print(outcome.record(problem))


# --- fuzz -------------------------------------------------------------------------------------------------------


def _add_fuzz(commands: Commands) -> None:
    parser = commands.add_parser("fuzz", help="hold random operators against the reference, without tolerance")
    parser.add_argument("--seconds", type=_seconds, default=60.0, metavar="N", help="how long; default: 60")
    parser.add_argument("--seed", type=int, metavar="S", help="the first seed; by default one drawn from the clock")
    parser.add_argument("--log", type=Path, metavar="FILE", help="add the totals to this log")
    parser.set_defaults(run=_fuzz)


def _fuzz(options: argparse.Namespace) -> None:
    if options.log is not None:
        _check_log(options.log)
    seed = options.seed if options.seed is not None else time.time_ns() % (1 << 40)
    campaign, failures = Campaign(seed), 0
    print(f"from seed {seed}")
    for finding in tqdm(campaign.run(options.seconds), desc="operators", unit="op", leave=False, disable=None):
        if finding is not None:
            failures += 1
            tqdm.write(f"\n{finding}", file=sys.stdout)
    rejected = ", ".join(f"{kind} {count}" for kind, count in campaign.rejections.most_common())
    print(f"seeds {seed} to {seed + campaign.total - 1}: {campaign.counts['agrees']} of {campaign.total} agree")
    print(f"kernels under the compiler's own plans and drawn ones: {campaign.kernels}")
    print(f"rejected by the kernel and the reference: {campaign.counts['rejected']}{f' ({rejected})' * bool(rejected)}")
    if options.log is not None and campaign.total:
        counts = {"kernels": campaign.kernels, "programs": campaign.total}
        log.add(
            options.log, log.Entry("programs", log.commit(), counts, failures, ((seed, seed + campaign.total - 1),))
        )
    if failures:
        print(f"failures: {failures}", file=sys.stderr)
        raise SystemExit(EXIT_FAILED)


def _check_log(path: Path) -> None:
    """Whether totals can be added to a log, asked before they are found. Raises `ArgumentError`."""
    try:
        log.read(path)
        path.open("a").close()
    except OSError as error:
        raise ArgumentError(
            f"the log {path} cannot be written",
            why=str(error.strerror),
            fix="give a file in a folder that exists and can be written to",
            facts={"log": str(path)},
        ) from None
    except (ValueError, TypeError, KeyError):
        raise ArgumentError(
            f"{path} is no log of `polyopt fuzz`",
            fix="give another file, or a name that is not taken",
            facts={"log": str(path)},
        ) from None


# --- cache ------------------------------------------------------------------------------------------------------


def _add_cache(commands: Commands) -> None:
    parser = commands.add_parser("cache", help="look at the compiled kernels on disk, or remove them")
    actions = parser.add_subparsers(required=True, metavar="info|clear")
    actions.add_parser("info", help="where the cache is and what it holds").set_defaults(run=_cache_info)
    actions.add_parser("clear", help="remove all kernels").set_defaults(run=_cache_clear)


def _cache_info(_: argparse.Namespace) -> None:
    info = cache.info()
    _print_table(_cache_rows(info))


def _cache_rows(info: cache.CacheInfo) -> Iterator[tuple[str, str]]:
    yield "folder", str(info.folder) if info.folder else "none"
    if info.problem:
        yield "not used", info.problem
    yield "kernels", str(info.entries)
    yield "size", f"{_size(info.total_bytes)} of at most {_size(info.limit_bytes)}"


def _cache_clear(_: argparse.Namespace) -> None:
    removed = cache.clear()
    print(f"removed {removed} kernel{'s' * (removed != 1)}")


# --- doctor -----------------------------------------------------------------------------------------------------


def _add_doctor(commands: Commands) -> None:
    parser = commands.add_parser("doctor", help="what this machine offers")
    parser.add_argument("--calibrate", action="store_true", help="measure its rates, for the cost models; some seconds")
    parser.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> None:
    if options.calibrate:
        compilation.calibrate()
    for title, rows in (("versions", _version_rows()), ("processor", _processor_rows()), ("tools", _tool_rows())):
        print(f"{title}:")
        _print_table(rows, indent="  ")


def _version_rows() -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_version()} on {platform.platform()}"
    for name in ("polyopt", "numpy", "islpy", "llvmlite", "sympy", "ml_dtypes", "torch", "pycuda"):
        yield name, _installed(name)


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor_rows() -> Iterator[tuple[str, str]]:
    host = compilation.host()
    yield "name", f"{host.cpu}, {host.triple}"
    yield "vectors", f"{host.name}: {host.vector_registers} registers of {host.vector_bits} bits"
    yield "caches", f"L1 {_size(host.l1_bytes)}, L2 {_size(host.l2_bytes)}, L3 {_size(host.l3_bytes)}"
    rates = host.rates
    if rates is None:
        yield "rates", "not measured: polyopt doctor --calibrate"
    else:
        yield (
            "operations",
            (
                f"{rates.fma_f32:.4g} G a second in f32, {rates.fma_f64:.4g} f64, {rates.fma_bf16:.4g} bf16, "
                f"{rates.fma_i8:.4g} i8; one core"
            ),
        )
        yield (
            "bandwidth",
            (
                f"L1 {rates.l1:.3g}, L2 {rates.l2:.3g}, L3 {rates.l3:.3g}, memory {rates.dram:.3g} GB/s; one core; "
                f"{rates.cores} cores {rates.dram_all:.3g}"
            ),
        )
        yield "dispatch", f"{rates.dispatch_us:.3g} microseconds to wake the threads"
    yield "threads", f"{pool.num_threads()} used of {pool.usable_cores()} usable cores"


def _tool_rows() -> Iterator[tuple[str, str]]:
    yield "C compiler", export.c_compiler() or "none: lowered.save(...) writes an object file instead of a library"
    yield from _cuda_rows()
    yield from ((f"cache {name}", value) for name, value in _cache_rows(cache.info()))
    yield from _changed_settings().items()


def _cuda_rows() -> Iterator[tuple[str, str]]:
    """What runs CUDA kernels, and what compiles, emulates and shows them without a GPU."""
    from polyopt.runtime.cuda import compilers, devices, sass
    from polyopt.runtime.emulator import build

    lack = devices.missing()
    if lack is None:
        limits = devices.driver().limits
        yield "CUDA", f"{limits.name}, {limits.arch}, {limits.sms} multiprocessors, through pycuda"
    else:
        yield "CUDA", f"{lack.what}: {lack.fix}"
    yield "CUDA compiler", compilers.version() or "none: pip install 'nvidia-cuda-nvrtc>=13.0,<13.1'"
    yield "CUDA emulator", f"with {build.compiler()}" if build.compiler() else "none: install g++"
    yield "disassembler", sass.disassembler() or "none: pip install nvidia-cuda-nvdisasm"


def _changed_settings() -> Mapping[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("POLYOPT_")}


# --- printing ---------------------------------------------------------------------------------------------------


def _print_table(rows: Iterator[tuple[str, str]], indent: str = "") -> None:
    found = list(rows)
    width = max(len(name) for name, _ in found)
    for name, value in found:
        print(f"{indent}{name:<{width}}  {value}")


def _print_columns(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table: numbers to the right, names to the left."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = (
            f"{cell:>{width}}" if title in _NUMERIC_COLUMNS else f"{cell:<{width}}"
            for title, cell, width in zip(titles, row, widths, strict=True)
        )
        print("  ".join(cells).rstrip())


def _size(count: int) -> str:
    """A number of bytes for the reader."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}"
