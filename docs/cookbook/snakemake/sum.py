import sys

import numpy as np

np.save(sys.argv[2], np.load(sys.argv[1]).sum(axis=1))
