from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Column(Dataset):
    """The samples of a Hangar column: a file each, so that workers share nothing but the mount."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.npy"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = torch.from_numpy(np.load(self.paths[index]).astype("float32") / 255)
        return image, int(self.paths[index].stem)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = Column("mnt/branches/master/digits")
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
    print(len(data), "samples of", tuple(data[0][0].shape))

    seen, total = 0, 0.0
    for images, keys in loader:
        seen += len(keys)
        total += images.sum().item()
    stacked = np.load("mnt/branches/master/digits.npy", mmap_mode="r")
    assert seen == len(stacked) and abs(total - stacked.sum() / 255) < 1e-2 * seen
    print("one epoch:", seen, "samples in batches of", loader.batch_size)
