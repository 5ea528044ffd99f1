"""`python -m lance_stream.cli`, for environments without the installed script."""

import sys

from lance_stream.cli.start import main

sys.exit(main())
