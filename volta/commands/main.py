"""The table of commands, and the entry point that picks one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from volta.commands import export, launch, offline, run, serve, verify
from volta.core.errors import VoltaError
from volta.version import __version__

COMMANDS: dict[str, ModuleType] = {
    "export": export, "launch": launch, "offline": offline, "run": run, "serve": serve, "verify": verify,
}  # fmt: skip
"""Each module has a docstring, ``add_arguments(parser)`` and ``run(options)``, which returns the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all went well, 1 if a check failed, 2 if the request cannot be met."""
    parser = argparse.ArgumentParser(prog="volta", description="Array programs whose bits do not change.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        text = (module.__doc__ or "").strip()
        own = commands.add_parser(
            name, help=text.splitlines()[0], description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(own)
    options = parser.parse_args(argv)
    try:
        status: int = COMMANDS[options.command].run(options)
    except VoltaError as error:
        print(f"volta {options.command}: {error}", file=sys.stderr)
        return 2
    return status
