"""Common image sets: MNIST and similar ones, USPS, SVHN, CIFAR."""

from __future__ import annotations

from equipoise.data.dataset import Dataset
from equipoise.data.sets import archives, files
from equipoise.data.sets.registered import Arrays, RegisteredSet, Remote, images

DIGITS = tuple(str(digit) for digit in range(10))
FASHION = (
    "T-shirt or top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TORCHVISION = "addresses and checksums from torchvision 0.20.1, datasets/"
CIFAR_PAGE = (
    "address and checksum from the set's own page, https://www.cs.toronto.edu/~kriz/cifar.html"
)


def _idx(mirrors: tuple[str, ...], md5s: tuple[str, str, str, str]) -> tuple[Remote, ...]:
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(
        Remote(name, md5, tuple(mirror + name for mirror in mirrors))
        for name, md5 in zip(names, md5s, strict=True)
    )


def _cifar10(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    return images(entry, files.cifar_sheets(arrays) if "webp_train" in arrays else arrays)


def _cifar100(entry: RegisteredSet, arrays: Arrays) -> Dataset:
    from dataclasses import replace

    named = (
        tuple(str(name) for name in arrays["class_names"])
        if "class_names" in arrays
        else entry.class_names
    )
    return images(replace(entry, class_names=named), arrays)


ENTRIES = (
    RegisteredSet(
        "fashion_mnist",
        "Fashion-MNIST: articles of clothing",
        (1, 28, 28),
        FASHION,
        "60,000 / 10,000",
        "MIT",
        TORCHVISION + "mnist.py",
        images,
        _idx(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        prepare=files.mnist,
    ),
    RegisteredSet(
        "mnist",
        "MNIST: handwritten digits",
        (1, 28, 28),
        DIGITS,
        "60,000 / 10,000",
        "none stated by the source",
        TORCHVISION + "mnist.py",
        images,
        _idx(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        prepare=files.mnist,
    ),
    RegisteredSet(
        "usps",
        "USPS: digits from envelopes",
        (1, 16, 16),
        DIGITS,
        "7,291 / 2,007",
        "none stated by the source",
        TORCHVISION + "usps.py",
        images,
        tuple(
            Remote(
                name,
                md5,
                (f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/{name}",),
            )
            for name, md5 in (
                ("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
                ("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
            )
        ),
        prepare=files.usps,
    ),
    RegisteredSet(
        "svhn",
        "SVHN: house numbers, cropped digits",
        (3, 32, 32),
        DIGITS,
        "73,257 / 26,032",
        "non-commercial use only",
        TORCHVISION + "svhn.py",
        images,
        tuple(
            Remote(name, md5, (f"http://ufldl.stanford.edu/housenumbers/{name}",))
            for name, md5 in (
                ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            )
        ),
        prepare=files.svhn,
    ),
    RegisteredSet(
        "svhn_subset",
        "SVHN, a subset with crops rebuilt from the full photographs",
        (3, 32, 32),
        DIGITS,
        "5,500 / 1,100",
        "non-commercial use only",
        "import-only: an NPZ file with x_train, y_train, x_test, y_test",
        images,
        note="close to the official crops, not equal to them: report it by this name",
    ),
    RegisteredSet(
        "syn",
        "SYN: synthetic digits",
        (3, 32, 32),
        DIGITS,
        "depends on the copy",
        "none stated by the source",
        "import-only, no checksum was found: synth_train_32x32.mat and synth_test_32x32.mat, "
        "or an NPZ file with x_train, ...",
        images,
        files=("synth_train_32x32.mat", "synth_test_32x32.mat"),
        prepare=files.svhn,
    ),
    RegisteredSet(
        "mnist_m",
        "MNIST-M: digits blended with photographs",
        (3, 28, 28),
        DIGITS,
        "60,000 / 10,000",
        "none stated by the source",
        "import-only, no checksum was found: an NPZ file with x_train, y_train, x_test, y_test",
        images,
    ),
    RegisteredSet(
        "mnist_m_regenerated_subset",
        "MNIST-M, a subset made anew by the published recipe",
        (3, 28, 28),
        DIGITS,
        "3,000 / 2,000",
        "none stated by the source",
        "import-only: an NPZ file with x_train, y_train, x_test, y_test",
        images,
        note="not the official images: report it by this name",
    ),
    RegisteredSet(
        "cifar10",
        "CIFAR-10: small photographs of ten kinds of things",
        (3, 32, 32),
        CIFAR10,
        "50,000 / 10,000",
        "none stated by the source",
        CIFAR_PAGE,
        _cifar10,
        (
            Remote(
                "cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            ),
        ),
        prepare=files.cifar,
        also=(Remote("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", ()),),
        packed="cifar10_webp",
        note="the binary version is fetched; cifar-10-python.tar.gz can be imported too",
    ),
    RegisteredSet(
        "cifar100",
        "CIFAR-100: small photographs of a hundred kinds of things",
        (3, 32, 32),
        tuple(str(k) for k in range(100)),
        "50,000 / 10,000",
        "none stated by the source",
        CIFAR_PAGE,
        _cifar100,
        (
            Remote(
                "cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            ),
        ),
        prepare=files.cifar,
        also=(Remote("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", ()),),
        note="the binary version is fetched; cifar-100-python.tar.gz can be imported too",
    ),
    RegisteredSet(
        "cinic10",
        "CINIC-10: CIFAR-10's classes, from CIFAR-10 and ImageNet",
        (3, 32, 32),
        CIFAR10,
        "90,000 / 90,000 / 90,000",
        "CC BY 4.0",
        "address of the University of Edinburgh, https://doi.org/10.7488/ds/2448; "
        "checksum as the loaders of github.com/BayesWatch's set cite it",
        images,
        (
            Remote(
                "CINIC-10.tar.gz",
                "6ee4d0c996905fe93221de577967a372",
                ("https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",),
            ),
        ),
        prepare=archives.cinic10,
    ),
)
