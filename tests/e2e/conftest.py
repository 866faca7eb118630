import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "contract"))  # its small sites serve here, too
from terminal import equipoise as equipoise
