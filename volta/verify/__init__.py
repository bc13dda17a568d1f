"""What ``volta verify`` checks on the machine at hand: suites of programs, their bits compared and on record."""
