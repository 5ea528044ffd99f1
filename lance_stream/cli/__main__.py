"""`python -m lance_stream.cli`, where no script is installed."""

import sys

from lance_stream.cli.start import main

sys.exit(main())
