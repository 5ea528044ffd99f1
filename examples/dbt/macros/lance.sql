{#- Macros over lance-stream's table functions. They need a session that has called register(). -#}

{#- A text as a literal of Spark SQL. -#}
{%- macro lance_text(value) -%}
'{{ value | string | replace("\\", "\\\\") | replace("'", "\\'") }}'
{%- endmacro -%}

{#- A version: a number as it is, anything else (a tag, a time) as text. -#}
{%- macro lance_version(value) -%}
{{ value if value is number else lance_text(value) }}
{%- endmacro -%}

{#- The rows of a table, at a version or the newest. -#}
{%- macro lance_table(uri, version=none) -%}
lance_table({{ lance_text(uri) }}{% if version is not none %}, {{ lance_version(version) }}{% endif %})
{%- endmacro -%}

{#- The changes of the versions `start` to `end`, both included; with `net`, one change per row. -#}
{%- macro lance_changes(uri, start, end=none, net=false) -%}
lance_changes({{ lance_text(uri) }}, {{ start | int }}
{%- if end is not none %}, {{ end | int }}{% elif net %}, NULL{% endif -%}
{%- if net %}, 'netChanges'{% endif %})
{%- endmacro -%}

{#- Each row that changed after a version, as it is now; deleted rows as they were, with `_deleted`.
    The version itself is read, too, and left out: so there need not be a newer one. -#}
{%- macro lance_newest_rows(uri, after, end=none) -%}
(SELECT * EXCEPT (_nth), _change_type = 'delete' AS _deleted FROM (
  SELECT *, row_number() OVER (PARTITION BY _rowid ORDER BY _commit_version DESC) AS _nth
  FROM {{ lance_changes(uri, after, end) }}
  WHERE _commit_version > {{ after | int }} AND _change_type <> 'update_preimage')
WHERE _nth = 1)
{%- endmacro -%}

{#- The newest version that an incremental model has read: of its own column _commit_version. -#}
{%- macro lance_version_of(relation) -%}
{%- if execute and is_incremental() -%}
{%- set rows = run_query("SELECT max(_commit_version) FROM " ~ relation) -%}
{{- rows.columns[0][0] or 0 -}}
{%- else -%}
0
{%- endif -%}
{%- endmacro -%}
