from .cycle_numpy import cycle as cycle
from .cycle_numpy import transpose as transpose
