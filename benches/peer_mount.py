"""Runs in the peer's environment: mounts a directory with hdfuse's class, without the editor its command starts.

peer_mount.py DIRECTORY MOUNTPOINT plain|patched"""

import sys

import h5py
from fuse import FUSE
from hdfuse.hdfuse import HDFuse5

root, point, how = sys.argv[1:]
if how == "patched":
    h5py.Dataset.value = property(lambda dataset: dataset[()])  # h5py 3 took it away
FUSE(HDFuse5(root), point, foreground=True, ro=True)
