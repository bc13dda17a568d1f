"""From LLVM to PTX and machine code: what only PTX can say, compiling, keeping on disk, and doing so without a GPU."""
