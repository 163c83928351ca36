from .cycle_numpy import cycle as cycle
