{{ config(materialized="view") }}

SELECT id, state FROM (
  SELECT *, row_number() OVER (PARTITION BY _rowid ORDER BY _commit_version DESC) AS _nth
  FROM {{ ref("order_log") }})
WHERE _nth = 1 AND NOT _deleted
