from tests.helpers.terminal import equipoise as equipoise
