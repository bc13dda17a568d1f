"""Programs from files: everything in one is looked at before it is believed."""

from __future__ import annotations

import json
import os
from typing import Any

from volta.core import contract, pytrees
from volta.core.array import Array
from volta.core.boundary import boundary
from volta.core.errors import FormatError, TreeError
from volta.io import files
from volta.programs.document import Reader
from volta.programs.exported import FIELDS, MORE_FIELDS, Exported
from volta.programs.machine_code import admit
from volta.programs.machine_code import from_stored as code_of
from volta.programs.symbolic import from_stored as symbolic_of


@boundary
def load_program(path: files.Path, *, machine_code: bool = False) -> Exported:
    """Read a program that :meth:`volta.Exported.save` wrote: call the result like the function it was made from.

    The whole file is checked first; nothing in it is run but operations of Volta's, whose kernels are compiled here.

    Args:
        path: the file.
        machine_code: run the compiled kernels in the file instead of compiling any. They run as this user, and nothing
            but their author's good will says what they do: ask for them of files that you trust like a program.

    Raises:
        DeviceError: none of the ``machine_code`` fits; it says for each target what is different here.
        FormatError: the file is damaged, no program, of a newer format, or was made under another bit contract, whose
            numbers this version does not compute.
        TreeError: its arguments or results are in a namedtuple whose class is not imported.
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    try:
        stored = files.load(path)
    except TreeError as error:
        raise TreeError(
            f"{name!s}: arguments or results of this program are in a class that is not here: "
            f"{str(error).partition(';')[0]}; import the module that defines it, then load again"
        ) from None
    if not (isinstance(stored, dict) and {*stored} >= {"program", "format"}):
        raise FormatError(f"{name!s}: no program: this file holds arrays; volta.io.load reads it")
    made_under = files.load_metadata(path).contract
    if type(stored["format"]) is not int or stored["format"] not in MORE_FIELDS:
        raise FormatError(
            f"{name!s}: a program of format {stored['format']!r:.40}; this version reads "
            f"{' and '.join(map(str, MORE_FIELDS))}"
        )
    if made_under != contract.ID:
        raise FormatError(
            f"{name!s}: made under the bit contract {made_under}, and this version computes under {contract.ID}: the "
            "bits could differ. Export it anew, or run it with the version that wrote it"
        )
    try:
        program = _rebuilt(stored)
    except FormatError as error:
        raise FormatError(f"{name!s}: {error}") from None
    if machine_code:
        admit(program.machine_code, f"{name!s}")
    return program


def _rebuilt(stored: dict[str, Any]) -> Exported:
    more = {*stored} - FIELDS
    if not {*stored} >= FIELDS or not more <= MORE_FIELDS[stored["format"]]:
        raise FormatError(f"corrupt: a program has {', '.join(sorted(FIELDS))}")
    if not all(isinstance(stored.get(key, []), list) for key in ("constants", "machine_code")):
        raise FormatError("corrupt: the constants or the machine code of a program are no list")
    if not all(isinstance(x, Array) for x in stored["constants"]):
        raise FormatError("corrupt: a constant of a program is no array")
    types = {"program": str, "name": str, "donated": list, "keywords": bool, "rules": bool}
    for key, kind in types.items():
        if type(stored[key]) is not kind:
            raise FormatError(f"corrupt: {key} of a program is a {type(stored[key]).__name__}")
    try:
        document = json.loads(stored["program"])
    except (ValueError, RecursionError) as error:
        raise FormatError(f"corrupt: the program is not valid JSON ({error})") from None
    symbolic = None
    if "symbols" in stored:
        symbolic = symbolic_of(stored["symbols"], document, stored["constants"])
        program = symbolic.program(symbolic.least)
    else:
        program = Reader(stored["constants"]).whole(document)
    for key, avals in (("inputs", program.in_avals), ("outputs", program.out_avals)):
        if pytrees.leaves(stored[key]) != list(range(len(avals))):
            raise FormatError(f"corrupt: the tree of {key} does not count those of the program")
    inputs, keywords = stored["inputs"], stored["keywords"]
    shape = (tuple, dict) if keywords else ()
    if type(inputs) is not tuple or (keywords and tuple(map(type, inputs)) != shape):
        raise FormatError("corrupt: the tree of inputs is none of arguments")
    if not {*stored["donated"]} <= {*range(len(program.in_avals))}:
        raise FormatError("corrupt: what is donated is no input")
    return Exported(
        stored["name"], program, inputs, stored["outputs"], tuple(stored["donated"]), keywords, stored["rules"],
        machine_code=tuple(code_of(code) for code in stored.get("machine_code", [])), symbolic=symbolic,
    )  # fmt: skip
