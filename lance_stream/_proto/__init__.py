"""Messages of the format, generated from protos/ by `make protos`; never edited by hand."""
