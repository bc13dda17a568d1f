"""Machine code's instructions an element, counted from a listing (benchmarks/cuda_slots.py)."""

import pytest

from benchmarks import cuda_slots

LISTING = """
        /*0000*/                   S2R R0, SR_CTAID.X ;
        /*0010*/               @P0 BRA `(.L_x_0) ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   DFMA R8, R4, R4, R6 ;
        /*0040*/              @!P1 BRA `(.L_x_1) ;
        /*0050*/                   MUFU.RCP R9, R8 ;
        /*0060*/                   MUFU.RCP R9, R9 ;
.L_x_1:
        /*0070*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0080*/                   EXIT ;
.L_x_0:
        /*0090*/                   STG.E desc[UR4][R2.64], R4 ;
        /*00a0*/               @P2 BRA `(.L_x_0) ;
        /*00b0*/                   EXIT ;
.L_x_2:
        /*00c0*/                   BRA `(.L_x_2);
"""


def test_the_path_of_ordinary_numbers_is_the_one_with_the_fewest_instructions_an_element():
    path, elements = cuda_slots.cheapest(LISTING)
    assert elements == 4 and [name for name, *_ in path] == [
        "S2R", "BRA", "LDG.E.128", "DFMA", "BRA", "STG.E.128", "EXIT",
    ]  # fmt: skip


def test_a_float64_instruction_takes_two_slots(monkeypatch):
    monkeypatch.setattr(cuda_slots, "machine_code", lambda function, operands: LISTING)
    row = cuda_slots.counted("f", abs, 1)
    assert (row["instructions"], row["float64"], row["slots"]) == (1.8, 0.2, 2.0)
    assert row["least"] == pytest.approx(2 * (1 << 28) / (132 * 128 * 1.98e9))
    assert "2.0" in cuda_slots.show([row])
