"""Helpers for tests of programs: bits compared and digested, adversarial data, random programs.

:mod:`volta.testing.strategies` (imported by itself, as it needs hypothesis) draws shapes, arrays and whole programs.
"""

from volta.testing.bits import assert_bits_equal, bits, digest
from volta.testing.data import FILLS, fill
from volta.testing.programs import OPERATIONS, Operation, Program, Step

__all__ = ["FILLS", "OPERATIONS", "Operation", "Program", "Step", "assert_bits_equal", "bits", "digest", "fill"]
