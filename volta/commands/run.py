"""Run a program that is written for JAX on Volta: ``volta run train.py --epochs 3``.

It is the program as it stands, in a process where ``import jax`` means Volta (see ``volta.as_jax``).
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from volta.interop.jax_names.finder import install


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help="the program: a file of Python's, or with -m a module")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program gets as its arguments")


def run(options: argparse.Namespace) -> int:
    install()
    sys.argv = [options.program, *options.arguments]
    if options.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(options.program)))
        runpy.run_path(options.program, run_name="__main__")
    return 0
