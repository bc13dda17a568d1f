"""What was made before: bounded, and what is in use stays."""

from volta.core.recent import Recent


def test_it_holds_two_generations_at_most():
    kept: Recent[int, int] = Recent(10)
    for n in range(1000):
        kept.keep(n, -n)
        assert len(kept) <= 20
    assert [kept.find(n) for n in range(990, 1000)] == [-n for n in range(990, 1000)]
    assert kept.find(0) is None


def test_what_is_found_now_and_then_stays():
    kept: Recent[object, int] = Recent(10)
    kept.keep("used", 1)
    for n in range(1000):
        kept.keep(n, n)
        if n % 9 == 0:
            assert kept.find("used") == 1
    assert kept.find("used") == 1


def test_to_keep_what_is_there_forgets_nothing():
    kept: Recent[int, int] = Recent(3)
    for n in range(3):
        kept.keep(n, n)
    for _ in range(9):
        kept.keep(2, 2)
    assert [kept.get(n) for n in range(3)] == [0, 1, 2] and not kept.old


def test_nothing_is_left_after_clear():
    kept: Recent[int, int] = Recent(2)
    for n in range(5):
        kept.keep(n, n)
    kept.clear()
    assert len(kept) == 0 and kept.find(4) is None and kept.find(2) is None
