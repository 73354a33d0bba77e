#!/usr/bin/env python3
"""Round the large f32 weights of a model to few significant bits, so that they pack into a small archive.

    python round_weights.py IN.onnx OUT.onnx BITS

Keeps BITS bits of the fraction (round to nearest, ties away from zero); every expected output is computed with these weights.
"""
import sys

import numpy as np
import onnx
from onnx import numpy_helper

SMALL = 1024


def main():
    source, target, bits = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = onnx.load(source)
    drop = 23 - bits
    for t in model.graph.initializer:
        w = numpy_helper.to_array(t)
        if w.dtype != np.float32 or w.size < SMALL:
            continue
        u = np.ascontiguousarray(w).view(np.uint32).astype(np.uint64)
        u = ((u + (1 << (drop - 1))) >> drop) << drop
        t.CopyFrom(numpy_helper.from_array(u.astype(np.uint32).view(np.float32).reshape(w.shape), t.name))
    onnx.save(model, target)


if __name__ == "__main__":
    main()
