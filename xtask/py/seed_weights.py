#!/usr/bin/env python3
"""Give a model whose weights are ConstantOfShape nodes seeded, scaled random weights.

    python seed_weights.py IN.onnx OUT.onnx SEED

A weight of rank 2 or more is normal with variance 2 / fan-in; the operands of BatchNormalization are scale near 1, bias and mean
near 0, variance in [0.5, 1.5); other vectors are small. The shapes of ConstantOfShape are read from initializers. The weights
before a final Softmax are scaled so that its operand has a standard deviation near 2: the output is neither flat nor saturated.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper


def tame_softmax(model, rng):
    """Scale the last weighted node so that the operand of a final Softmax has a standard deviation near 2."""
    graph = model.graph
    weights = {t.name: t for t in graph.initializer}
    made_by = {o: n for n in graph.node for o in n.output}
    last = made_by[graph.output[0].name]
    if last.op_type != "Softmax":
        return
    node = made_by[last.input[0]]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.append(onnx.ValueInfoProto(name=last.input[0]))
    feed = {}
    for i in graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        feed[i.name] = rng.random(shape).astype(np.float32)
    logits = ort.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"]).run([last.input[0]], feed)[0]
    while node.op_type not in ("Conv", "Gemm", "MatMul"):
        node = made_by[node.input[0]]
    for name in [n for n in node.input[1:] if n in weights]:
        w = numpy_helper.to_array(weights[name]) * np.float32(2.0 / max(float(logits.std()), 1e-6))
        weights[name].CopyFrom(numpy_helper.from_array(w.astype(np.float32), name))


def main():
    source, target, seed = sys.argv[1:4]
    rng = np.random.default_rng(int(seed))
    model = onnx.load(source)
    graph = model.graph
    inits = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    role = {}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            for what, name in zip(["x", "scale", "bias", "mean", "var"], node.input):
                role[name] = what
    nodes = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in inits:
            nodes.append(node)
            continue
        shape = tuple(int(d) for d in inits[node.input[0]])
        name = node.output[0]
        if len(shape) >= 2:
            w = rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))
        elif role.get(name) == "var":
            w = 0.5 + rng.random(shape)
        elif role.get(name) == "scale":
            w = 1.0 + 0.1 * rng.standard_normal(shape)
        else:
            w = 0.05 * rng.standard_normal(shape)
        graph.initializer.append(numpy_helper.from_array(w.astype(np.float32), name))
    del graph.node[:]
    graph.node.extend(nodes)
    used = {i for n in graph.node for i in n.input}
    keep = [t for t in graph.initializer if t.name in used]
    del graph.initializer[:]
    graph.initializer.extend(keep)
    inputs = [i for i in graph.input if i.name in used and i.name not in inits]
    del graph.input[:]
    graph.input.extend(inputs)
    tame_softmax(model, rng)
    onnx.save(model, target)


if __name__ == "__main__":
    main()
