import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))  # its small server
sys.path.insert(0, str(Path(__file__).parents[1] / "patch"))  # its stand-in for the package sglang
