import sys
from pathlib import Path

# The small runs of the contract and the benches of the oracles serve here, too.
sys.path[:0] = [str(Path(__file__).parent.parent / folder) for folder in ("contract", "oracle")]
