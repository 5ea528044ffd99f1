"""Data skipping: excludes rows that a filter cannot match without reading them.

Read `row_ranges` first (rows of a fragment as ranges), then `page_skipping`, which uses the bounds
of each page's values, and `lineage_skipping`, which uses the lineage of rows in the manifest.
"""
