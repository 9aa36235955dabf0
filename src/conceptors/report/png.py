"""A tiny PNG writer: one opacity a pixel, nothing else."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from conceptors.report.measures import Array


def opacity_png(values: Array) -> str:
    """An image with opacity `values` in [0, 1] (NaN: none), one pixel a cell, as a data URL."""
    height, width = values.shape
    alpha = np.round(255 * np.clip(np.nan_to_num(values), 0, 1)).astype(np.uint8)
    rows = np.zeros((height, 1 + 2 * width), dtype=np.uint8)  # filter byte, then grey and alpha
    rows[:, 1::2] = 255
    rows[:, 2::2] = alpha
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 4, 0, 0, 0)),
            (b"IDAT", zlib.compress(rows.tobytes(), 9)),
            (b"IEND", b""),
        )
    )
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")
