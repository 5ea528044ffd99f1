"""Metrics and reports about tables, the sinks that write them, and their readers.

Start with `measures` (the numbers of a table now) and `metrics` (all metrics: their names, units
and labels, and what a commit adds to them). `prometheus` and `opentelemetry` publish them. `report`
is a page about a table's history: `series` collects its numbers, `figures` draws them, `page` makes
the HTML.
"""

from lance_stream.monitoring.opentelemetry import OpenTelemetryMetrics
from lance_stream.monitoring.prometheus import PrometheusMetrics
from lance_stream.monitoring.report import Report

__all__ = ["OpenTelemetryMetrics", "PrometheusMetrics", "Report"]
