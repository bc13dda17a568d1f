"""A module's text, and its end."""

from __future__ import annotations

from llvmlite import ir


def text_of(module: ir.Module) -> str:
    """The text of a module, which is used up: its instructions let go of each other, so that their memory is free when
    the module is.

    They refer to each other in circles, which Python's collector would have to find among everything else.
    """
    text = str(module)
    for function in module.functions:
        for block in function.blocks:
            for instruction in block.instructions:
                if isinstance(instruction, ir.PhiInstr):
                    instruction.incomings.clear()
            block.instructions.clear()
            block.terminator = None
        function.blocks.clear()
    module.globals.clear()
    return text
