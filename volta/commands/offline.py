"""Compile functions to GPU kernels, as PTX and cubin files with a manifest, where there is no GPU and no driver.

    volta offline 'model.py:predict(f32[8,128], i32[8])' --capability 8.0 9.0 --out kernels
    volta offline --cubin 'a=model.py:step(f32[64])' 'package.module:loss(f32[3], bf16[])' model.py:FUNCTIONS

A target is a file or module, and a function in it with the shapes of its arguments; or the name of a
`volta.offline.Function` (or of a list of these), whose arguments may be any pytrees. PTX needs nothing but Volta;
cubins need NVIDIA's nvJitLink: pip install 'volta[offline]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from volta import offline
from volta.commands.targets import FilesError, TargetError, check_folder, check_names, functions_of
from volta.core.policy import DeterminismLevel
from volta.numba_cuda.codegen import ptx
from volta.runtime.context import execution_context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="[NAME=]FILE_OR_MODULE:FUNCTION(SHAPE, …)")
    parser.add_argument(
        "--capability", nargs="+", default=list(offline.CAPABILITIES), metavar="X.Y",
        help=f"of {', '.join(ptx.CAPABILITIES)} (default: {' '.join(offline.CAPABILITIES)})",
    )  # fmt: skip
    levels = [x.value for x in DeterminismLevel]
    parser.add_argument("--level", choices=levels, default="strict", help="of determinism (default: strict)")
    parser.add_argument("--cubin", action="store_true", help="machine code as well, by NVIDIA's nvJitLink")
    parser.add_argument("--out", type=Path, default=Path("kernels"), help="folder for the files (default: kernels)")


def run(options: argparse.Namespace) -> int:
    # argparse takes what follows `--capability 9.0` for more capabilities; a target has a colon, they have none.
    targets = [*options.targets, *(x for x in options.capability if ":" in x)]
    capabilities = [x for x in options.capability if ":" not in x]
    unknown = [c for c in capabilities if c not in ptx.CAPABILITIES]
    if unknown or not capabilities:
        asked = ", ".join(unknown) or "is named behind --capability"
        raise TargetError(f"no compute capability {asked}; there are {', '.join(ptx.CAPABILITIES)}")
    if not targets:
        raise TargetError("nothing to compile: name FILE_OR_MODULE:FUNCTION(f32[2,3], …)")
    functions = [f for target in targets for f in functions_of(target)]
    check_names([f.name for f in functions])
    check_folder(options.out)  # before the work, which would be lost
    with execution_context(level=options.level):
        done = offline.compile_functions(functions, capabilities, cubin=options.cubin)
    try:
        path = offline.write_files(options.out, done)
    except OSError as error:
        raise FilesError(f"the files cannot be written: {error}") from None
    for f in done:
        print(f"{f.name}: {len(f.targets[0].launches)} launches of {len(f.targets[0].kernels)} kernels")
        for x in f.targets:
            if x.cubin is not None:
                most = max((r.registers for r in x.resources.values()), default=0)
                spilled = sum(r.spill_stores > 0 for r in x.resources.values())
                print(f"  {x.capability}: {len(x.cubin):,} bytes of code, at most {most} registers, {spilled} spill")
            else:
                print(f"  {x.capability}: {len(x.ptx):,} bytes of PTX")
    print(path)
    return 0
