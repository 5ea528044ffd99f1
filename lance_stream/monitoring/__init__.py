"""Metrics and reports about tables, the sinks that write them, and their readers.

Start with `measures` (the current measures of a table) and `metrics` (all metrics: their names,
units and labels, and how a commit changes them). `prometheus` and `opentelemetry` publish them.
`report` is a page about a table's history: `series` collects its data, `figures` draws it, `page`
creates the HTML.
"""

from lance_stream.monitoring.opentelemetry import OpenTelemetryMetrics
from lance_stream.monitoring.prometheus import PrometheusMetrics
from lance_stream.monitoring.report import Report

__all__ = ["OpenTelemetryMetrics", "PrometheusMetrics", "Report"]
