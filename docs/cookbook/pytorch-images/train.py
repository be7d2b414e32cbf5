import npyfs
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """The images of an array. Each worker maps it for itself, and all of them share the pages."""

    def __init__(self, path):
        self.path, self.images = path, None
        self.count = len(np.load(path, mmap_mode="r"))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.images is None:
            self.images = np.load(self.path, mmap_mode="r")
        return torch.from_numpy(self.images[index].astype("float32") / 255)


if __name__ == "__main__":
    torch.manual_seed(0)
    with npyfs.mount("plain.h5", keep="1G") as m:
        data = Images(m / "images/stack.npy")
        loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
        for epoch in (1, 2):
            total = sum(images.mean(dim=(1, 2)).sum().item() for images in loader)
            print(f"epoch {epoch}: {len(data)} images, mean {total / len(data):.6f}")
