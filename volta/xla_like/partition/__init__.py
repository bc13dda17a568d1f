"""From one program to one for each rank, with explicit exchanges, and the bits of one worker.

In order: `factors` (how a primitive may be cut), `choosing` (how an equation is), `building` (the ranks' equations,
level by level, and the `exchange` of layouts), `sums` (over a cut axis, as nodes of their `trees`), `loops` (that each
rank runs on its own), `partition` (the pass over the program), `local` (what comes out), `verify` (what must hold of
it).
"""
