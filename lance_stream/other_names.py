"""What other programs call the members of this package, for the errors about unknown names."""

from collections.abc import Mapping
from typing import Final


def _by_name(names: Mapping[str, str]) -> Mapping[str, str]:
    return {name: member for member, others in names.items() for name in others.split()}


OF_PACKAGE: Final = _by_name(
    {
        "lance_stream.open_dataset(uri)": "connect load open open_table read_table table Table",
        "lance_stream.create_dataset(uri, rows)": "create create_table write_dataset write_table",
        "lance_stream.open_dataset(uri).changes(after=version)": "changes",
        "lance_stream.open_dataset(uri).follow()": "follow",
        "`lance-stream ls FOLDER` on the command line": "list_datasets list_tables tables",
        "lance_stream.spark.auto_cdc_sink": "auto_cdc_sink",
        "lance_stream.spark.lance_sink": "lance_sink sink",
        "lance_stream.spark.lance_sinks": "lance_sinks",
        "lance_stream.spark.read_changes": "read_changes",
        "lance_stream.spark.register": "register",
    }
)

OF_DATASET: Final = _by_name(
    {
        "ds.add_columns({'total': 'price * quantity'})": "add_column with_column",
        "ds.alter_columns({'path': 'price', 'data_type': pa.float64()})": "alter_column cast",
        "ds.append(data)": "add insert write",
        "ds.branches.create(name)": "create_branch",
        "ds.changes(after=version)": "changes_since delta diff",
        "ds.checkout(None)": "checkout_latest latest refresh reload",
        "ds.checkout(None).version": "latest_version",
        "ds.checkout(version)": "as_of at checkout_version",
        "ds.cleanup(older_than='7 days')": "cleanup_old_versions expire_snapshots vacuum",
        "ds.compact()": "compact_files optimize",
        "ds.count_rows()": "count num_rows",
        "ds.delete(predicate)": "delete_where remove",
        "ds.digest()": "checksum",
        "ds.drop_columns(names)": "drop drop_column",
        "ds.file_version": "data_storage_version",
        "ds.follow()": "listen stream subscribe tail watch",
        "ds.index_coverage()": "describe_indices indices list_indices",
        "ds.ledger()": "queries streams",
        "ds.rename_columns({'old': 'new'})": "rename rename_column",
        "ds.restore(version)": "revert rollback undo",
        "ds.scan(batch_size=5).read_next_batch()": "head limit",
        "ds.scan(columns, filter)": "filter query scanner select sql to_batches to_reader where",
        "ds.schema.names": "columns column_names",
        "ds.tags.create(name)": "create_tag tag",
        "ds.to_table()": "read to_arrow",
        "ds.to_table().to_pandas()": "to_df to_pandas",
        "ds.update(values, where)": "set set_column update_column",
        "ds.uri": "location name path url",
        "ds.upsert(data, on='id')": "merge merge_insert",
        "ds.verify()": "check validate",
        "ds.versions()": "history list_versions log",
        "lance.dataset(ds.uri), pylance's object": "create_index create_scalar_index drop_index",
        "lance.dataset(ds.uri).to_table(nearest=...), pylance's search": "nearest neighbors search",
        "polars.from_arrow(ds.to_table())": "to_polars",
        "pyarrow.parquet.write_table(ds.to_table(), path)": "to_parquet write_parquet",
        "`lance-stream consumers` on the command line": "consumers",
        "`lance-stream show URI` on the command line": "describe fragments info nbytes size stats",
        "`lance-stream streams forget URI APP_ID` on the command line": "forget forget_query",
    }
)


def missing_attribute(owner: str, name: str, members: Mapping[str, str]) -> AttributeError:
    """Return the error about an unknown attribute, with the member that has its purpose.

    Args:
        owner: The object, as Python calls it in the message: "'Dataset' object".
        name: The attribute.
        members: By names that other programs use, the members with the same purpose.
    """
    message = f"{owner} has no attribute {name!r}"
    if name not in members:
        return AttributeError(message)
    # If the error had an object, Python would add the member whose spelling is closest.
    return AttributeError(f"{message}. Use {members[name]}", name=name, obj=None)
