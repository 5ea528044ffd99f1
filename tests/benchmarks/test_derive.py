import re

from tests.benchmarks.test_benchmarks import run


def test_the_benchmark_of_derived_columns_computes_changed_rows_alone() -> None:
    shown = run("benchmarks.derive", "--rows", "2000", "--dimension", "4", "--micros", "0")
    computed = {
        name.strip(): int(count.replace(",", ""))
        for name, count in re.findall(r"^(\w+ \w+) +([\d,]+) ", shown, re.MULTILINE)
    }
    assert computed == {
        "all rows": 2000,
        "texts changed": 20,
        "prices changed": 0,
        "nothing changed": 0,
    }
    assert "computed 1.0000 rows" in shown
