"""What the key index of a table lacks."""

from dataclasses import replace

from lance_stream.keys.index.shared_index import SharedIndex
from lance_stream.table.fragments.fragment_list import FragmentList
from tests.keys.keyed_tables import table_of


def test_only_indexable_files_are_missing() -> None:
    """A round for other files would follow each commit and change nothing."""
    table = table_of(3)
    first, *others = table.manifest.fragments
    (file,) = first.files
    foreign = replace(first, files=(replace(file, path="part-0.lance"),))
    fragments = FragmentList.of([foreign, *others])
    table = table.at(replace(table.manifest, fragments=fragments))
    lacking = SharedIndex(("id",), (1, 2), {}).lacking(table)
    assert lacking == [(index, others[index - 1].physical_rows) for index in (1, 2)]
