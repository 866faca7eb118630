import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))  # its browser and its made-up runs serve here, too
