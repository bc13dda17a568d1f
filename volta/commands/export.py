"""Write functions as programs that travel, or as C libraries.

    volta export 'model.py:predict(f32[8,128], i32[8])' --out programs
    volta export 'model.py:predict(f32[batch,128], i32[batch])'
    volta export 'model.py:predict(f32[8,128])' --c --out native
    volta export --c predict.volta
    volta export --stablehlo predict.volta
    volta export --target cpu --target sm_90a predict.volta

A target is a file or module, and a function in it with the shapes of its arguments, in which a symbol stands for
any size; or the name of a
`volta.offline.Function` (or of a list of these), whose arguments may be any pytrees; or a file that
`volta.Exported.save` wrote. volta.load_program reads NAME.volta; with --c there are NAME.h and libNAME.so,
with --stablehlo NAME.mlir, for other compilers. With --target the file holds compiled kernels too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from volta.commands.targets import TargetError, check_folder, check_names, functions_of
from volta.programs.exported import Exported
from volta.programs.exporting import export
from volta.programs.reading import load_program

ENDING = ".volta"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="[NAME=]FILE_OR_MODULE:FUNCTION(SHAPE, …) or FILE")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--c", action="store_true", help="as a C header and a shared library")
    form.add_argument("--stablehlo", action="store_true", help="as text for other compilers")
    form.add_argument(
        "--target", action="append", default=[], dest="machines", metavar="MACHINE",
        help="with kernels for cpu, cpu:x86-64-v3, sm_90a, sm_90a:cubin, …; may be given several times",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the files (default: this one)")


def run(options: argparse.Namespace) -> int:
    programs: list[tuple[str, Exported]] = []
    for target in options.targets:
        if target.endswith(ENDING):
            programs.append((Path(target).stem, _loaded(target)))
        else:
            programs += [(f.name, export(f.function, *f.args)) for f in functions_of(target)]
    check_names([name for name, _ in programs])
    check_folder(options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, program in programs:
        if options.c:
            files = program.save_library(options.out, name)
            print(f"{files.header} {files.library}: {files.workspace_bytes:,} bytes of workspace")
        elif options.stablehlo:
            path = options.out / f"{name}.mlir"
            path.write_text(program.mlir_module() + "\n", encoding="utf-8")
            print(f"{path}: {len(program.program.eqns)} operations")
        else:
            path = options.out / f"{name}{ENDING}"
            program = program.compiled_for(*options.machines) if options.machines else program
            program.save(path)
            made = "".join(f", kernels for {code.target}" for code in program.machine_code)
            print(f"{path}: {len(program.program.eqns)} operations, contract {program.contract}{made}")
    return 0


def _loaded(target: str) -> Exported:
    try:
        return load_program(target)
    except OSError as error:
        raise TargetError(f"{target} cannot be read: {error}") from None
