import re

from tests.benchmarks.test_benchmarks import run


def test_the_derive_benchmark_computes_only_changes() -> None:
    """The counts are the claim of the benchmark, and must not depend on the machine."""
    output = run("benchmarks.derive", "--rows", "2000", "--dimension", "4", "--micros", "0")
    computed = {
        name.strip(): int(count.replace(",", ""))
        for name, count in re.findall(r"^(\w+ \w+) +([\d,]+) ", output, re.MULTILINE)
    }
    assert computed == {
        "all rows": 2000,
        "texts changed": 20,
        "prices changed": 0,
        "nothing changed": 0,
    }
    assert "computed 1.0000 rows" in output
