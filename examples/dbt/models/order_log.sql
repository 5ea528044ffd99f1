{{ config(materialized="incremental", incremental_strategy="append", file_format="parquet") }}

SELECT id, state, _rowid, _commit_version, _deleted
FROM {{ lance_newest_rows(var("orders"), lance_version_of(this)) }}
