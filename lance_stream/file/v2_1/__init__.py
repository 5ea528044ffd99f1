"""File versions 2.1 and 2.2: `layouts` of pages, and the `codecs` for their buffers."""
