import sys
from pathlib import Path

# The small sites of the contract and made-up runs of the reports serve here, too.
sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parent.parent / folder) for folder in ("contract", "report"))]
