"""Types of arrays, as they are named everywhere."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Groups = NDArray[np.intp]  # indices of groups
