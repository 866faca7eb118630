import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "contract"))  # the small runs of the contract serve here, too
