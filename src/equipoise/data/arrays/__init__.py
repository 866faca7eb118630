"""Arrays and images: NPZ files, image folders and Python objects as data sets."""
